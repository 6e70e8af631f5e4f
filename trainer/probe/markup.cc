#include "trainer/probe/markup.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace deepnet {

std::string Escaped(const std::string& text) {
  return absl::StrReplaceAll(
      text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}, {"'", "&#39;"}});
}

std::string Length(double value) { return absl::StrFormat("%.1f", value); }

std::string SvgText(double x, double y, const std::string& css, const std::string& text) {
  return absl::StrCat("<text x=\"", Length(x), "\" y=\"", Length(y), "\" class=\"", css, "\">",
                      Escaped(text), "</text>\n");
}

std::string SvgLine(double x1, double y1, double x2, double y2, const std::string& css) {
  return absl::StrCat("<line x1=\"", Length(x1), "\" y1=\"", Length(y1), "\" x2=\"", Length(x2),
                      "\" y2=\"", Length(y2), "\" class=\"", css, "\"/>\n");
}

}  // namespace deepnet

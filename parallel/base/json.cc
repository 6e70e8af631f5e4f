#include "parallel/base/json.h"

#include "parallel/base/utf8.h"

namespace deepnet {

std::string JsonQuoted(std::string_view text) {
  if (!IsUtf8(text)) return JsonQuoted(EscapedUtf8(text));
  std::string quoted = "\"";
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const auto next = static_cast<unsigned char>(i + 1 < text.size() ? text[i + 1] : 0);
    const bool is_upper_control = c == '\xC2' && next >= 0x80 && next <= 0x9F;
    const std::string_view three = text.substr(i, 3);
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (c == '\n') {
      quoted += "\\n";
    } else if (static_cast<unsigned char>(c) < 0x20 || c == '\x7F') {
      absl::StrAppendFormat(&quoted, "\\u%04x", static_cast<int>(c));
    } else if (is_upper_control) {
      absl::StrAppendFormat(&quoted, "\\u%04x", next);
      ++i;
    } else if (three == "\u2028" || three == "\u2029") {
      quoted += three == "\u2028" ? "\\u2028" : "\\u2029";
      i += 2;
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

}  // namespace deepnet

// The little of HTML and SVG that is easy to get wrong.
#pragma once

#include <string>

namespace deepnet {

// `text` with &, <, > and quotes as entities.
std::string Escaped(const std::string& text);

// "12.3": a length of a drawing, a tenth of a unit exact.
std::string Length(double value);

// <text x= y= class=>: `text` is escaped.
std::string SvgText(double x, double y, const std::string& css, const std::string& text);

// <line ...>
std::string SvgLine(double x1, double y1, double x2, double y2, const std::string& css);

}  // namespace deepnet

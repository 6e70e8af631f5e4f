#include "trainer/probe/heat_map.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

#include "trainer/probe/axis.h"
#include "trainer/probe/line_plot.h"
#include "trainer/probe/markup.h"

namespace deepnet {
namespace {

constexpr double kLeft = 62, kTop = 62;
constexpr double kMostSide = 62, kMostHeight = 44;
constexpr size_t kMostNumbers = 9;                 // columns; more would not be readable
constexpr double kCharacter = 9.6, kTextRow = 17;  // of the largest text, 15 units

Spread RangeOf(const HeatMap& map) {
  if (map.range.has_value()) return *map.range;
  std::vector<double> values;
  for (const auto& row : map.values) {
    for (const auto& value : row) {
      if (value.has_value()) values.push_back(*value);
    }
  }
  return MeanAndSpread(values);
}

// Share of the strong colour, 0.06 to 1.
double Strength(const HeatMap& map, const Spread& range, double value) {
  double share = range.high > range.low ? (value - range.low) / (range.high - range.low) : 0.5;
  if (map.low_is_good) share = 1 - share;
  return 0.06 + 0.94 * share;
}

std::string Square(const HeatMap& map, const Spread& range, size_t row, size_t column, double side,
                   double height) {
  const double x = kLeft + side * static_cast<double>(column);
  const double y = kTop + height * static_cast<double>(row);
  const std::optional<double> value = map.values[row][column];
  const std::string word = map.words.empty() ? "" : map.words[row][column];
  const bool shown = value.has_value() && std::isfinite(*value);
  const std::string text = shown ? ShortNumber(*value) : word;
  const double strength = shown ? Strength(map, range, *value) : 0.0;
  std::string svg =
      absl::StrCat("<g><title>", Escaped(map.rows[row]), ", ", Escaped(map.columns[column]), ": ",
                   Escaped(text.empty() ? "nothing" : text), "</title><rect x=\"", Length(x + 1),
                   "\" y=\"", Length(y + 1), "\" width=\"", Length(side - 2), "\" height=\"",
                   Length(height - 2), "\" class=\"", shown ? "heat" : "blank", "\"");
  if (shown) absl::StrAppend(&svg, " fill-opacity=\"", ShortNumber(strength), "\"");
  absl::StrAppend(&svg, "/>");
  if (map.columns.size() <= kMostNumbers && !text.empty()) {
    svg += SvgText(x + side / 2, y + height / 2 + 5,
                   strength > 0.62 ? "tick mid on-heat" : "tick mid", shown ? text : "\u2715");
  }
  return svg + "</g>\n";
}

// Of how many names one is written, so that those of columns do not touch.
size_t ColumnStride(const HeatMap& map, double side) {
  size_t longest = 1;
  for (const std::string& name : map.columns) longest = std::max(longest, name.size());
  return static_cast<size_t>(std::ceil((kCharacter * static_cast<double>(longest) + 4) / side));
}

}  // namespace

std::string DrawHeatMap(const HeatMap& map) {
  const double columns = static_cast<double>(std::max<size_t>(1, map.columns.size()));
  const double side = std::min(kMostSide, (kPlotUnits - kLeft - 8) / columns);
  const double height = std::min(kMostHeight, side);
  const double bottom = kTop + height * static_cast<double>(map.rows.size());
  std::string svg = absl::StrCat(
      "<svg id=\"", map.id, "\" class=\"plot\" viewBox=\"0 0 ", Length(kPlotUnits), " ",
      Length(std::max(bottom, kTop + 40) + 8), "\" role=\"img\" aria-label=\"", Escaped(map.title),
      "\">\n", SvgText(kLeft, 13, "label", map.x_label), SvgText(4, 33, "label", map.y_label));
  const Spread range = RangeOf(map);
  if (map.rows.empty() || (range.count == 0 && map.words.empty())) {
    return svg + SvgText(kLeft + 40, kTop + 24, "label", "nothing measured yet") + "</svg>\n";
  }
  const size_t stride = ColumnStride(map, side);
  for (size_t column = 0; column < map.columns.size(); column += stride) {
    svg += SvgText(kLeft + side * (static_cast<double>(column) + 0.5), kTop - 6, "tick mid",
                   map.columns[column]);
  }
  const auto row_stride = static_cast<size_t>(std::ceil(kTextRow / height));
  for (size_t row = 0; row < map.rows.size(); ++row) {
    if (row % row_stride == 0) {
      svg += SvgText(kLeft - 6, kTop + height * (static_cast<double>(row) + 0.5) + 5, "tick end",
                     map.rows[row]);
    }
    for (size_t column = 0; column < map.columns.size(); ++column) {
      svg += Square(map, range, row, column, side, height);
    }
  }
  return svg + "</svg>\n";
}

}  // namespace deepnet

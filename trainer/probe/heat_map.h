// A table of numbers as an SVG of coloured squares: any-to-any scores, sweeps of two settings.
// Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "trainer/probe/statistics.h"

namespace deepnet {

struct HeatMap {
  std::string id;       // of the svg element, unique on the page
  std::string title;    // for people who cannot see it
  std::string x_label;  // what columns are
  std::string y_label;  // what rows are
  std::vector<std::string> columns;
  std::vector<std::string> rows;
  std::vector<std::vector<std::optional<double>>> values;  // [row][column]; nothing: left blank
  std::vector<std::vector<std::string>> words = {};        // why a value is missing: "diverged"
  bool low_is_good = false;                                // the good end has the strong colour
  std::optional<Spread> range = {};  // what the colours span; nothing: `values`
};

// The svg element, as wide as a line plot. Numbers stand in the squares of up to nine columns, a
// cross where a word says why there is none, and as many names of rows and columns as there is room
// for; every square says its row, column and value where the pointer rests.
std::string DrawHeatMap(const HeatMap& map);

}  // namespace deepnet

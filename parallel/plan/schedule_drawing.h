// Pictures of a simulated schedule.
#pragma once

#include <string>
#include <string_view>

#include "parallel/plan/simulator.h"

namespace deepnet {

// For a terminal: a line a rank, `columns` (> 0) characters of time, each showing what the rank
// does in the middle of its span: F, B, I or W, '.' for idle; lower case for a rank's second,
// fourth, ... chunk. Every line ends in '\n'.
//
//   rank 0 |FFF...BBFBBFBBF...
//   rank 1 |.FFF.BB
std::string DrawGrid(const Simulation& simulation, int columns);

// A self-contained SVG of about 1,000 pixels width: one box per action with its microbatch's number
// where that fits, colour by operation (F blue, B and I green, W orange), dark for a rank's first
// chunk and lighter for each later one, grey for idle; below it a legend, makespan and bubble.
std::string DrawSvg(const Simulation& simulation, std::string_view title);

}  // namespace deepnet

// A schedule as text that a person can read, write and compare. One line a rank, in order:
//
//   rank 0: 0F0 0F1 0B0 0B1
//   rank 1: 1F0 1B0 1F1 1B1
//
// An action is <chunk><op><microbatch>, op one of F B I W SF RF SB RB (schedule.h). Empty lines and
// what follows a '#' are ignored.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

#include "parallel/plan/schedule.h"
#include "parallel/plan/simulator.h"

namespace deepnet {

std::string ToText(const Action& action);
std::string ToText(const Schedule& schedule);  // every line ends in '\n'

// Inverse of ToText: ParseSchedule(ToText(s)) == s. Fails with InvalidArgument that names the line
// and the word. Says nothing of whether the schedule can run: CheckSchedule does.
absl::StatusOr<Schedule> ParseSchedule(std::string_view text);

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

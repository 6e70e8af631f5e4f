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

namespace deepnet {

std::string ToText(const Action& action);
std::string ToText(const Schedule& schedule);  // every line ends in '\n'

// Inverse of ToText: ParseSchedule(ToText(s)) == s. Fails with InvalidArgument that names the line
// and the word. Says nothing of whether the schedule can run: CheckSchedule does.
absl::StatusOr<Schedule> ParseSchedule(std::string_view text);

}  // namespace deepnet

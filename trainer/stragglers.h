// Ranks that compute longer than the others, as a slow core or a hot host makes them: the whole job
// waits for them in every step.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "proto/report.pb.h"

namespace deepnet {

// Steps that are looked at together.
inline constexpr int64_t kStragglerSteps = 50;
// A rank is a straggler that takes longer than this times the median.
inline constexpr double kStragglerRatio = 1.15;

// Returns a record, without step and host, of each rank whose seconds are above
// kStragglerRatio times what the median rank would need for the same work. `seconds` and `work` are
// by rank: computing time of a step without waiting, and what the plan expects of it in any unit,
// so that stages may be unequal. None with fewer than two ranks, or where a figure is 0.
std::vector<StragglerRecord> FindStragglers(std::span<const double> seconds,
                                            std::span<const double> work);

// Returns "straggler: rank 3 on host-b computes 0.421 s a step, 1.31 times as long as the median
// rank would".
std::string StragglerLine(const StragglerRecord& record);

}  // namespace deepnet

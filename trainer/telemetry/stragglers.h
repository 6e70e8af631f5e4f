// Ranks that compute longer than the others, as a slow core or a hot host makes them: the whole job
// waits for them in every step.
//
// Stages of a pipeline have different work, and what a plan expects of it is not exact enough to
// accuse a rank: FLOPs of products do not tell how fast a norm or an embedding is. So a rank is
// compared with the ranks that have the very same work, those of its stage in other replicas. Where
// there is one replica alone it is compared with itself: its shortest time so far, taken against
// the other ranks', so that steps of longer sentences accuse nobody.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "proto/report.pb.h"

namespace deepnet {

// Steps that are looked at together.
inline constexpr int64_t kStragglerSteps = 50;
// A rank is a straggler that takes longer than this times what is expected of it.
inline constexpr double kStragglerRatio = 1.15;

// How long a rank computes.
class ComputeTime {
 public:
  void Add(double step_seconds);

  // Returns the mean of the last kStragglerSteps steps once they are there, and begins anew.
  std::optional<double> TakeMean();

 private:
  double seconds_ = 0.0;
  int64_t steps_ = 0;
};

class StragglerWatch {
 public:
  // `stages` ranks make a replica: rank = replica * stages + stage.
  explicit StragglerWatch(int stages) : stages_(stages) {}

  // Returns a record, without step and host, of each rank that takes longer than kStragglerRatio
  // times what is expected of it: the median of its stage or, with one replica, its shortest time
  // of the calls before, times what the median rank takes of its own, at least 1. `seconds` are by
  // rank, of one step, without waiting. None with fewer than two ranks, in the first call with one
  // replica, or where a figure is 0, not measured.
  std::vector<StragglerRecord> Look(std::span<const double> seconds);

 private:
  std::vector<double> Expected(std::span<const double> seconds) const;

  const int stages_;
  std::vector<double> shortest_;  // by rank; empty before the first call
};

// Returns "straggler: rank 3 on host-b computes 0.421 s a step, 1.31 times as long as expected".
std::string StragglerLine(const StragglerRecord& record);

}  // namespace deepnet

// Ranks that compute longer than the others: the whole job waits for them in every step.
//
// Stages of a pipeline have different work, and what a plan expects of it is not exact enough to
// accuse a rank. So a rank is compared with those of its stage in other replicas. Where there is
// one replica alone it is compared with itself: its shortest time so far, taken against the other
// ranks', so that steps of longer sentences accuse nobody.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "proto/report.pb.h"

namespace deepnet {

// Steps that are looked at together.
inline constexpr int64_t kStragglerSteps = 50;
// A rank is a straggler that takes longer than this times what is expected of it.
inline constexpr double kStragglerRatio = 1.15;

struct Straggler {
  StragglerRecord record = {};  // without step and host
  bool is_new = false;          // it was none in the call before
};

class StragglerWatch {
 public:
  // `stages` ranks make a replica: rank = replica * stages + stage.
  explicit StragglerWatch(int stages) : stages_(stages) {}

  // Adds a step of this rank. Returns the mean of the last kStragglerSteps steps once they are
  // there, and begins anew.
  std::optional<double> Add(double compute_seconds);

  // Returns each rank that takes longer than kStragglerRatio times what is expected of it: the
  // median of its stage or, with one replica, its shortest time of the calls before, times what the
  // median rank takes of its own, at least 1. `seconds` are by rank, of one step, without waiting.
  // None where nothing is expected yet, or a figure is 0, not measured.
  std::vector<Straggler> Look(std::span<const double> seconds);

 private:
  std::vector<double> Expected(std::span<const double> seconds) const;

  const int stages_;
  double sum_seconds_ = 0.0;  // of num_steps_, of this rank
  int64_t num_steps_ = 0;
  std::vector<double> shortest_;  // by rank; empty before the first call
  std::set<size_t> stragglers_;   // ranks of the last call
};

// Returns "straggler: rank 3 on host-b computes 0.421 s a step, 1.31 times as long as expected".
std::string StragglerLine(const StragglerRecord& record);

}  // namespace deepnet

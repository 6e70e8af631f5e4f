// Reports of a run's steps: sums since the last report, a record for metrics.jsonl, a progress
// line; and, once, the memory of its ranks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"

#include "parallel/base/clock.h"
#include "parallel/base/logging.h"
#include "parallel/comm/communicator.h"
#include "proto/checkpoint.pb.h"
#include "proto/report.pb.h"
#include "proto/run.pb.h"
#include "trainer/data/microbatch.h"
#include "trainer/telemetry/intervals.h"
#include "trainer/train_step.h"

namespace deepnet {

class StepReport {
 public:
  // `ceiling_gflops` is what all ranks together reach in matrix products, `peak_flops` the stated
  // peak of all GPUs together (StatedPeakFlops). 0: not known, no gemm_efficiency or mfu.
  StepReport(const RunSpec& run, double ceiling_gflops, double peak_flops)
      : run_(run), ceiling_gflops_(ceiling_gflops), peak_flops_(peak_flops) {}

  // Adds a step, which took `seconds`. A skipped step counts time and tokens, not loss.
  void Add(const StepBatch& batch, const StepResult& result, double seconds);

  // Returns the record of the steps since the last call, and forgets them. `state` includes them,
  // `last` is the latest of them, `pipeline` the figures of its pipeline.
  StepRecord Take(const Manifest& state, const StepResult& last, const TraceFigures& pipeline);

  // Returns how fast the steps of the last record were that had any.
  const Pace& pace() const { return pace_; }
  double all_seconds() const { return all_seconds_; }  // of all steps that were added

 private:
  const RunSpec& run_;
  const double ceiling_gflops_, peak_flops_;
  // Over the steps since the last Take.
  struct Sums {
    double loss = 0.0, nll = 0.0, finite_target_tokens = 0.0;
    double target_tokens = 0.0, real_positions = 0.0, positions = 0.0;
    double flops = 0.0, seconds = 0.0;
    int64_t steps = 0;
  };
  Sums sums_;
  double all_seconds_ = 0.0;
  Pace pace_;
};

// Bytes of one rank, as planned and as measured.
struct RankMemory {
  int64_t planned = 0, measured = 0;

  double Difference() const {  // relative to the planned bytes
    return static_cast<double>(measured - planned) / std::max(1.0, static_cast<double>(planned));
  }
};

// A larger difference is a warning.
inline constexpr double kMemoryTolerance = 0.05;

// Logs which rank is farthest from its plan; call it after a first step. Collective over `world`.
absl::Status ReportMemory(const RankMemory& mine, Communicator& world, Logger& log);

// Returns "memory: planned 812.4 MiB, measured 820.1 MiB (+0.9 %) on rank 3, ..."; `ranks` by rank.
std::string MemoryLine(std::span<const RankMemory> ranks);

// Returns "ready after 7.1 s: plan 0.5, weights 3.1, ...", with the phases of at least 0.1 s in
// order; "" if all together took less than 2 s.
std::string StartLine(std::span<const TimedPhase> phases);

// Returns a record as a progress line, with the fraction of the run that is done.
Progress ProgressOf(const StepRecord& record, const TrainSpec& train, const NextTimes& next);

}  // namespace deepnet

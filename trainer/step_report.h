// What a run says about its steps: sums since the last line, a record for metrics.jsonl, a line for
// people; once, what its ranks hold in memory.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"

#include "parallel/base/logging.h"
#include "parallel/comm/communicator.h"
#include "proto/checkpoint.pb.h"
#include "proto/report.pb.h"
#include "proto/run.pb.h"
#include "trainer/data/microbatch.h"
#include "trainer/train_step.h"

namespace deepnet {

class StepReport {
 public:
  // `ceiling_gflops`: what all ranks together reach in matrix products; 0: unknown, no MFU.
  StepReport(const RunSpec& run, double ceiling_gflops);

  // One more step, which took `seconds`. A step that was skipped counts time and tokens, not loss.
  void Add(const StepBatch& batch, const StepResult& result, double seconds);

  // The steps since the last call, as of `state`; `last` is the latest of them, `pipeline` what it
  // lost. Forgets them.
  StepRecord Take(const Manifest& state, const StepResult& last, const TraceFigures& pipeline);

 private:
  const RunSpec& run_;
  const double ceiling_gflops_;
  double loss_ = 0.0, nll_ = 0.0, finite_target_tokens_ = 0.0;
  double target_tokens_ = 0.0, real_positions_ = 0.0, positions_ = 0.0;
  double flops_ = 0.0, seconds_ = 0.0;
};

// Bytes of one rank, as the plan counted them and as they are.
struct RankMemory {
  int64_t planned = 0, measured = 0;

  double Difference() const;  // of the planned
};

// More than this is worth a warning.
inline constexpr double kMemoryTolerance = 0.05;

// Says which rank is farthest from its plan, after a first step. Collective over `world`.
absl::Status ReportMemory(const RankMemory& mine, Communicator& world, Logger& log);

// The line: "memory: planned 812.4 MiB, measured 820.1 MiB (+0.9 %) on rank 3, ...". [rank]
std::string MemoryLine(std::span<const RankMemory> ranks);

// A record for people, with how far the run is.
Progress ProgressOf(const StepRecord& record, const TrainSpec& train);

}  // namespace deepnet

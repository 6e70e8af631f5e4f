// Measures the memory of ranks beside the plan's: real steps of a real plan, ranks as threads.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "parallel/comm/communicator.h"
#include "proto/plan.pb.h"
#include "proto/run.pb.h"
#include "trainer/data/microbatch.h"

namespace deepnet::testing {

struct RankBytes {
  MemoryEstimate planned;
  int64_t measured = 0;  // tensors and kernels' own memory, the most in the steps
  int64_t state = 0;     // weights, gradients and moments, as they lie there
  // Tensors that the steps added to what the rank was made with, moments aside.
  int64_t activations = 0;
  // The copy that a save would be written from, and what a plan with one counts for it.
  int64_t copied = 0, planned_copy = 0;
  // The same of the copy that instruments compare with.
  int64_t compared = 0, planned_compared = 0;

  int64_t PlannedState() const {
    return planned.weights() + planned.gradients() + planned.moments();
  }
  // (measured - planned) / planned
  double Difference() const;
  std::string ToText() const;
};

// `step` full microbatches of the run's capacity, sentences of `length` positions on both sides;
// ids are arbitrary.
StepBatch FullStep(const RunSpec& run, int64_t length);

// 500 + 500 layers of width 64 with FULL recomputation, 1F1B on `ranks` stages, 100 + 100
// positions a microbatch.
RunSpec ThousandLayers(int ranks, int microbatches);

// `run` with defaults and as planned on the ranks that run.parallel asks for. On the CPU with one
// thread, float32 and the native kernels, unless run.compute says otherwise.
struct PlannedRun {
  RunSpec run;
  Plan plan;
};

PlannedRun PlanRun(RunSpec run);

// Runs two steps of this rank. Collective over `world`, whose size is that of the plan.
absl::StatusOr<RankBytes> MeasureRank(const PlannedRun& planned, Communicator& world);

// Runs MeasureRank on every rank, as threads; the result is by rank.
std::vector<RankBytes> MeasureRanks(RunSpec run);

}  // namespace deepnet::testing

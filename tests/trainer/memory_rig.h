// What ranks hold, planned beside measured: real steps of a real plan, ranks as threads.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/plan.pb.h"
#include "proto/run.pb.h"
#include "trainer/data/microbatch.h"

namespace deepnet::testing {

struct RankBytes {
  MemoryEstimate planned;
  int64_t measured = 0;  // tensors and kernels' own memory, the most in the steps
  int64_t state = 0;     // weights, gradients and moments, as they lie there
  int64_t activations =
      0;  // tensors that the steps added to what the rank was made with, moments aside

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

// Plans `run` on the ranks that run.parallel asks for, then takes two steps on each. [rank]
std::vector<RankBytes> MeasureRanks(RunSpec run);

}  // namespace deepnet::testing

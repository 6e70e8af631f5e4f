// The dynamic loss scale of training in float16 (Micikevicius et al., 2018), as fairseq keeps it:
// the loss is multiplied by it, so that small gradients do not become 0 in float16, and the update
// divides by it. A step whose gradient overflows is left out and the scale halved; a number of
// steps without overflow doubles it. Norm and loss are the whole model's, so all ranks agree.
#pragma once

#include <cstdint>

#include "absl/status/status.h"

#include "proto/checkpoint.pb.h"
#include "proto/optim.pb.h"

namespace deepnet {

class DynamicLossScale {
 public:
  // Goes on from `state`; one without a scale is that of a new run. Fields of `optim` that are 0
  // have their defaults, the window that of a step of `microbatches`.
  DynamicLossScale(const OptimSpec& optim, int microbatches, const LossScale& state);

  // Returns the factor on the loss of the next step.
  double scale() const { return state_.scale(); }
  const LossScale& state() const { return state_; }

  // Takes note of a step. Fails with ExitCode::kDiverged where it overflowed and would need a scale
  // that is not above optim.min_loss_scale; the scale stays then.
  absl::Status Update(bool overflow);

 private:
  absl::Status Overflow();

  int64_t window_;
  double tolerance_, min_scale_, threshold_;
  LossScale state_;
};

}  // namespace deepnet

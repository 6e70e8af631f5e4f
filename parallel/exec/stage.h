// A Stage is one rank's part of the model for one optimizer step. parallel/ calls it and trainer/
// implements it, against the direction of includes.
//
// A stage owns one or more chunks, their weights, their gradient accumulators and the step's
// microbatches. The executor decides when; the stage, what.
//
// Contract:
//   - Every chunk sees each microbatch of the step once in Forward, then once in Backward, or once
//     in BackwardInput and later once in BackwardWeight. Many may be in between. Forwards of a
//     chunk come in ascending microbatch order, and so do its weight gradients (Backward,
//     BackwardWeight), so a stage may add as they arrive: the sum is a left fold over microbatches.
//   - Forward keeps what Backward needs; Backward (or BackwardWeight) releases it. All may add to
//     gradient accumulators (the output layer does so in Forward); none changes weights.
//   - An error ends the step; the stage can then only be reset by its owner or destroyed.
//   - Inputs of the first chunk and labels of the last are the stage's own business, and so is what
//     passes between two of its own chunks. What crosses a cut to another rank lies in buffers that
//     the stage owns; their number and sizes never change (StageMessages), so nothing is said about
//     shapes on the way:
//
//       Buffers(kInput, c, m)            received before   Forward(c, m), which ends their life
//       Buffers(kOutput, c, m)           filled by         Forward(c, m); live until Release
//       Buffers(kOutputGradient, c, m)   received before   Backward or BackwardInput, which ends it
//       Buffers(kInputGradient, c, m)    filled by         Backward or BackwardInput; until Release
//
//     Buffers may be called several times and always names the same memory until its life ends.
//     Received ones are asked for some actions ahead (ExecutorOptions::look_ahead), so several
//     microbatches have memory at once (parallel/plan/boundary_bytes.h), but never before the stage
//     has taken the actions on which their contents depend. The order of tensors is that of the
//     StageMessages on both sides.
#pragma once

#include <vector>

#include "absl/status/status.h"

#include "parallel/comm/communicator.h"

namespace deepnet {

// A side of a chunk at which tensors cross to or from another rank.
enum class Boundary { kInput, kOutput, kOutputGradient, kInputGradient };

class Stage {
 public:
  virtual ~Stage() = default;

  virtual absl::Status Forward(int chunk, int microbatch) = 0;
  virtual absl::Status Backward(int chunk, int microbatch) = 0;
  virtual absl::Status BackwardInput(int chunk, int microbatch) = 0;
  virtual absl::Status BackwardWeight(int chunk, int microbatch) = 0;

  virtual std::vector<Buffer> Buffers(Boundary boundary, int chunk, int microbatch) = 0;
  // kOutput and kInputGradient: they are sent, the memory is the stage's again.
  virtual void Release(Boundary boundary, int chunk, int microbatch) = 0;
};

}  // namespace deepnet

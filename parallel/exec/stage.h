// What a pipeline drives: one rank's part of the model for one optimizer step. The inversion of the
// tree's direction: parallel/ calls it, trainer/ implements it.
//
// A stage owns one or more chunks (contiguous layers of the Inventory), their weights, their
// gradient accumulators and the step's microbatches. The executor decides when; the stage, what.
//
// Contract:
//   - Every microbatch of the step sees Forward once, then Backward once. Several may be between
//     the two. Backwards of a chunk come in ascending microbatch order, so a stage may add
//     gradients as they arrive: the sum is a left fold over microbatches.
//   - Forward keeps what Backward needs; Backward releases it. Both may add to the stage's gradient
//     accumulators (the output layer does so in Forward, which comes in ascending order too);
//     neither changes weights.
//   - An error ends the step; the stage can then only be reset by its owner or destroyed.
//   - Inputs of the first chunk and labels of the last are the stage's own business. Boundary
//     tensors of a cut (Layer::inputs of its first layer) have constant shapes, so a pipelined
//     stage hands out buffers that are made once; with one stage there are none.
#pragma once

#include "absl/status/status.h"

namespace deepnet {

class Stage {
 public:
  virtual ~Stage() = default;

  virtual absl::Status Forward(int microbatch) = 0;
  virtual absl::Status Backward(int microbatch) = 0;
};

}  // namespace deepnet

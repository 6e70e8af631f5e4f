// One forward and one backward pass of a whole model, without a pipeline. Header-only.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "trainer/data/microbatch.h"
#include "trainer/model/pass.h"
#include "trainer/model/transformer.h"

namespace deepnet::testing {

// Returns the loss of `microbatch`, summed over its target tokens. With `training`: dropout keyed
// by (seed, step), and the gradient of the output layer is added.
inline LossSums Forward(Transformer& model, const Microbatch& microbatch, uint64_t seed,
                        int64_t step, bool training, LossArgs loss, Activations& kept) {
  LossSums sums;
  loss.sums = &sums;
  if (training) loss.dhidden_RD = kept.gradients.target_RD;
  model.chunks().at(0).Forward(MakePass(model.ops(), microbatch, seed, step, training), kept.values,
                               model.work(), kept.kept, loss);
  model.ops().session().ReadBack();
  return sums;
}

// Adds the gradients of everything below the output layer. Comes after Forward with `training` on
// the same `kept`.
inline void Backward(Transformer& model, const Microbatch& microbatch, uint64_t seed, int64_t step,
                     Activations& kept) {
  BoundaryActivations gradients = kept.gradients;
  model.chunks().at(0).Backward(MakePass(model.ops(), microbatch, seed, step, /*training=*/true),
                                gradients, kept.values.encoder_output_RD, model.work(), kept.kept);
}

}  // namespace deepnet::testing

// Floating-point operations on real tokens: what utilisation counts.
//
// Counted are matrix products, attention's included, 2 operations for a multiplication and an
// addition; padding, norms, softmax and the optimizer count nothing. Attention of s queries over
// s keys counts s^2 products of a query and a key, half of that where it is causal, whether a
// kernel computes the rest or not. The same rule holds for training and for search.
#pragma once

#include <string>

#include "proto/model.pb.h"
#include "proto/plan.pb.h"
#include "trainer/data/microbatch.h"

namespace deepnet {

// One training step: forward three times (forward, gradients of inputs, gradients of weights).
double StepFlops(const ModelSpec& model, const StepBatch& batch);

// A beam search over one sentence that ends after `target` tokens, `beam` hypotheses wide all the
// way: the encoder and the decoder's keys and values of `source` tokens once, the decoder and the
// output layer once a hypothesis. beam 1: the forward pass of the pair.
double SearchFlops(const ModelSpec& model, double source, double target, double beam);

// Returns the operations a second that a GPU is stated to do at most in products of `operands`:
// that of cluster.device_model, or else of the model that CUDA's name of it, `gpu`, tells. 0:
// neither says.
double StatedPeakFlops(const std::string& gpu, const ClusterSpec& cluster, DataType operands);

}  // namespace deepnet

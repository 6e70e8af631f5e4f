// What flows through the chunks of a model: a microbatch's rows, its values forward, its gradients
// backward, and which of them cross a cut of the chain.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "parallel/plan/inventory.h"
#include "trainer/data/microbatch.h"
#include "trainer/kernels/ops.h"
#include "trainer/model/deferred_weights.h"
#include "trainer/model/layer_done.h"
#include "trainer/model/pass.h"

namespace deepnet {

// One microbatch of one step, as every chunk sees it.
struct MicrobatchPass {
  PackedRows source, target;
  const int32_t* labels = nullptr;  // [T]
  uint64_t seed = 0;                // with step: keys of dropout
  int64_t step = 0;
  bool training = false;  // dropout on, state kept, gradients wanted
  // Backward: weight gradients of layers are recorded here instead of computed; null: computed.
  DeferredWeights* deferred = nullptr;
  const LayerDone* layer_done = nullptr;  // Backward: called for each layer; null: nobody asks
  SublayerProbe* probe = nullptr;         // Forward: told of each sub-layer; null: nobody asks
};

// `microbatch` must outlive the result.
MicrobatchPass MakePass(const Microbatch& microbatch, uint64_t seed, int64_t step, bool training);

// The tensors of one microbatch that flow through chunks: values forward, gradients backward.
struct Flow {
  at::Tensor source_RD;  // stream
  at::Tensor memory_RD;  // values: operand; gradients: stream
  at::Tensor target_RD;  // stream
};

// Which of them cross a cut.
struct CutTensors {
  bool source = false;
  bool memory = false;
  bool target = false;

  friend bool operator==(const CutTensors&, const CutTensors&) = default;
};

// Before layer `position` of the whole chain; none at its ends.
CutTensors CutBefore(const Inventory& whole, int position);

// Rows of a packed side as the kernels want them; `side` and `pairs` must outlive the result.
PackedRows RowsOf(const PackedSide& side, const std::vector<uint32_t>& pairs, int num_sentences);

}  // namespace deepnet

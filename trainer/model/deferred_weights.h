// Weight gradients put off: the B/W split of a pipeline's backward pass.
//
// With MicrobatchPass::deferred set, the products that make weight gradients are recorded instead
// of computed; Compute does them later. Zero-bubble schedules (Qi et al., 2023, arXiv:2401.10241)
// fill a pipeline's idle time with them. Each weight gets the same sums in the same order either
// way, as long as the microbatches of a chunk run in ascending order, so the bits are equal.
//
// Matrices and biases of linear layers are deferred, but not a bias before a ReLU on a GPU, nor
// norms, schemes, embeddings and the output layer: the pass itself makes their sums.
//
// A chunk uses one object per microbatch between its two actions. Gradients and inputs are copied,
// so after the first one everything else that the microbatch kept is free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "trainer/kernels/ops.h"
#include "trainer/model/pass.h"

namespace deepnet {

// Matrices for reuse; one pool serves all chunks of a rank. Not thread-safe.
class TensorPool {
 public:
  // Contents are those of an earlier use. The free matrix at the lowest address is taken, so that
  // equal steps use equal memory.
  at::Tensor Take(int64_t rows, int64_t columns, const at::TensorOptions& options);
  void Give(at::Tensor tensor) { free_.push_back(std::move(tensor)); }

 private:
  std::vector<at::Tensor> free_;
};

class DeferredWeights {
 public:
  // `pool` must outlive this object.
  explicit DeferredWeights(TensorPool& pool) : pool_(&pool) {}
  DeferredWeights(DeferredWeights&&) = default;
  DeferredWeights& operator=(DeferredWeights&&) = default;

  // The arguments of a call of LinearBackwardWeight. dw and dbias are accumulators.
  struct Record {
    int64_t rows;
    at::Tensor dy_RO, x_RI, dw_OI, dbias_O;
  };

  // Records the call, with copies of the first `rows` rows of dy and x. `one_input`: x holds the
  // same numbers in all such calls up to Compute, so that one copy serves them.
  void Add(Ops& ops, Record record, bool one_input);

  // Ends the records of `layer`, those added since the last call: for pass.layer_done.
  void EndLayer(int layer) { ends_.push_back({records_.size(), layer}); }

  // Computes all records in the order they were added. Calls `layer_done`, if not null, as soon as
  // a layer of EndLayer has all its gradients.
  void Compute(Ops& ops, const LayerDone* layer_done = nullptr) const;
  // Forgets all records; their buffers are the pool's again.
  void Clear();

  const std::vector<at::Tensor>& copies() const { return copies_; }

 private:
  struct Input {
    const void* original;
    at::Tensor copy_RI;
  };
  struct LayerEnd {
    size_t records;  // up to it
    int layer;
  };

  at::Tensor CopyOf(Ops& ops, int64_t rows, const at::Tensor& x_RC);

  TensorPool* pool_;
  std::vector<Record> records_;
  std::vector<LayerEnd> ends_;      // rising records
  std::vector<at::Tensor> copies_;  // all of them, each once
  std::vector<Input> inputs_;       // those that serve several records
};

}  // namespace deepnet

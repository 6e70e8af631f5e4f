// Weights, gradients and moments of a model as flat buffers in the order of its Inventory.
//
// A tensor of the model is a view: nothing is stored twice, the optimizer walks one buffer, a
// checkpoint names slices of it. Each use of a tied tensor (source embedding, target embedding,
// output) has a gradient accumulator of its own; FoldTied adds them once per step in that order, so
// that their sum does not depend on where a pipeline was cut.
#pragma once

#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include <ATen/core/Tensor.h>

#include "parallel/plan/inventory.h"
#include "trainer/kernels/ops.h"

namespace deepnet {

// Who adds to the gradient of an embedding matrix. The order is that of FoldTied.
enum class EmbeddingUse { kSource, kTarget, kOutput };

class Parameters {
 public:
  // Float32 masters on the stream's device. `trainable`: with gradients and moments.
  Parameters(Inventory inventory, const Ops& ops, bool trainable);

  const Inventory& inventory() const { return inventory_; }
  bool trainable() const { return gradient_.defined(); }

  // Initial values: a function of (seed, name, element) alone (docs/design/random.md).
  void Initialize(uint64_t seed);

  // The master of `name`, in its shape. DEEPNET_CHECKs that it exists.
  at::Tensor Get(const std::string& name) const;
  // Masters of `names`, adjacent in flat order and of equal width, as one matrix (or vector).
  at::Tensor GetJoined(const std::vector<std::string>& names) const;
  // Accumulators in the same shapes; undefined tensors if not trainable.
  at::Tensor Gradient(const std::string& name) const;
  at::Tensor GradientJoined(const std::vector<std::string>& names) const;
  // The accumulator of one use of the embedding matrix `name`.
  at::Tensor EmbeddingGradient(const std::string& name, EmbeddingUse use);

  // Adds the accumulators of later uses to the first and clears rows that must stay zero.
  void FoldTied(Ops& ops);

  const at::Tensor& weights() const { return weights_; }    // [n]
  const at::Tensor& gradient() const { return gradient_; }  // [n + accumulators of later uses]
  at::Tensor FoldedGradient() const;                        // [n], valid after FoldTied
  const at::Tensor& moment1() const { return moment1_; }    // [n]
  const at::Tensor& moment2() const { return moment2_; }    // [n]

 private:
  const Parameter& Find(const std::string& name) const;
  at::Tensor Joined(const at::Tensor& flat, const std::vector<std::string>& names) const;

  struct LaterUse {
    std::string name;
    EmbeddingUse use;
    int64_t offset;  // in gradient_
  };

  Inventory inventory_;
  absl::flat_hash_map<std::string, int> index_;
  std::vector<LaterUse> later_uses_;  // in order of use
  at::Tensor weights_, gradient_, moment1_, moment2_;
};

}  // namespace deepnet

// Weights, gradients and moments of a model, or of the layers of it that one rank holds, as flat
// buffers.
//
// A tensor of the model is a view: nothing is stored twice, the optimizer walks ranges, a
// checkpoint names slices. Weights and moments stand in the order of the Inventory, each tied
// tensor once. Gradients stand in the order of the layers, and inside a layer in that of its
// parameters: every use of a tied tensor (source embedding, target embedding, output) has an
// accumulator of its own inside its layer's range, so that the gradient of any run of layers is one
// range, and no sum depends on where a pipeline was cut. GradientSums (trainer/optim) adds the uses
// once per step.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include <ATen/core/Tensor.h>

#include "parallel/plan/inventory.h"
#include "proto/data.pb.h"
#include "proto/model.pb.h"
#include "trainer/kernels/ops.h"

namespace deepnet {

// The accumulator of one parameter in one layer.
struct Use {
  int layer = 0;                // index into inventory().layers
  int parameter = 0;            // index into inventory().parameters
  int64_t gradient_offset = 0;  // first element in gradient()
  int64_t weight_offset = 0;    // first element in weights() and the moments
  int64_t count = 0;            // elements

  friend bool operator==(const Use&, const Use&) = default;
};

// Elements [begin, begin + count) of gradient().
struct GradientSpan {
  int64_t begin = 0;
  int64_t count = 0;

  friend bool operator==(const GradientSpan&, const GradientSpan&) = default;
};

// A parameter and its accumulator, which is undefined where nothing is trained.
struct TrainedTensor {
  at::Tensor value, gradient;
};

class Parameters {
 public:
  // Masters of residual type on the device of `ops`, which outlives them. `trainable`: with
  // gradients and moments. `inventory` describes a whole model, or is the part of one that Select
  // returned.
  Parameters(Inventory inventory, Ops& ops, bool trainable);

  const Inventory& inventory() const { return inventory_; }
  bool trainable() const { return gradient_.defined(); }

  // Initial values: a function of (seed, name, element) alone (docs/design/random.md). They are
  // drawn where they lie, by all threads of a CPU.
  void Initialize(uint64_t seed);

  // Returns the master of `name` in its shape. DEEPNET_CHECKs that it exists.
  at::Tensor Get(const std::string& name) const { return GetJoined({name}); }
  // Returns the masters of `names`, which are adjacent in flat order and have equal width, as one
  // matrix (or vector).
  at::Tensor GetJoined(const std::vector<std::string>& names) const;
  // Return accumulators in the same shapes; undefined tensors if not trainable. For a tied tensor:
  // the accumulator of its first use here.
  at::Tensor Gradient(const std::string& name) const { return GradientJoined({name}); }
  at::Tensor GradientJoined(const std::vector<std::string>& names) const;
  TrainedTensor Trained(const std::string& name) const { return {Get(name), Gradient(name)}; }
  // Makes the working copy of GetJoined(names) that products read, up to date after Refresh, with
  // the form for backward passes if trainable. It lives as long as this.
  const Weight* MakeWeight(const std::vector<std::string>& names) const;
  // Takes over the masters, after they moved, in all working copies.
  void Refresh() const;
  // Returns the accumulator of the embedding matrix `name` in the layer of kind `use`: source
  // embedding, target embedding or output. DEEPNET_CHECKs that this part has that layer.
  at::Tensor EmbeddingGradient(const std::string& name, LayerKind use) const;

  // All accumulators, in the order of gradient(), without gaps.
  const std::vector<Use>& uses() const { return uses_; }
  // Returns the accumulators of layers [first, end) of inventory().layers.
  GradientSpan GradientRange(int first_layer, int end_layer) const;

  const at::Tensor& weights() const { return weights_; }    // [n]
  const at::Tensor& gradient() const { return gradient_; }  // [elements of all uses]
  // Moments of the optimizer; allocated by the first call.
  const at::Tensor& moment1() const { return Moment(moment1_); }  // [n], or [elements]
  const at::Tensor& moment2() const { return Moment(moment2_); }
  // For a rank that updates a share of its weights only: moments have `elements` elements, in the
  // order of the share (parallel/plan/shard.h). Must be called before moment1 and moment2; calling
  // it again with the same number changes nothing.
  void ShardMoments(int64_t elements);

  // The exponential moving average of the weights (optim.ema_decay), in the moments' order;
  // undefined until KeepAverage, which allocates it and which ShardMoments comes before.
  const at::Tensor& average() const { return average_; }
  void KeepAverage();

 private:
  const Use& FirstUse(const std::string& name) const;
  at::Tensor Joined(const at::Tensor& flat, int64_t Use::*offset,
                    const std::vector<std::string>& names) const;
  const at::Tensor& Moment(at::Tensor& moment) const;

  Ops& ops_;
  Inventory inventory_;
  std::vector<Use> uses_;
  std::vector<int> first_use_;                   // [parameter], index into uses_
  absl::flat_hash_map<std::string, int> index_;  // of inventory_.parameters by name
  int64_t moment_elements_ = 0;
  at::Tensor weights_, gradient_, average_;
  mutable at::Tensor moment1_, moment2_;  // undefined before the first call
  mutable std::vector<std::unique_ptr<Weight>> working_copies_;
};

// The arguments that all parts of a model are built with. `ops` and `parameters` outlive the parts.
struct BuildContext {
  const ModelSpec& spec;
  const MicrobatchSpec& capacity;
  Ops& ops;
  const Parameters& parameters;
};

}  // namespace deepnet

// What a planner, a sharder, an initialiser and a checkpoint may know of a model: its layers in
// order with their costs, its parameters with name, shape and role, and what crosses each cut.
// No tensors, no Transformer: the one list that everybody shares.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace deepnet {

// What a parameter is for. Initial scale, weight decay and sharding follow from it, never from the
// name.
enum class Role {
  kEmbedding,        // rows of tokens: source, target, output, or tied
  kPosition,         // rows of learned positions
  kQuery,            // q_proj and its bias
  kKey,              // k_proj and its bias
  kValue,            // v_proj and its bias: scaled by beta
  kAttentionOutput,  // out_proj and its bias: scaled by beta
  kFeedForward,      // fc1, fc2 and their biases: scaled by beta
  kNormGain,         // starts at 1
  kNormBias,         // starts at 0
  kResidualScale,    // a trained factor of a residual scheme: on a stream, a branch or a head
  kResidualShift,    // a trained number that a residual scheme subtracts
};

struct Parameter {
  std::string name;            // "encoder.layers.0.self_attn.q_proj.weight"
  std::vector<int64_t> shape;  // [out, in] or [n]
  Role role;
  double initial_std = 0.0;    // of a matrix, mean 0; 0: see initial_value
  float initial_value = 0.0f;  // of gains, biases
  int64_t offset = 0;          // first element in the flat order of the Inventory
  int zero_row = -1;           // this row starts at 0 and stays there (padding); -1: none

  int64_t NumElements() const;
  friend bool operator==(const Parameter&, const Parameter&) = default;
};

// kTargetEmbedding and kDecoder: of the rows that the output layer reads.
enum class LayerKind { kSourceEmbedding, kEncoder, kTargetEmbedding, kDecoder, kOutput };

// The stream of activations, which the layer behind a cut consumes: counted in that layer's
// activations. Boundary tensors of other names are kept once per rank and microbatch.
inline constexpr std::string_view kHidden = "hidden";

// A tensor that a cut before a layer has to carry.
struct BoundaryTensor {
  std::string name;            // "hidden", "memory"
  std::vector<int64_t> shape;  // [rows, width] with the microbatch's capacities
  std::string dtype;           // "float32"
  bool needs_gradient = true;

  friend bool operator==(const BoundaryTensor&, const BoundaryTensor&) = default;
};

// One indivisible piece of the chain: source embedding, encoder layers, target embedding, decoder
// layers, output. A model of one stack has the latter three alone, and no memory.
struct Layer {
  std::string name;  // "encoder.layers.3"
  LayerKind kind;
  int index = 0;     // within its stack
  int position = 0;  // within the whole chain; a rank's part of the Inventory keeps it
  std::vector<int>
      parameters;  // indices into Inventory::parameters; a tied one appears in several layers
  double forward_flops = 0.0;  // of a full microbatch: 2 per multiply-add of every matrix product
  // Kept from forward to backward of a full microbatch: float32 state (residual stream,
  // statistics), and elements that have the type of the products' operands.
  int64_t activation_bytes = 0;
  int64_t activation_operands = 0;  // elements
  // Parts of activation_bytes: what is given up with the feed-forward block's inner rows where
  // those are computed again, and what is kept at every level of recomputation.
  int64_t inner_bytes = 0;
  int64_t lasting_bytes = 0;
  int64_t constant_bytes = 0;          // of what is looked up and never learned
  std::vector<BoundaryTensor> inputs;  // what crosses a cut before this layer, in order

  friend bool operator==(const Layer&, const Layer&) = default;
};

// Whether it takes more than the stream from layers before it.
bool ReadsMemory(const Layer& layer);

// What some models need once for each stack that a rank has layers of, whatever is in flight.
struct StackExtras {
  int streams = 0;        // float32, of the stack's rows and the width
  int64_t converted = 0;  // features of the widest operand rows that native kernels want in float32
  int64_t over_rows = 0;  // features of the widest rows with sums over rows that these kernels take

  friend bool operator==(const StackExtras&, const StackExtras&) = default;
};

// All of a model. Parameters are in flat order: that of layers, and within one layer q, k, v
// weights are adjacent, then their biases, so that fused products need no copies.
struct Inventory {
  std::vector<Parameter> parameters;
  std::vector<Layer> layers;
  // Why no pipeline can cut the chain, naming the field that says so; empty: it can be cut.
  std::string one_piece = {};
  StackExtras extras = {};

  int64_t NumElements() const;  // of all parameters, each tied tensor once
  std::string Hash() const;     // hexadecimal FNV-1a of names and shapes in order

  friend bool operator==(const Inventory&, const Inventory&) = default;
};

// Layers [first, end) of Inventory::layers.
struct LayerSpan {
  int first = 0;
  int end = 0;

  int NumLayers() const { return end - first; }
  friend bool operator==(const LayerSpan&, const LayerSpan&) = default;
};

// What a rank holds that computes `spans`, which ascend and do not overlap: their layers in chain
// order and the parameters that these use, each once, in order of first use. Indices and offsets
// are the part's own; Layer::position still counts in `inventory`.
Inventory Select(const Inventory& inventory, std::span<const LayerSpan> spans);

// "kValue" -> "value"; "kEncoder" -> "encoder layer": for tables.
std::string_view RoleName(Role role);
std::string_view LayerKindName(LayerKind kind);

}  // namespace deepnet

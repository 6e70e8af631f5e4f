// A builder that appends layers in chain order and, inside each, parameters in flat order: the
// offset of a parameter is the number of elements appended before it. Tied matrices are appended
// where they are used first and referred to from later layers by index.
//
// Costs are those of a full microbatch (S source, T target positions) whose sentences have mean
// length S/B and T/B: two operations per multiply-add of each matrix product, attention over whole
// sentences (a decoder's causal half is not subtracted: kernels may or may not skip it).

#include "trainer/model/describe.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

#include "parallel/base/check.h"
#include "trainer/model/depth_scaling.h"

namespace deepnet {
namespace {

constexpr int kPadRow = 1;        // id of <pad>
constexpr int kBytesOfFloat = 4;  // residual stream, statistics
constexpr char kStreamType[] = "float32";

// Bytes of a dropout mask, one bit a feature; none where nothing is dropped.
int64_t MaskBytes(int64_t rows, int64_t features, double rate) {
  return rate > 0 ? rows * ((features + 7) / 8) : 0;
}

struct Builder {
  const ModelSpec& model;
  const MicrobatchSpec& batch;
  const DepthScaling scaling;
  Inventory inventory = {};
  int64_t offset = 0;

  int64_t Width() const { return model.width(); }
  int64_t FfnWidth() const { return model.ffn_width(); }
  int64_t SourceRows() const { return batch.source_tokens(); }
  int64_t TargetRows() const { return batch.target_tokens(); }
  double SourceLength() const { return Mean(SourceRows()); }
  double TargetLength() const { return Mean(TargetRows()); }
  double Mean(int64_t rows) const {
    return static_cast<double>(rows) / std::max(1, batch.sentences());
  }

  Layer& AddLayer(LayerKind kind, std::string name, int index);
  void AddParameter(Parameter parameter);
  void AddUse(std::string_view name);
  void AddTable(std::string name, Role role, int64_t rows, int zero_row);
  void AddWeight(std::string_view block, Role role, int64_t out, int64_t in, double gain);
  void AddBias(std::string_view block, Role role, int64_t out);
  void AddNorm(std::string_view block);
  void AddSelfAttention(std::string_view block, double beta);
  void AddCrossAttention(std::string_view block, double beta);
  void AddFeedForward(std::string_view layer, double beta);

  int64_t JoinBytes(int64_t rows) const;
  void KeepEmbedding(Layer& layer, int64_t rows) const;
  void KeepAttention(Layer& layer, int64_t rows, int64_t key_rows) const;
  void KeepFeedForward(Layer& layer, int64_t rows) const;
  void KeepFinalNorm(Layer& layer, int64_t rows) const;

  BoundaryTensor Memory() const { return {"memory", {SourceRows(), Width()}, kStreamType, true}; }
  BoundaryTensor Hidden(int64_t rows) const {
    return {"hidden", {rows, Width()}, kStreamType, true};
  }

  void AddSourceEmbedding();
  void AddEncoderLayer(int index);
  void AddTargetEmbedding();
  void AddDecoderLayer(int index);
  void AddOutput();
};

Layer& Builder::AddLayer(LayerKind kind, std::string name, int index) {
  Layer& layer = inventory.layers.emplace_back();
  layer.kind = kind;
  layer.name = std::move(name);
  layer.index = index;
  layer.position = static_cast<int>(inventory.layers.size()) - 1;
  return layer;
}

// To the flat order and to the layer that was added last.
void Builder::AddParameter(Parameter parameter) {
  parameter.offset = offset;
  offset += parameter.NumElements();
  inventory.layers.back().parameters.push_back(static_cast<int>(inventory.parameters.size()));
  inventory.parameters.push_back(std::move(parameter));
}

// The layer that was added last uses a parameter of an earlier layer.
void Builder::AddUse(std::string_view name) {
  const std::vector<Parameter>& all = inventory.parameters;
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const Parameter& p) { return p.name == name; });
  DEEPNET_CHECK(found != all.end()) << name << " is used before it is made";
  inventory.layers.back().parameters.push_back(static_cast<int>(found - all.begin()));
}

void Builder::AddTable(std::string name, Role role, int64_t rows, int zero_row) {
  AddParameter({.name = std::move(name),
                .shape = {rows, Width()},
                .role = role,
                .initial_std = 1.0 / std::sqrt(static_cast<double>(Width())),
                .zero_row = zero_row});
}

void Builder::AddWeight(std::string_view block, Role role, int64_t out, int64_t in, double gain) {
  AddParameter({.name = std::string(block) + ".weight",
                .shape = {out, in},
                .role = role,
                .initial_std = gain * std::sqrt(2.0 / static_cast<double>(in + out))});
}

void Builder::AddBias(std::string_view block, Role role, int64_t out) {
  AddParameter({.name = std::string(block) + ".bias", .shape = {out}, .role = role});
}

void Builder::AddNorm(std::string_view block) {
  AddParameter({.name = std::string(block) + ".weight",
                .shape = {Width()},
                .role = Role::kNormGain,
                .initial_value = 1.0f});
  AddBias(block, Role::kNormBias, Width());
}

void Builder::AddSelfAttention(std::string_view block, double beta) {
  const std::string base(block);
  AddWeight(base + ".q_proj", Role::kQuery, Width(), Width(), 1.0);
  AddWeight(base + ".k_proj", Role::kKey, Width(), Width(), 1.0);
  AddWeight(base + ".v_proj", Role::kValue, Width(), Width(), beta);
  AddBias(base + ".q_proj", Role::kQuery, Width());
  AddBias(base + ".k_proj", Role::kKey, Width());
  AddBias(base + ".v_proj", Role::kValue, Width());
  AddWeight(base + ".out_proj", Role::kAttentionOutput, Width(), Width(), beta);
  AddBias(base + ".out_proj", Role::kAttentionOutput, Width());
  AddNorm(base + "_layer_norm");
}

void Builder::AddCrossAttention(std::string_view block, double beta) {
  const std::string base(block);
  AddWeight(base + ".q_proj", Role::kQuery, Width(), Width(), 1.0);
  AddBias(base + ".q_proj", Role::kQuery, Width());
  AddWeight(base + ".k_proj", Role::kKey, Width(), Width(), 1.0);
  AddWeight(base + ".v_proj", Role::kValue, Width(), Width(), beta);
  AddBias(base + ".k_proj", Role::kKey, Width());
  AddBias(base + ".v_proj", Role::kValue, Width());
  AddWeight(base + ".out_proj", Role::kAttentionOutput, Width(), Width(), beta);
  AddBias(base + ".out_proj", Role::kAttentionOutput, Width());
  AddNorm(base + "_layer_norm");
}

void Builder::AddFeedForward(std::string_view layer, double beta) {
  const std::string base(layer);
  AddWeight(base + ".fc1", Role::kFeedForward, FfnWidth(), Width(), beta);
  AddBias(base + ".fc1", Role::kFeedForward, FfnWidth());
  AddWeight(base + ".fc2", Role::kFeedForward, Width(), FfnWidth(), beta);
  AddBias(base + ".fc2", Role::kFeedForward, Width());
  AddNorm(base + ".final_layer_norm");
}

// An embedding keeps its stack's stream, the first branch's input and its dropout's mask.
void Builder::KeepEmbedding(Layer& layer, int64_t rows) const {
  layer.activation_bytes =
      kBytesOfFloat * rows * Width() + MaskBytes(rows, Width(), model.dropout());
  layer.activation_operands = rows * Width();
  if (model.positions() != LEARNED) {
    layer.constant_bytes = kBytesOfFloat * int64_t{model.max_positions()} * Width();
  }
}

void Builder::AddSourceEmbedding() {
  Layer& layer = AddLayer(LayerKind::kSourceEmbedding, "encoder.embedding", 0);
  KeepEmbedding(layer, SourceRows());
  const bool shared = model.tied_embeddings() == TIE_ALL;
  AddTable(shared ? "shared.weight" : "encoder.embed_tokens.weight", Role::kEmbedding,
           model.vocabulary_size(), kPadRow);
  if (model.positions() == LEARNED) {
    AddTable("encoder.embed_positions.weight", Role::kPosition, model.max_positions(), -1);
  }
}

void Builder::AddTargetEmbedding() {
  Layer& layer = AddLayer(LayerKind::kTargetEmbedding, "decoder.embedding", 0);
  layer.inputs = {Memory()};
  KeepEmbedding(layer, TargetRows());
  if (model.tied_embeddings() == TIE_ALL) {
    AddUse("shared.weight");
  } else {
    AddTable("decoder.embed_tokens.weight", Role::kEmbedding, model.vocabulary_size(), kPadRow);
  }
  if (model.positions() == LEARNED) {
    AddTable("decoder.embed_positions.weight", Role::kPosition, model.max_positions(), -1);
  }
}

// What the join of one sub-layer keeps of `rows` rows: the normalised stream and its reciprocal
// deviation in float32, one bit a feature for dropout.
int64_t Builder::JoinBytes(int64_t rows) const {
  return kBytesOfFloat * rows * (Width() + 1) + MaskBytes(rows, Width(), model.dropout());
}

// Attention keeps q, context and one log-sum a head of `rows` rows, k and v of `key_rows` rows.
void Builder::KeepAttention(Layer& layer, int64_t rows, int64_t key_rows) const {
  layer.activation_bytes += JoinBytes(rows) + kBytesOfFloat * rows * model.heads();
  layer.activation_operands += 2 * (rows + key_rows) * Width();
}

// The feed-forward block keeps its hidden rows, with GELU also before the activation.
void Builder::KeepFeedForward(Layer& layer, int64_t rows) const {
  layer.inner_bytes = MaskBytes(rows, FfnWidth(), model.activation_dropout());
  layer.activation_bytes += JoinBytes(rows) + layer.inner_bytes;
  layer.activation_operands += rows * FfnWidth() * (model.activation() == GELU ? 2 : 1);
}

// The normalisation behind a stack, which belongs to no layer and is never computed again.
void Builder::KeepFinalNorm(Layer& layer, int64_t rows) const {
  layer.lasting_bytes = kBytesOfFloat * rows * (Width() + 1);
  layer.activation_bytes += layer.lasting_bytes;
}

// Products: q, k, v, out (4 d^2), feed-forward (2 d f), scores and mixing of attention.
void Builder::AddEncoderLayer(int index) {
  const std::string name = absl::StrCat("encoder.layers.", index);
  Layer& layer = AddLayer(LayerKind::kEncoder, name, index);
  const double d = Width(), f = FfnWidth(), s = SourceRows();
  layer.forward_flops = 2 * s * (4 * d * d + 2 * d * f) + 4 * s * SourceLength() * d;
  KeepAttention(layer, SourceRows(), SourceRows());
  KeepFeedForward(layer, SourceRows());
  layer.inputs = {Hidden(SourceRows())};
  AddSelfAttention(name + ".self_attn", scaling.encoder_beta);
  AddFeedForward(name, scaling.encoder_beta);
  if (model.residual() == PRE_LN && index + 1 == model.encoder_layers()) {
    KeepFinalNorm(layer, SourceRows());
    AddNorm("encoder.layer_norm");
  }
}

// As an encoder layer, with a second attention whose keys and values come from the memory. The
// memory itself is kept once per rank: the planner adds it.
void Builder::AddDecoderLayer(int index) {
  const std::string name = absl::StrCat("decoder.layers.", index);
  Layer& layer = AddLayer(LayerKind::kDecoder, name, index);
  const double d = Width(), f = FfnWidth(), s = SourceRows(), t = TargetRows();
  layer.forward_flops = 2 * t * (6 * d * d + 2 * d * f) + 2 * s * 2 * d * d +
                        4 * t * (TargetLength() + SourceLength()) * d;
  KeepAttention(layer, TargetRows(), TargetRows());
  KeepAttention(layer, TargetRows(), SourceRows());
  KeepFeedForward(layer, TargetRows());
  layer.inputs = {Memory(), Hidden(TargetRows())};
  AddSelfAttention(name + ".self_attn", scaling.decoder_beta);
  AddCrossAttention(name + ".encoder_attn", scaling.decoder_beta);
  AddFeedForward(name, scaling.decoder_beta);
  if (model.residual() == PRE_LN && index + 1 == model.decoder_layers()) {
    KeepFinalNorm(layer, TargetRows());
    AddNorm("decoder.layer_norm");
  }
}

// Kept: the gradient of the last hidden rows, which the loss leaves on its way forward. Logits live
// in the workspace.
void Builder::AddOutput() {
  Layer& layer = AddLayer(LayerKind::kOutput, "output", 0);
  layer.forward_flops = 2.0 * TargetRows() * Width() * model.vocabulary_size();
  layer.activation_bytes = kBytesOfFloat * TargetRows() * Width();
  layer.inputs = {Hidden(TargetRows())};
  switch (model.tied_embeddings()) {
    case TIE_DECODER:
      return AddUse("decoder.embed_tokens.weight");
    case TIE_NONE:
      return AddTable("lm_head.weight", Role::kEmbedding, model.vocabulary_size(), -1);
    default:
      return AddUse("shared.weight");
  }
}

}  // namespace

Inventory Describe(const ModelSpec& model, const MicrobatchSpec& microbatch) {
  Builder builder{.model = model, .batch = microbatch, .scaling = MakeDepthScaling(model)};
  builder.AddSourceEmbedding();
  for (int i = 0; i < model.encoder_layers(); ++i) builder.AddEncoderLayer(i);
  builder.AddTargetEmbedding();
  for (int i = 0; i < model.decoder_layers(); ++i) builder.AddDecoderLayer(i);
  builder.AddOutput();
  return std::move(builder.inventory);
}

}  // namespace deepnet

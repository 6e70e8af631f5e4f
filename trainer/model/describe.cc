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
#include "trainer/model/scheme.h"

namespace deepnet {
namespace {

constexpr int kPadRow = 1;        // id of <pad>
constexpr int kBytesOfFloat = 4;  // residual stream, statistics
constexpr char kStreamType[] = "float32";

// Bytes of a dropout mask, one bit a feature; none where nothing is dropped.
int64_t MaskBytes(int64_t rows, int64_t features, double rate) {
  return rate > 0 ? rows * ((features + 7) / 8) : 0;
}

// A sub-layer's place, and what the model's scheme makes of it.
struct Sublayer {
  int stack = 0;
  int layer = 0;
  SublayerKind kind = SublayerKind::kSelfAttention;
  SublayerScheme scheme;
  std::string prefix;  // "encoder.layers.3."
};

struct Builder {
  const ModelSpec& model;
  const MicrobatchSpec& batch;
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
  void AddTable(std::string name, Role role, int64_t rows, int zero_row, double gain);
  void AddWeight(const std::string& block, Role role, int64_t out, int64_t in, double gain);
  void AddBias(const std::string& block, Role role, int64_t out);
  void AddNorm(const std::string& block, int64_t features);
  void AddVector(std::string name, Role role, int64_t size, double value);
  void AddQueryKeyValue(const std::string& block, const Sublayer& sublayer);
  void AddLast(const std::string& block, Role role, int64_t in, const Sublayer& sublayer);
  void AddAttention(const Sublayer& sublayer);
  void AddFeedForward(const Sublayer& sublayer);
  void AddJoin(const Sublayer& sublayer);
  void AddStackEnd(int stack);
  void AddHistory(int stack, int index, Layer& layer, int64_t rows);
  void AddEmbeddingNorm(int stack, Layer& layer, int64_t rows);

  void KeepJoin(Layer& layer, const Sublayer& sublayer, int64_t rows) const;
  void KeepEmbedding(Layer& layer, int64_t rows) const;
  void KeepAttention(Layer& layer, const Sublayer& sublayer, int64_t rows, int64_t key_rows) const;
  void KeepFeedForward(Layer& layer, const Sublayer& sublayer, int64_t rows) const;
  void KeepStackEnd(Layer& layer, int64_t rows) const;

  Sublayer MakeSublayer(int stack, int layer, SublayerKind kind) const;
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

void Builder::AddTable(std::string name, Role role, int64_t rows, int zero_row, double gain) {
  AddParameter({.name = std::move(name),
                .shape = {rows, Width()},
                .role = role,
                .initial_std = gain / std::sqrt(static_cast<double>(Width())),
                .zero_row = zero_row});
}

void Builder::AddWeight(const std::string& block, Role role, int64_t out, int64_t in, double gain) {
  AddParameter({.name = absl::StrCat(block, ".weight"),
                .shape = {out, in},
                .role = role,
                .initial_std = gain * std::sqrt(2.0 / static_cast<double>(in + out))});
}

void Builder::AddBias(const std::string& block, Role role, int64_t out) {
  if (!HasBiases(model)) return;
  AddParameter({.name = absl::StrCat(block, ".bias"), .shape = {out}, .role = role});
}

void Builder::AddNorm(const std::string& block, int64_t features) {
  AddVector(absl::StrCat(block, ".weight"), Role::kNormGain, features, 1.0);
  if (HasNormBiases(model)) AddVector(absl::StrCat(block, ".bias"), Role::kNormBias, features, 0.0);
}

void Builder::AddVector(std::string name, Role role, int64_t size, double value) {
  AddParameter({.name = std::move(name),
                .shape = {size},
                .role = role,
                .initial_value = static_cast<float>(value)});
}

Sublayer Builder::MakeSublayer(int stack, int layer, SublayerKind kind) const {
  return {stack, layer, kind, MakeSublayerScheme(model, stack, layer, kind),
          absl::StrCat(StackName(stack), "layers.", layer, ".")};
}

// Matrices of equal input stand together, so that one product makes them all.
void Builder::AddQueryKeyValue(const std::string& block, const Sublayer& s) {
  const bool apart = s.kind == SublayerKind::kCrossAttention;  // queries come from another stream
  const auto gain = [&](Role role) {
    return InitialGain(model, s.stack, s.layer, s.kind, role, /*last=*/false);
  };
  AddWeight(absl::StrCat(block, ".q_proj"), Role::kQuery, Width(), Width(), gain(Role::kQuery));
  if (apart) AddBias(absl::StrCat(block, ".q_proj"), Role::kQuery, Width());
  AddWeight(absl::StrCat(block, ".k_proj"), Role::kKey, Width(), Width(), gain(Role::kKey));
  AddWeight(absl::StrCat(block, ".v_proj"), Role::kValue, Width(), Width(), gain(Role::kValue));
  if (!apart) AddBias(absl::StrCat(block, ".q_proj"), Role::kQuery, Width());
  AddBias(absl::StrCat(block, ".k_proj"), Role::kKey, Width());
  AddBias(absl::StrCat(block, ".v_proj"), Role::kValue, Width());
}

// The last matrix of a branch.
void Builder::AddLast(const std::string& block, Role role, int64_t in, const Sublayer& s) {
  AddWeight(block, role, Width(), in,
            InitialGain(model, s.stack, s.layer, s.kind, role, /*last=*/true));
  AddBias(block, role, Width());
}

void Builder::AddAttention(const Sublayer& s) {
  const std::string block = s.prefix + BaseName(s.kind);
  AddQueryKeyValue(block, s);
  AddLast(block + ".out_proj", Role::kAttentionOutput, Width(), s);
  AddJoin(s);
}

void Builder::AddFeedForward(const Sublayer& s) {
  AddWeight(s.prefix + "fc1", Role::kFeedForward, FfnWidth(), Width(),
            InitialGain(model, s.stack, s.layer, s.kind, Role::kFeedForward, /*last=*/false));
  AddBias(s.prefix + "fc1", Role::kFeedForward, FfnWidth());
  AddLast(s.prefix + "fc2", Role::kFeedForward, FfnWidth(), s);
  AddJoin(s);
}

// Norms, factors and shifts of one sub-layer (trainer/model/scheme.h).
void Builder::AddJoin(const Sublayer& s) {
  const SublayerScheme& scheme = s.scheme;
  const bool block = s.kind == SublayerKind::kFeedForward;
  if (scheme.input_norm) AddNorm(s.prefix + NormName(s.kind), Width());
  if (scheme.inner_norm) AddNorm(s.prefix + InnerNormName(s.kind), block ? FfnWidth() : Width());
  if (scheme.output_norm) AddNorm(s.prefix + OutputNormName(s.kind), Width());
  if (scheme.end_norm) AddNorm(s.prefix + EndNormName(s.kind, scheme), Width());
  if (scheme.head_scale) {
    AddVector(s.prefix + HeadScaleName(s.kind), Role::kResidualScale, model.heads(), 1.0);
  }
  if (scheme.stream_scale != 0) {
    AddVector(s.prefix + StreamScaleName(s.kind), Role::kResidualScale, Width(),
              scheme.stream_scale);
  }
  if (scheme.branch_scale == BranchScale::kOfSublayer ||
      (scheme.branch_scale == BranchScale::kOfLayer && s.kind == SublayerKind::kSelfAttention)) {
    AddVector(s.prefix + BranchScaleName(s.kind, scheme), Role::kResidualScale, 1,
              scheme.initial_branch_scale);
  }
  if (!scheme.shifts) return;
  AddVector(s.prefix + InputShiftName(s.kind), Role::kResidualShift, 1, 0.0);
  if (!block) return;
  AddVector(s.prefix + kMiddleShift, Role::kResidualShift, 1, 0.0);
  AddVector(s.prefix + kInnerShift, Role::kResidualShift, 1, 0.0);
}

void Builder::AddStackEnd(int stack) {
  const std::string name = StackName(stack);
  switch (EndOf(model)) {
    case StackEnd::kNothing:
      return;
    case StackEnd::kNorm:
      return AddNorm(name + kFinalNorm, Width());
    case StackEnd::kScaledShift:
      if (stack == 0) AddVector(name + kFinalScale, Role::kResidualScale, 1, 1.0);
      return AddVector(name + kFinalShift, Role::kResidualShift, 1, 0.0);
  }
}

// DLCL: each layer's weights and the norm of its output, kept with all others to the end; the first
// layer has what entered the stack, the last one the weights of what leaves it.
void Builder::AddHistory(int stack, int index, Layer& layer, int64_t rows) {
  if (!KeepsHistory(model)) return;
  inventory.one_piece = "model.residual: DLCL: a layer reads all before it";
  const std::string name = absl::StrCat(StackName(stack), "layers.", index, ".");
  const int layers = stack == 0 ? model.encoder_layers() : model.decoder_layers();
  const int64_t stream = kBytesOfFloat * rows * Width();
  const int64_t streams = index == 0 ? 2 : 1;
  const int64_t kept = streams * stream + stream + kBytesOfFloat * rows;
  layer.lasting_bytes += kept;
  layer.activation_bytes += kept;
  layer.constant_bytes += streams * stream;  // gradients, once a rank
  AddVector(name + kHistoryWeight, Role::kResidualScale, index + 1, 1.0 / (index + 1));
  AddNorm(name + kHistoryNorm, Width());
  if (index + 1 < layers) return;
  AddVector(StackName(stack) + kHistoryWeight, Role::kResidualScale, layers + 1,
            1.0 / (layers + 1));
}

void Builder::AddEmbeddingNorm(int stack, Layer& layer, int64_t rows) {
  if (!HasEmbeddingNorm(model)) return;
  layer.activation_bytes += kBytesOfFloat * rows * (Width() + 1);
  AddNorm(StackName(stack) + kEmbeddingNorm, Width());
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
           model.vocabulary_size(), kPadRow, EmbeddingGain(model, 0));
  if (model.positions() == LEARNED) {
    AddTable("encoder.embed_positions.weight", Role::kPosition, model.max_positions(), -1, 1.0);
  }
  AddEmbeddingNorm(0, inventory.layers.back(), SourceRows());
}

void Builder::AddTargetEmbedding() {
  Layer& layer = AddLayer(LayerKind::kTargetEmbedding, "decoder.embedding", 0);
  layer.inputs = {Memory()};
  KeepEmbedding(layer, TargetRows());
  if (model.tied_embeddings() == TIE_ALL) {
    AddUse("shared.weight");
  } else {
    AddTable("decoder.embed_tokens.weight", Role::kEmbedding, model.vocabulary_size(), kPadRow,
             EmbeddingGain(model, 1));
  }
  if (model.positions() == LEARNED) {
    AddTable("decoder.embed_positions.weight", Role::kPosition, model.max_positions(), -1, 1.0);
  }
  AddEmbeddingNorm(1, inventory.layers.back(), TargetRows());
}

// What one sub-layer keeps of `rows` rows besides its products: what its scheme needs in float32,
// one bit a feature for dropout.
void Builder::KeepJoin(Layer& layer, const Sublayer& s, int64_t rows) const {
  const int64_t inside = s.kind == SublayerKind::kFeedForward ? FfnWidth() : Width();
  layer.activation_bytes += kBytesOfFloat * rows * s.scheme.KeptFloats(Width(), inside) +
                            MaskBytes(rows, Width(), model.dropout());
}

// Attention keeps q, context and one log-sum a head of `rows` rows, k and v of `key_rows` rows.
void Builder::KeepAttention(Layer& layer, const Sublayer& s, int64_t rows, int64_t key_rows) const {
  KeepJoin(layer, s, rows);
  layer.activation_bytes += kBytesOfFloat * rows * model.heads();
  layer.activation_operands += 2 * (rows + key_rows) * Width();
}

// The feed-forward block keeps its hidden rows, with GELU also before the activation.
void Builder::KeepFeedForward(Layer& layer, const Sublayer& s, int64_t rows) const {
  KeepJoin(layer, s, rows);
  layer.inner_bytes = MaskBytes(rows, FfnWidth(), model.activation_dropout());
  layer.activation_bytes += layer.inner_bytes;
  layer.activation_operands += rows * FfnWidth() * (model.activation() == GELU ? 2 : 1);
}

// What stands behind a stack belongs to no sub-layer and is never computed again.
void Builder::KeepStackEnd(Layer& layer, int64_t rows) const {
  if (EndOf(model) == StackEnd::kNothing) return;
  const int64_t deviations = EndOf(model) == StackEnd::kNorm ? 1 : 0;
  const int64_t kept = kBytesOfFloat * rows * (Width() + deviations);
  layer.lasting_bytes += kept;
  layer.activation_bytes += kept;
}

// Products: q, k, v, out (4 d^2), feed-forward (2 d f), scores and mixing of attention.
void Builder::AddEncoderLayer(int index) {
  const std::string name = absl::StrCat("encoder.layers.", index);
  Layer& layer = AddLayer(LayerKind::kEncoder, name, index);
  const double d = Width(), f = FfnWidth(), s = SourceRows();
  layer.forward_flops = 2 * s * (4 * d * d + 2 * d * f) + 4 * s * SourceLength() * d;
  const Sublayer attention = MakeSublayer(0, index, SublayerKind::kSelfAttention);
  const Sublayer block = MakeSublayer(0, index, SublayerKind::kFeedForward);
  KeepAttention(layer, attention, SourceRows(), SourceRows());
  KeepFeedForward(layer, block, SourceRows());
  layer.inputs = {Hidden(SourceRows())};
  AddAttention(attention);
  AddFeedForward(block);
  AddHistory(0, index, layer, SourceRows());
  if (index + 1 < model.encoder_layers()) return;
  KeepStackEnd(layer, SourceRows());
  AddStackEnd(0);
}

// As an encoder layer, with a second attention whose keys and values come from the memory. The
// memory itself is kept once per rank: the planner adds it.
void Builder::AddDecoderLayer(int index) {
  const std::string name = absl::StrCat("decoder.layers.", index);
  Layer& layer = AddLayer(LayerKind::kDecoder, name, index);
  const double d = Width(), f = FfnWidth(), s = SourceRows(), t = TargetRows();
  layer.forward_flops = 2 * t * (6 * d * d + 2 * d * f) + 2 * s * 2 * d * d +
                        4 * t * (TargetLength() + SourceLength()) * d;
  const Sublayer attention = MakeSublayer(1, index, SublayerKind::kSelfAttention);
  const Sublayer cross = MakeSublayer(1, index, SublayerKind::kCrossAttention);
  const Sublayer block = MakeSublayer(1, index, SublayerKind::kFeedForward);
  KeepAttention(layer, attention, TargetRows(), TargetRows());
  KeepAttention(layer, cross, TargetRows(), SourceRows());
  KeepFeedForward(layer, block, TargetRows());
  layer.inputs = {Memory(), Hidden(TargetRows())};
  AddAttention(attention);
  AddAttention(cross);
  AddFeedForward(block);
  AddHistory(1, index, layer, TargetRows());
  if (index + 1 < model.decoder_layers()) return;
  KeepStackEnd(layer, TargetRows());
  AddStackEnd(1);
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
      return AddTable("lm_head.weight", Role::kEmbedding, model.vocabulary_size(), -1,
                      OutputStartsAtZero(model) ? 0.0 : 1.0);
    default:
      return AddUse("shared.weight");
  }
}

}  // namespace

Inventory Describe(const ModelSpec& model, const MicrobatchSpec& microbatch) {
  Builder builder{.model = model, .batch = microbatch};
  builder.AddSourceEmbedding();
  for (int i = 0; i < model.encoder_layers(); ++i) builder.AddEncoderLayer(i);
  builder.AddTargetEmbedding();
  for (int i = 0; i < model.decoder_layers(); ++i) builder.AddDecoderLayer(i);
  builder.AddOutput();
  return std::move(builder.inventory);
}

}  // namespace deepnet

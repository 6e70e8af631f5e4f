// Layers are appended in chain order, each with its costs and, through ParameterList, with its
// parameters; describe_memory.h adds what they keep.
//
// Operations are those of a full microbatch (S source, T target positions) whose sentences have
// mean length S/B and T/B: two per multiply-add of each matrix product, attention over whole
// sentences (a decoder's causal half is not subtracted: kernels may or may not skip it).

#include "trainer/model/describe.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

#include "trainer/model/architecture.h"
#include "trainer/model/describe_memory.h"
#include "trainer/model/describe_parameters.h"
#include "trainer/model/scheme.h"

namespace deepnet {
namespace {

constexpr char kStreamType[] = "float32";

struct Builder {
  const ModelSpec& model;
  const MicrobatchSpec& batch;
  Inventory inventory = {};
  ParameterList parameters = {model, inventory};

  int64_t Width() const { return model.d_model(); }
  int64_t FfnWidth() const { return model.ffn_dim(); }
  int64_t SourceRows() const { return batch.max_source_tokens(); }
  int64_t TargetRows() const { return batch.max_target_tokens(); }
  double SourceLength() const { return Mean(SourceRows()); }
  double TargetLength() const { return Mean(TargetRows()); }
  double Mean(int64_t rows) const {
    return static_cast<double>(rows) / std::max(1, batch.max_sentences());
  }

  Layer& AddLayer(LayerKind kind, std::string name, int index);

  // Returns the stack of the target rows, which is the only one of a model of one stack.
  int TargetStack() const { return HasMemory(model) ? 1 : 0; }
  // Returns the encoder's output, which has the rows of the source's stack.
  BoundaryTensor Memory() const {
    return {"encoder_output", {SourceRows(), Width()}, kStreamType, true, 0};
  }
  BoundaryTensor SourceHidden() const {
    return {std::string(kHidden), {SourceRows(), Width()}, kStreamType, true, 0};
  }
  BoundaryTensor TargetHidden() const {
    return {std::string(kHidden), {TargetRows(), Width()}, kStreamType, true, TargetStack()};
  }

  void AddSourceEmbedding();
  void AddEncoderLayer(int index);
  void AddTargetEmbedding();
  void AddTargetLayer(int index);
  double TargetLayerFlops() const;
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

void Builder::AddSourceEmbedding() {
  Layer& layer = AddLayer(LayerKind::kSourceEmbedding, "encoder.embedding", 0);
  layer.looks_up = true;
  AddEmbeddingMemory(model, SourceRows(), layer);
  parameters.AddSourceEmbedding();
}

void Builder::AddTargetEmbedding() {
  const std::string name = StackName(LabelledStack(model)) + "embedding";
  Layer& layer = AddLayer(LayerKind::kTargetEmbedding, name, 0);
  if (HasMemory(model)) layer.inputs = {Memory()};
  layer.looks_up = true;
  AddEmbeddingMemory(model, TargetRows(), layer);
  parameters.AddTargetEmbedding();
}

// Products: q, k, v, out (4 d^2), feed-forward (2 d f), scores and mixing of attention.
void Builder::AddEncoderLayer(int index) {
  const std::string name = absl::StrCat("encoder.layers.", index);
  Layer& layer = AddLayer(LayerKind::kEncoder, name, index);
  const double d = Width(), f = FfnWidth(), s = SourceRows();
  layer.forward_flops = 2 * s * (4 * d * d + 2 * d * f) + 4 * s * SourceLength() * d;
  const Sublayer attention = MakeSublayer(model, 0, index, SublayerKind::kSelfAttention);
  const Sublayer block = MakeSublayer(model, 0, index, SublayerKind::kFeedForward);
  layer.stack = 0;
  layer.inputs = {SourceHidden()};
  AddAttentionMemory(model, attention, SourceRows(), SourceRows(), layer);
  AddFeedForwardMemory(model, block, SourceRows(), layer);
  layer.recompute_flops[FULL] = layer.forward_flops;
  parameters.AddAttention(attention);
  parameters.AddFeedForward(block);
  AddHistoryMemory(model, SourceRows(), layer);
  parameters.AddHistory(0, index);
  if (index + 1 < model.encoder_layers()) return;
  AddStackEndMemory(model, SourceRows(), layer);
  parameters.AddStackEnd(0);
}

// A model of one stack has an encoder layer, on the target rows; one of two adds an attention whose
// keys and values come from the encoder's output, which is kept once per rank.
void Builder::AddTargetLayer(int index) {
  const int stack = LabelledStack(model);
  const std::string name = absl::StrCat(StackName(stack), "layers.", index);
  Layer& layer = AddLayer(LayerKind::kDecoder, name, index);
  layer.stack = TargetStack();
  layer.forward_flops = TargetLayerFlops();
  layer.recompute_flops[FULL] = layer.forward_flops;
  const Sublayer attention = MakeSublayer(model, stack, index, SublayerKind::kSelfAttention);
  const Sublayer block = MakeSublayer(model, stack, index, SublayerKind::kFeedForward);
  AddAttentionMemory(model, attention, TargetRows(), TargetRows(), layer);
  parameters.AddAttention(attention);
  if (HasMemory(model)) {
    const Sublayer cross = MakeSublayer(model, stack, index, SublayerKind::kCrossAttention);
    AddAttentionMemory(model, cross, TargetRows(), SourceRows(), layer);
    parameters.AddAttention(cross);
    layer.inputs = {Memory()};
  }
  layer.inputs.push_back(TargetHidden());
  AddFeedForwardMemory(model, block, TargetRows(), layer);
  parameters.AddFeedForward(block);
  AddHistoryMemory(model, TargetRows(), layer);
  parameters.AddHistory(stack, index);
  if (index + 1 < LayersOf(model, stack)) return;
  AddStackEndMemory(model, TargetRows(), layer);
  parameters.AddStackEnd(stack);
}

double Builder::TargetLayerFlops() const {
  const double d = Width(), f = FfnWidth(), s = SourceRows(), t = TargetRows();
  if (!HasMemory(model)) return 2 * t * (4 * d * d + 2 * d * f) + 4 * t * TargetLength() * d;
  return 2 * t * (6 * d * d + 2 * d * f) + 2 * s * 2 * d * d +
         4 * t * (TargetLength() + SourceLength()) * d;
}

void Builder::AddOutput() {
  Layer& layer = AddLayer(LayerKind::kOutput, "output", 0);
  layer.forward_flops = 2.0 * TargetRows() * Width() * model.vocabulary_size();
  layer.computes_loss = true;
  layer.inputs = {TargetHidden()};
  AddOutputMemory(model, TargetRows(), layer);
  parameters.AddOutput();
}

std::string WhyInOnePiece(const ModelSpec& model) {
  if (HasSecondStream(model)) {
    return "model.residual: RESIDUAL_DUAL: a second stream passes all layers of a stack";
  }
  return KeepsHistory(model) ? "model.residual: DLCL: a layer reads all before it" : "";
}

}  // namespace

Inventory Describe(const ModelSpec& model, const MicrobatchSpec& microbatch) {
  Builder builder{.model = model, .batch = microbatch};
  builder.inventory.one_piece = WhyInOnePiece(model);
  if (HasMemory(model)) {
    builder.inventory.stacks.push_back(DescribeStack(model, microbatch.max_source_tokens()));
    builder.AddSourceEmbedding();
    for (int i = 0; i < model.encoder_layers(); ++i) builder.AddEncoderLayer(i);
  }
  builder.inventory.stacks.push_back(DescribeStack(model, microbatch.max_target_tokens()));
  builder.AddTargetEmbedding();
  const int layers = LayersOf(model, LabelledStack(model));
  for (int i = 0; i < layers; ++i) builder.AddTargetLayer(i);
  builder.AddOutput();
  return std::move(builder.inventory);
}

}  // namespace deepnet

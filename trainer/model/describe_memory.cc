#include "trainer/model/describe_memory.h"

#include <algorithm>

#include "trainer/model/architecture.h"
#include "trainer/model/scheme.h"

namespace deepnet {
namespace {

constexpr int64_t kFloatBytes = 4;    // residual stream, statistics
constexpr int64_t kDoubleBytes = 8;   // decisions of LibTorch's dropout
constexpr int64_t kPackedRows = 256;  // that native kernels pack together for a weight gradient
constexpr int64_t kLogitRows = 512;   // rows of logits that exist at once
constexpr int kNever = Recompute_ARRAYSIZE;

// Bytes of a dropout mask, one bit a feature; none where nothing is dropped.
int64_t MaskBytes(int64_t rows, int64_t features, double rate) {
  return rate > 0 ? rows * ((features + 7) / 8) : 0;
}

// Keeps `more` at the levels below `given_up`.
void Keep(const ActivationBytes& more, int given_up, Layer& layer) {
  for (int level = 0; level < given_up; ++level) {
    layer.kept[level].bytes += more.bytes;
    layer.kept[level].operands += more.operands;
  }
}

// Products that are computed again from `level` on, up to FULL, which repeats all of the layer.
void RepeatProducts(int64_t operations, Recompute level, Layer& layer) {
  for (int l = level; l < FULL; ++l) layer.recompute_flops[l] += static_cast<double>(operations);
}

void AddPending(int64_t rows, int64_t columns, int count, Layer& layer) {
  layer.pending.push_back({.rows = rows, .columns = columns, .count = count});
}

// Adds what the scheme of a sub-layer keeps in float32, and dropout's decisions on its branch.
void KeepJoin(const ModelSpec& model, const Sublayer& s, int64_t rows, Layer& layer) {
  const int64_t inside = s.kind == SublayerKind::kFeedForward ? model.ffn_dim() : model.d_model();
  Keep({.bytes = kFloatBytes * s.scheme.KeptFloats(model, rows, inside) +
                 MaskBytes(rows, model.d_model(), model.dropout())},
       FULL, layer);
}

// Inner rows, with GELU also before the activation, and the mask of activation dropout.
ActivationBytes InnerRows(const ModelSpec& model, int64_t rows) {
  return {.bytes = MaskBytes(rows, model.ffn_dim(), model.activation_dropout()),
          .operands = rows * model.ffn_dim() * (model.activation() == GELU ? 2 : 1)};
}

// Features of the widest operand rows that native norms want in float32: norms behind products and
// before others read rows in operand type.
int64_t ConvertedFeatures(const ModelSpec& model) {
  int64_t features = 0;
  for (const SublayerKind kind : {SublayerKind::kSelfAttention, SublayerKind::kFeedForward}) {
    const SublayerScheme scheme = MakeSublayerScheme(model, LabelledStack(model), 0, kind);
    const int64_t inside = kind == SublayerKind::kFeedForward ? model.ffn_dim() : model.d_model();
    if (scheme.output_norm) features = std::max<int64_t>(features, model.d_model());
    if (scheme.inner_norm) features = std::max(features, inside);
  }
  return features;
}

}  // namespace

// Context and one log-sum a head are kept at every level, queries, keys and values can be made
// again. Deferred: gradient and input of q, k, v together (of q alone in cross-attention, whose
// keys and values come from rows that all layers share) and of the output.
void AddAttentionMemory(const ModelSpec& model, const Sublayer& s, int64_t rows, int64_t key_rows,
                        Layer& layer) {
  const int64_t d = model.d_model();
  KeepJoin(model, s, rows, layer);
  Keep({.bytes = kFloatBytes * rows * model.num_heads(), .operands = rows * d}, FULL, layer);
  Keep({.operands = (rows + 2 * key_rows) * d}, SELECTIVE_GEMM, layer);
  RepeatProducts(2 * (rows + 2 * key_rows) * d * d, SELECTIVE_GEMM, layer);
  if (s.kind == SublayerKind::kCrossAttention) {
    if (key_rows == 0) return;  // the capacity is still open: nothing to attend to
    AddPending(rows, d, 4, layer);
    AddPending(key_rows, 2 * d, 1, layer);
    layer.pending.push_back({.rows = key_rows, .columns = d, .shared = true});
  } else {
    AddPending(rows, 3 * d, 1, layer);
    AddPending(rows, d, 3, layer);
  }
}

void AddFeedForwardMemory(const ModelSpec& model, const Sublayer& s, int64_t rows, Layer& layer) {
  const int64_t d = model.d_model(), f = model.ffn_dim();
  KeepJoin(model, s, rows, layer);
  Keep(InnerRows(model, rows), SELECTIVE_FFN, layer);
  RepeatProducts(2 * rows * d * f, SELECTIVE_FFN, layer);
  AddPending(rows, d, 2, layer);
  AddPending(rows, f, 2, layer);
}

void AddEmbeddingMemory(const ModelSpec& model, int64_t rows, Layer& layer) {
  Keep({.bytes = MaskBytes(rows, model.d_model(), model.dropout())}, kNever, layer);
  if (HasEmbeddingNorm(model)) {
    Keep({.bytes = kFloatBytes * NormStateFloats(model, rows, model.d_model())}, kNever, layer);
  }
  if (model.positions() != LEARNED) {
    layer.constant_bytes = kFloatBytes * int64_t{model.max_positions()} * model.d_model();
  }
}

void AddStackEndMemory(const ModelSpec& model, int64_t rows, Layer& layer) {
  Keep({.bytes = kFloatBytes * StackEndFloats(model, rows)}, kNever, layer);
}

void AddHistoryMemory(const ModelSpec& model, int64_t rows, Layer& layer) {
  if (!KeepsHistory(model)) return;
  const int64_t streams = (layer.index == 0 ? 2 : 1) * kFloatBytes * rows * model.d_model();
  Keep({.bytes = streams + kFloatBytes * NormStateFloats(model, rows, model.d_model())}, kNever,
       layer);
  layer.constant_bytes += streams;  // gradients, once a rank
}

void AddOutputMemory(const ModelSpec& model, int64_t rows, Layer& layer) {
  Keep({.bytes = kFloatBytes * rows * model.d_model()}, kNever, layer);
  const int64_t vocabulary = model.vocabulary_size();
  const int64_t logits = std::min(kLogitRows, rows) * vocabulary;
  // float32 logits become their gradient in place.
  layer.native_loss = {{.bytes = logits * kFloatBytes, .copies = logits}};
  // LibTorch: log-probabilities, targets, and four steps from the one to the other. Then the
  // table's gradient, with log-probabilities, targets and the gradient of logits alive.
  layer.library_loss = {
      {.bytes = 6 * kFloatBytes * logits, .copies = logits},
      {.bytes = kFloatBytes * (3 * logits + vocabulary * model.d_model()), .copies = logits}};
}

// Temporaries are counted by reading each operation of LibTorch's kernels: an expression's
// temporaries live until its end. Attention works sentence by sentence and is left out; dropout's
// decisions are made on the host in float64, which a GPU does not see, so that its figures are
// upper bounds.
Stack DescribeStack(const ModelSpec& model, int64_t rows) {
  const int64_t d = model.d_model(), f = model.ffn_dim();
  Stack stack{.stream_elements = rows * d};
  // Three operands of the width and three more for dq, dk, dv, one of the inner width, two streams;
  // with other operands, those of the stream. B2T holds what entered a layer, RESIDUAL_DUAL a
  // stream that passes all of a stack.
  const int64_t streams = 2 + int{ReadsLayerInput(model)} + int{HasSecondStream(model)};
  stack.workspace = {.bytes = streams * kFloatBytes * rows * d,
                     .operands = rows * (6 * d + f),
                     .copies = rows * d};
  // The input of the widest weight gradient, packed; rows that norms convert, and sums over rows.
  const int64_t packed_rows = (rows + kPackedRows - 1) / kPackedRows * kPackedRows;
  const int64_t converted = ConvertedFeatures(model);
  const int64_t over_rows = model.norm() == BATCH_NORM ? std::max(converted, d) : 0;
  stack.kernel_buffers = {.bytes = kFloatBytes * rows * over_rows,
                          .operands = packed_rows * std::max(f, d),
                          .widened = rows * converted};
  stack.reader_temporaries = {
      // Backward pass of a norm: the gradient's copy and six steps to that of the sum.
      {.bytes = 7 * kFloatBytes * rows * d},
      // Through RELU: product, its signs as bits and as numbers, what remains.
      {.bytes = (3 * kFloatBytes + 1) * rows * f},
      // Weight gradient: both operands in float32, and the product.
      {.bytes = kFloatBytes * f * d, .widened = rows * (f + d)}};
  stack.temporaries = stack.reader_temporaries;
  if (model.activation_dropout() > 0) {
    stack.temporaries.push_back(
        {.bytes = (kDoubleBytes + 2 * kFloatBytes) * rows * f, .widened = rows * f});
  }
  stack.recomputed[SELECTIVE_FFN] = stack.recomputed[SELECTIVE_GEMM] = InnerRows(model, rows);
  stack.recomputed[SELECTIVE_GEMM].operands += 3 * rows * d;
  // The stream in both types, and once more as the first branch's input.
  stack.recomputed[FULL] = {.bytes = kFloatBytes * rows * d, .copies = 2 * rows * d};
  return stack;
}

}  // namespace deepnet

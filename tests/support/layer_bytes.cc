#include "tests/support/layer_bytes.h"

#include <algorithm>

#include "parallel/base/check.h"
#include "trainer/model/architecture.h"
#include "trainer/model/scheme.h"

namespace deepnet::testing {
namespace {

constexpr int64_t kBytesOfFloat = 4;  // residual stream, statistics

// Bytes of a dropout mask, one bit a feature; none where nothing is dropped.
int64_t MaskBytes(int64_t rows, int64_t features, double rate) {
  return rate > 0 ? rows * ((features + 7) / 8) : 0;
}

// Returns the bytes of what the scheme of a sub-layer keeps, and of dropout's decisions.
int64_t JoinBytes(const ModelSpec& model, LayerKind layer, SublayerKind kind, int64_t rows) {
  const SublayerScheme scheme = MakeSublayerScheme(model, {StackOfKind(model, layer), 0, kind});
  const int64_t inside = kind == SublayerKind::kFeedForward ? model.ffn_dim() : model.d_model();
  return kBytesOfFloat * scheme.KeptFloats(model, rows, inside) +
         MaskBytes(rows, model.d_model(), model.dropout());
}

// Queries, keys and values can be made again; context and one log-sum a head are kept.
void AddAttention(const ModelSpec& model, int64_t rows, int64_t key_rows, bool again,
                  ActivationBytes& kept) {
  kept.bytes += kBytesOfFloat * rows * model.num_heads();
  kept.operands += rows * model.d_model();
  if (!again) kept.operands += (rows + 2 * key_rows) * model.d_model();
}

// Inner rows, with GELU also before the activation, and what activation dropout decided.
ActivationBytes InnerBytes(const ModelSpec& model, int64_t rows) {
  return {MaskBytes(rows, model.ffn_dim(), model.activation_dropout()),
          rows * model.ffn_dim() * (model.activation() == GELU ? 2 : 1)};
}

int64_t Rows(const MicrobatchSpec& microbatch, LayerKind kind) {
  DEEPNET_CHECK(kind == LayerKind::kEncoder || kind == LayerKind::kDecoder);
  return kind == LayerKind::kEncoder ? microbatch.max_source_tokens()
                                     : microbatch.max_target_tokens();
}

}  // namespace

ActivationBytes KeptBytes(const ModelSpec& model, const MicrobatchSpec& microbatch, LayerKind kind,
                          Recompute level) {
  const int64_t rows = Rows(microbatch, kind);
  if (level == FULL) return {kBytesOfFloat * rows * model.d_model(), 0};
  ActivationBytes kept;
  AddAttention(model, rows, rows, level == SELECTIVE_GEMM, kept);
  kept.bytes += JoinBytes(model, kind, SublayerKind::kSelfAttention, rows);
  if (kind == LayerKind::kDecoder && IsEncoderDecoder(model)) {
    AddAttention(model, rows, microbatch.max_source_tokens(), level == SELECTIVE_GEMM, kept);
    kept.bytes += JoinBytes(model, kind, SublayerKind::kCrossAttention, rows);
  }
  kept.bytes += JoinBytes(model, kind, SublayerKind::kFeedForward, rows);
  if (level == SELECTIVE_FFN || level == SELECTIVE_GEMM) return kept;
  const ActivationBytes inner = InnerBytes(model, rows);
  return {kept.bytes + inner.bytes, kept.operands + inner.operands};
}

ActivationBytes RecomputeBytes(const ModelSpec& model, const MicrobatchSpec& microbatch,
                               LayerKind kind, const RecomputeChoice& choice, DataType operand) {
  const int64_t rows = Rows(microbatch, kind);
  ActivationBytes again;
  if (choice.level == SELECTIVE_FFN || choice.level == SELECTIVE_GEMM)
    again = InnerBytes(model, rows);
  if (choice.level == SELECTIVE_GEMM) again.operands += rows * 3 * model.d_model();
  if (choice.level == FULL) {
    const int64_t layers = std::max(1, choice.segment);
    const ActivationBytes one = KeptBytes(model, microbatch, kind, NONE);
    again.bytes = layers * one.bytes + kBytesOfFloat * rows * model.d_model();
    again.operands = layers * one.operands + (operand == FLOAT32 ? 0 : 2 * rows * model.d_model());
  }
  return again;
}

int64_t DeferredOperands(const ModelSpec& model, const MicrobatchSpec& microbatch, LayerKind kind) {
  const int64_t rows = Rows(microbatch, kind), d = model.d_model(), f = model.ffn_dim();
  // (gradient + input) of q, k, v together; of the output; of both feed-forward products.
  const int64_t self_and_inner = rows * ((3 * d + d) + (d + d) + (f + d) + (d + f));
  if (kind == LayerKind::kEncoder || !IsEncoderDecoder(model)) return self_and_inner;
  // (gradient + input) of q and of the output; the gradient of keys and values.
  return self_and_inner + rows * ((d + d) + (d + d)) + microbatch.max_source_tokens() * 2 * d;
}

}  // namespace deepnet::testing

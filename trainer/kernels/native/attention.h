// Attention over packed sentences, one softmax per (query row, head), nothing padded.
//
// Sentence s owns rows queries.offsets[s]..[s + 1] of the query side and the same of `keys`; head h
// owns columns h * D/H..(h + 1) * D/H of every matrix, which may be a column slice of a wider one.
// Arithmetic is float32 whatever the matrices hold. A row belongs to at most one sentence; offsets
// do not decrease.
//
//   context = Dropout(softmax(q k^T / sqrt(D/H))) v
//
// Dropout of the weight (query, head h, key number j of the sentence) is that of feature
// h * kMaxAttentionKeys + j of the query's row (dropout.h). It is drawn again in the backward pass.
#pragma once

#include <cstdint>

#include "trainer/kernels/native/dropout.h"
#include "trainer/kernels/native/matrix.h"

namespace deepnet::native {

// Most keys of a sentence when weights are dropped; heads * kMaxAttentionKeys <=
// kMaxDropoutFeatures.
inline constexpr int64_t kMaxAttentionKeys = 4096;

// The widest heads that this project's kernels for GPUs take.
inline constexpr int kMaxGpuHeadDim = 256;

template <typename T>
struct AttentionArgsOf {
  typename T::In q_RD = {}, k_RD = {}, v_RD = {};  // operand; k and v have the rows of `keys`
  typename T::Rows queries = {}, keys = {};
  int heads = 1;
  bool causal = false;       // query i sees keys 0..i of its sentence; both offsets must be equal
  DropoutSite dropout = {};  // of the attention weights
  typename T::Out context_RD = {};  // out, operand; rows of no sentence become 0
  // out, residual, without gaps: the logarithms of the sums of exp(scores) for the backward pass,
  // in an order that the Ops chooses (kernels: [R, H]); undefined in inference
  typename T::Floats log_sum_exp_RH = {};
};
using AttentionArgs = AttentionArgsOf<Pointers>;

// All matrices of one call hold the same element.
void AttentionForward(Cpu& cpu, const AttentionArgs& args);

template <typename T>
struct AttentionGradArgsOf {
  AttentionArgsOf<T> forward = {};                     // as it was called; outputs filled
  typename T::In dcontext_RD = {};                     // operand
  typename T::Out dq_RD = {}, dk_RD = {}, dv_RD = {};  // out, operand; rows of no sentence become 0
};
using AttentionGradArgs = AttentionGradArgsOf<Pointers>;

// Does not read the context.
void AttentionBackward(Cpu& cpu, const AttentionGradArgs& args);

// One query row against the cached keys and values that its list names (incremental decoding):
// hypotheses share rows of the cache, so re-ordering them moves lists, not keys. A row's result
// depends on that row alone, not on its neighbours, the batch or the thread count.
template <typename T>
struct DecodeAttentionArgsOf {
  int64_t rows = 0;
  typename T::In q_RD = {};                     // operand
  typename T::In keys_ND = {}, values_ND = {};  // operand; rows of a cache
  // [rows, index_stride] rows of the cache, in order of position; as DeviceSession::Upload returns
  // it
  const int32_t* index = nullptr;
  int64_t index_stride = 0;
  const int32_t* lengths = nullptr;  // [rows], >= 1: entries of `index` that count
  int heads = 1;
  typename T::Out context_RD = {};  // out, operand
};
using DecodeAttentionArgs = DecodeAttentionArgsOf<Pointers>;

void DecodeAttention(Cpu& cpu, const DecodeAttentionArgs& args);

}  // namespace deepnet::native

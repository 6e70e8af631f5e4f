// Attention over packed sentences, one softmax per (query row, head), nothing padded.
//
// Sentence s owns rows q_offsets[s]..q_offsets[s+1] of the query side and rows
// k_offsets[s]..k_offsets[s+1] of the key side; head h owns columns h*head_dim..(h+1)*head_dim of
// every matrix, which may be column slices of a wider one. Arithmetic is float32 whatever the
// matrices hold. A row belongs to at most one sentence; offsets do not decrease.
//
//   context = Dropout(softmax(q k^T / sqrt(head_dim))) v
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

struct AttentionShape {
  int num_sentences = 0;
  const int32_t* q_offsets = nullptr;  // [num_sentences + 1]
  const int32_t* k_offsets = nullptr;  // [num_sentences + 1]
  int heads = 1;
  int head_dim = 64;
  bool causal = false;  // query i sees keys 0..i of its sentence; both offsets must be equal
};

struct AttentionForwardArgs {
  AttentionShape shape = {};
  ConstMatrix q = {};  // [q rows, heads * head_dim]
  ConstMatrix k = {};  // [k rows, heads * head_dim]
  ConstMatrix v = {};
  DropoutSite dropout = {};
  RowIds q_ids = {};    // read if dropout.rate > 0
  Matrix context = {};  // [q rows, heads * head_dim]; rows of no sentence become 0
  float* lse =
      nullptr;  // [q rows, heads]: log of the sum of exp(scores), kept for the backward pass
};

// All matrices of one call hold the same element.
void AttentionForward(Cpu& cpu, const AttentionForwardArgs& args);

struct AttentionBackwardArgs {
  AttentionShape shape = {};
  ConstMatrix q = {};
  ConstMatrix k = {};
  ConstMatrix v = {};
  const float* lse = nullptr;
  ConstMatrix context = {};  // of the forward pass; CPU kernels do not need it
  ConstMatrix d_context = {};
  DropoutSite dropout = {};  // as in the forward pass
  RowIds q_ids = {};
  Matrix dq = {};  // overwritten; rows of no sentence become 0
  Matrix dk = {};
  Matrix dv = {};
};

void AttentionBackward(Cpu& cpu, const AttentionBackwardArgs& args);

// Decoding: every row is one query against the rows of a cache that its list names, in order of
// position. A row's result depends on that row alone, not on its neighbours, the batch or the
// thread count.
struct DecodeAttentionArgs {
  int heads = 1;
  int head_dim = 64;
  ConstMatrix q = {};              // [rows, heads * head_dim]
  ConstMatrix keys = {};           // [cached rows, heads * head_dim], of the element of q
  ConstMatrix values = {};         // likewise
  const int32_t* index = nullptr;  // [rows, index_stride]: rows of keys and values
  int64_t index_stride = 0;
  const int32_t* lengths = nullptr;  // [rows], >= 1: entries of the list that count
  Matrix context = {};               // [rows, heads * head_dim]
};

void DecodeAttention(Cpu& cpu, const DecodeAttentionArgs& args);

}  // namespace deepnet::native

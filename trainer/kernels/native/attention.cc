#include "trainer/kernels/native/attention.h"

#include <algorithm>
#include <cstring>

#include "parallel/base/check.h"
#include "trainer/kernels/native/check_elements.h"
#include "trainer/kernels/native/cpu.h"
#include "trainer/kernels/native/kernel_table.h"

namespace deepnet::native {
namespace {

int64_t BytesOf(Element element) { return element == Element::kFloat32 ? 4 : 2; }

// Rows before the first and after the last sentence.
void ZeroRowsOfNoSentence(const Matrix& m, const int32_t* offsets, int num_sentences) {
  const int64_t bytes = BytesOf(m.element);
  const auto zero = [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      std::memset(static_cast<char*>(m.data) + row * m.stride * bytes, 0, m.cols * bytes);
    }
  };
  zero(0, std::min<int64_t>(offsets[0], m.rows));
  zero(offsets[num_sentences], m.rows);
}

// The longest sentence of the key side, after checking what the kernels rely on.
int64_t CheckShape(const AttentionShape& shape, int64_t q_rows, int64_t k_rows, int64_t cols,
                   bool drops) {
  DEEPNET_CHECK(shape.heads >= 1 && shape.head_dim >= 1);
  DEEPNET_CHECK_EQ(cols, static_cast<int64_t>(shape.heads) * shape.head_dim);
  const auto* q = shape.q_offsets;
  const auto* k = shape.k_offsets;
  const int n = shape.num_sentences;
  DEEPNET_CHECK(q[0] >= 0 && q[n] <= q_rows && k[0] >= 0 && k[n] <= k_rows) << "offsets";
  int64_t max_keys = 0;
  for (int s = 0; s < n; ++s) {
    const int64_t num_queries = q[s + 1] - q[s], num_keys = k[s + 1] - k[s];
    DEEPNET_CHECK(num_queries >= 0 && num_keys >= 0) << "offsets of sentence " << s;
    DEEPNET_CHECK(num_keys > 0 || num_queries == 0) << "sentence " << s << " has no keys";
    DEEPNET_CHECK(!shape.causal || num_queries == num_keys) << "causal sentence " << s;
    max_keys = std::max(max_keys, num_keys);
  }
  if (drops) {
    DEEPNET_CHECK_LE(max_keys, kMaxAttentionKeys);
    DEEPNET_CHECK_LE(shape.heads * kMaxAttentionKeys, kMaxDropoutFeatures);
  }
  return max_keys;
}

}  // namespace

void AttentionForward(Cpu& cpu, const AttentionForwardArgs& args) {
  const DropoutStream stream = MakeDropoutStream(args.dropout);
  const AttentionShape& shape = args.shape;
  const int64_t max_keys =
      CheckShape(shape, args.q.rows, args.k.rows, args.q.cols, stream.active());
  CheckElements(args.q);
  DEEPNET_CHECK(args.q.element == args.k.element && args.q.element == args.v.element &&
                args.q.element == args.context.element);
  const ElementwiseTable& kernels = cpu.table.elementwise;
  cpu.scratch.ReservePerThread(cpu.pool.num_threads(),
                               kernels.attention_scratch(max_keys, shape.head_dim));
  ZeroRowsOfNoSentence(args.context, shape.q_offsets, shape.num_sentences);
  const int64_t num_units = static_cast<int64_t>(shape.num_sentences) * shape.heads;
  cpu.pool.ParallelFor(num_units, [&](int64_t unit, int thread) {
    kernels.attention_forward(args, stream, static_cast<int>(unit / shape.heads),
                              static_cast<int>(unit % shape.heads), cpu.scratch.ForThread(thread));
  });
}

void AttentionBackward(Cpu& cpu, const AttentionBackwardArgs& args) {
  const DropoutStream stream = MakeDropoutStream(args.dropout);
  const AttentionShape& shape = args.shape;
  const int64_t max_keys =
      CheckShape(shape, args.q.rows, args.k.rows, args.q.cols, stream.active());
  const Element element = args.q.element;
  CheckElements(args.q);
  DEEPNET_CHECK(args.k.element == element && args.v.element == element &&
                args.d_context.element == element && args.dq.element == element &&
                args.dk.element == element && args.dv.element == element);
  const ElementwiseTable& kernels = cpu.table.elementwise;
  cpu.scratch.ReservePerThread(cpu.pool.num_threads(),
                               kernels.attention_scratch(max_keys, shape.head_dim));
  ZeroRowsOfNoSentence(args.dq, shape.q_offsets, shape.num_sentences);
  ZeroRowsOfNoSentence(args.dk, shape.k_offsets, shape.num_sentences);
  ZeroRowsOfNoSentence(args.dv, shape.k_offsets, shape.num_sentences);
  const int64_t num_units = static_cast<int64_t>(shape.num_sentences) * shape.heads;
  cpu.pool.ParallelFor(num_units, [&](int64_t unit, int thread) {
    kernels.attention_backward(args, stream, static_cast<int>(unit / shape.heads),
                               static_cast<int>(unit % shape.heads), cpu.scratch.ForThread(thread));
  });
}

void DecodeAttention(Cpu& cpu, const DecodeAttentionArgs& args) {
  int64_t longest = 0;
  for (int64_t row = 0; row < args.q.rows; ++row) {
    DEEPNET_CHECK(args.lengths[row] >= 1) << "row " << row << " has an empty cache";
    longest = std::max<int64_t>(longest, args.lengths[row]);
  }
  CheckElements(args.q);
  DEEPNET_CHECK(args.q.element == args.context.element);
  const ElementwiseTable& kernels = cpu.table.elementwise;
  // For each head the row kernel wants two pieces of whole vectors of at most 16 floats.
  cpu.scratch.ReservePerThread(cpu.pool.num_threads(),
                               args.heads * (longest + args.head_dim + 2 * 16));
  constexpr int64_t kRowsPerChunk = 4;  // neighbours often share keys
  ForBlocks(cpu.pool, args.q.rows, kRowsPerChunk, [&](int64_t begin, int64_t end, int thread) {
    for (int64_t row = begin; row < end; ++row) {
      kernels.decode_attention(args, row, cpu.scratch.ForThread(thread));
    }
  });
}

}  // namespace deepnet::native

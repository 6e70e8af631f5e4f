#include "trainer/kernels/native/attention.h"

#include <algorithm>
#include <cstring>
#include <initializer_list>

#include "parallel/base/check.h"
#include "trainer/kernels/native/check_elements.h"
#include "trainer/kernels/native/cpu.h"
#include "trainer/kernels/native/kernel_table.h"

namespace deepnet::native {
namespace {

// `matrices` have the rows of a side, and columns and elements as `q`, the queries.
void CheckMatrices(const ConstMatrix& q, int64_t rows,
                   std::initializer_list<ConstMatrix> matrices) {
  for (const ConstMatrix& m : matrices) {
    CheckElements(m);
    DEEPNET_CHECK(m.element == q.element) << "matrices of two elements";
    DEEPNET_CHECK(m.rows >= rows && m.cols == q.cols)
        << "a matrix is [" << m.rows << ", " << m.cols << "], not [" << rows << ", " << q.cols
        << "]";
  }
}

// Rows of `side` before the first and after the last sentence.
void ZeroRowsOfNoSentence(const Matrix& m, const PackedRows& side) {
  const int64_t bytes = BytesOf(m.element);
  const auto zero = [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      std::memset(static_cast<char*>(m.data) + row * m.stride * bytes, 0, m.cols * bytes);
    }
  };
  zero(0, std::min<int64_t>(side.offsets[0], side.count));
  zero(side.offsets[side.num_sentences], side.count);
}

// Returns the scratch that a head of the longest sentence wants, after checking what kernels rely
// on.
int64_t CheckedScratch(const Cpu& cpu, const AttentionArgs& args, const DropoutStream& stream) {
  DEEPNET_CHECK(args.heads >= 1 && args.q_RD.cols >= 1 && args.q_RD.cols % args.heads == 0);
  const auto* q = args.queries.offsets;
  const auto* k = args.keys.offsets;
  const int n = args.queries.num_sentences;
  DEEPNET_CHECK(q[0] >= 0 && q[n] <= args.queries.count && k[0] >= 0 && k[n] <= args.keys.count)
      << "offsets";
  int64_t max_keys = 0;
  for (int s = 0; s < n; ++s) {
    const int64_t num_queries = q[s + 1] - q[s], num_keys = k[s + 1] - k[s];
    DEEPNET_CHECK(num_queries >= 0 && num_keys >= 0) << "offsets of sentence " << s;
    DEEPNET_CHECK(num_keys > 0 || num_queries == 0) << "sentence " << s << " has no keys";
    DEEPNET_CHECK(!args.causal || num_queries == num_keys) << "causal sentence " << s;
    max_keys = std::max(max_keys, num_keys);
  }
  if (stream.active()) {
    DEEPNET_CHECK_LE(max_keys, kMaxAttentionKeys);
    DEEPNET_CHECK_LE(args.heads * kMaxAttentionKeys, kMaxDropoutFeatures);
  }
  CheckMatrices(args.q_RD, args.queries.count, {args.q_RD});
  CheckMatrices(args.q_RD, args.keys.count, {args.k_RD, args.v_RD});
  return cpu.kernels.attention_scratch(max_keys, args.q_RD.cols / args.heads);
}

// Calls body(sentence, head, scratch) for each, in all threads.
template <typename Body>
void ForEachHead(Cpu& cpu, const AttentionArgs& args, int64_t scratch, const Body& body) {
  cpu.scratch.ReservePerThread(cpu.pool.num_threads(), scratch);
  const int64_t num_units = static_cast<int64_t>(args.queries.num_sentences) * args.heads;
  cpu.pool.ParallelFor(num_units, [&](int64_t unit, int thread) {
    body(static_cast<int>(unit / args.heads), static_cast<int>(unit % args.heads),
         cpu.scratch.ForThread(thread));
  });
}

}  // namespace

void AttentionForward(Cpu& cpu, const AttentionArgs& args) {
  const DropoutStream stream = MakeDropoutStream(args.dropout);
  const int64_t scratch = CheckedScratch(cpu, args, stream);
  CheckMatrices(args.q_RD, args.queries.count, {args.context_RD});
  ZeroRowsOfNoSentence(args.context_RD, args.queries);
  ForEachHead(cpu, args, scratch, [&](int sentence, int head, float* own) {
    cpu.kernels.attention_forward(args, stream, sentence, head, own);
  });
}

void AttentionBackward(Cpu& cpu, const AttentionGradArgs& args) {
  const AttentionArgs& forward = args.forward;
  const DropoutStream stream = MakeDropoutStream(forward.dropout);
  const int64_t scratch = CheckedScratch(cpu, forward, stream);
  CheckMatrices(forward.q_RD, forward.queries.count, {args.dcontext_RD, args.dq_RD});
  CheckMatrices(forward.q_RD, forward.keys.count, {args.dk_RD, args.dv_RD});
  ZeroRowsOfNoSentence(args.dq_RD, forward.queries);
  ZeroRowsOfNoSentence(args.dk_RD, forward.keys);
  ZeroRowsOfNoSentence(args.dv_RD, forward.keys);
  ForEachHead(cpu, forward, scratch, [&](int sentence, int head, float* own) {
    cpu.kernels.attention_backward(args, stream, sentence, head, own);
  });
}

void DecodeAttention(Cpu& cpu, const DecodeAttentionArgs& args) {
  int64_t longest = 0;
  for (int64_t row = 0; row < args.rows; ++row) {
    DEEPNET_CHECK(args.lengths[row] >= 1) << "row " << row << " has an empty cache";
    longest = std::max<int64_t>(longest, args.lengths[row]);
  }
  CheckMatrices(args.q_RD, args.rows, {args.q_RD, args.context_RD});
  CheckMatrices(args.q_RD, /*rows=*/0, {args.keys_ND, args.values_ND});
  // For each head the row kernel wants two pieces of whole vectors of at most 16 floats.
  cpu.scratch.ReservePerThread(cpu.pool.num_threads(),
                               args.heads * (longest + args.q_RD.cols / args.heads + 2 * 16));
  constexpr int64_t kRowsPerChunk = 4;  // neighbours often share keys
  ForBlocks(cpu.pool, args.rows, kRowsPerChunk, [&](int64_t begin, int64_t end, int thread) {
    for (int64_t row = begin; row < end; ++row) {
      cpu.kernels.decode_attention(args, row, cpu.scratch.ForThread(thread));
    }
  });
}

}  // namespace deepnet::native

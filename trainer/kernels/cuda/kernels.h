// The families of trainer/kernels/native on a GPU: functions of the same names on device memory,
// each in the .cu file of its family. Matrices may be of any element but where float32 is checked.
//
// What the host cannot see (ids, positions, offsets, targets) is not checked here, so that no call
// waits: that is for whoever makes the batch. Orders of additions are fixed. Functions take one
// launch where nothing else is said.
#pragma once

#include <cstdint>
#include <span>

#include "parallel/base/philox.h"
#include "trainer/kernels/cuda/gpu_stream.h"
#include "trainer/kernels/native/adam.h"
#include "trainer/kernels/native/attention.h"
#include "trainer/kernels/native/cross_entropy.h"
#include "trainer/kernels/native/dropout.h"
#include "trainer/kernels/native/elementwise.h"
#include "trainer/kernels/native/embedding.h"
#include "trainer/kernels/native/residual_norm.h"
#include "trainer/kernels/native/sampling.h"

namespace deepnet::cuda {

// --- residual_norm.cu ---

// Over_rows two launches, and one for each of y and y_operand.
void ResidualNormForward(GpuStream& gpu, const native::ResidualNormArgs& args);
void NormOutput(GpuStream& gpu, native::ConstMatrix xhat, const float* gain, const float* bias,
                native::Matrix y);
// Two launches, one over_rows. The gradients of gain and bias are summed over blocks of rows that
// depend on the width alone, then over the blocks in a fixed order.
void ResidualNormBackward(GpuStream& gpu, const native::ResidualNormGradArgs& args);

// --- attention.cu ---

// head_dim is at most native::kMaxGpuHeadDim. Results of a sentence do not depend on its
// neighbours.
void AttentionForward(GpuStream& gpu, const native::AttentionArgs& args);
// Two launches. Reads the context. Scratch: a float for each query row and head.
void AttentionBackward(GpuStream& gpu, const native::AttentionGradArgs& args);
void DecodeAttention(GpuStream& gpu, const native::DecodeAttentionArgs& args);

// --- elementwise.cu ---

void Add(GpuStream& gpu, const float* x, float* y, int64_t n);
void GeluForward(GpuStream& gpu, native::ConstMatrix x, native::Matrix y);
void GeluBackward(GpuStream& gpu, native::ConstMatrix x, native::ConstMatrix dy, native::Matrix dx);
// x = max(0, x), in place; NaN stays.
void ReluForward(GpuStream& gpu, native::Matrix x);
// dx = 0 where y, ReluForward's result, is not positive; in place.
void ReluBackward(GpuStream& gpu, native::ConstMatrix y, native::Matrix dx);
void Cast(GpuStream& gpu, native::ConstMatrix from, native::Matrix to);
// d_branch = dx masked and scaled as DropoutBackward does, by the mask that the sum's forward pass
// wrote (ResidualNormForward without a gain); rate 0: d_branch = dx.
void AddBranchBackward(GpuStream& gpu, native::ConstMatrix dx, double rate, const uint8_t* mask,
                       native::Matrix d_branch);
void ScaleShiftForward(GpuStream& gpu, const native::ScaleShiftArgs& args);
// Two launches. The gradients of scale and shift are summed over blocks of rows, then for each
// group over the blocks and the columns in a fixed order.
void ScaleShiftBackward(GpuStream& gpu, const native::ScaleShiftGradArgs& args);

// --- dropout.cu ---

void DropoutForward(GpuStream& gpu, DropoutSite key, const PackedRows& ids, native::Matrix x,
                    uint8_t* mask);
void DropoutBackward(GpuStream& gpu, double rate, const uint8_t* mask, native::Matrix dx);

// --- embedding.cu ---

void EmbedForward(GpuStream& gpu, const native::EmbedArgs& args);

// The rows of a batch by index (native::SortRows), in device memory.
struct SortedRows {
  const int32_t* order = nullptr;    // rows, those of one index together and ascending
  const int32_t* starts = nullptr;   // [num_unique + 1] first place in `order` of each index
  const int32_t* indices = nullptr;  // [num_unique]
  int64_t num_unique = 0;
  int64_t longest = 0;  // rows of one index, at most
};

// More rows of an index than this are added in pieces of so many rows, from the first on, and then
// the pieces in order: a frequent token would keep a block at work when all others have ended.
inline constexpr int kEmbedPieceRows = 64;

// One more launch where an index has more than a piece. `sorted` stands for args.rows.tokens, which
// are not read. The gradient of an index with one piece has the bits of the CPU.
void EmbedBackward(GpuStream& gpu, const native::EmbedGradArgs& args, const SortedRows& sorted);

// --- cross_entropy.cu ---

// Loss and gradient of a row by one block, which reads the row again from the cache. d_logits may
// be the logits themselves, also of 16-bit numbers if their stride is twice that of the logits: a
// row's gradient then lies in the first half of the row.
void CrossEntropyRows(GpuStream& gpu, const native::CrossEntropyArgs& args);
void LogSoftmaxRows(GpuStream& gpu, native::ConstMatrix logits, native::Matrix y);
void AverageLogProbs(GpuStream& gpu, int64_t num_elements, int n, const float* x, float* y);
// sums[0] += the sum of loss [rows], sums[1] += the sum of nll [rows], in double precision and an
// order that depends on `rows` alone. `sums` is device memory: a step reads it once.
void SumLosses(GpuStream& gpu, int64_t rows, const float* loss, const float* nll, double* sums);

// --- sampling.cu ---

// native::ChooseToken for every choice, from rows of log-probabilities [., vocabulary]. The best
// tokens are the same; a token that is drawn may differ where a sum of shares, in double, equals
// its bound (of the draw, of a cut) within rounding.
void ChooseTokens(GpuStream& gpu, const float* log_probs, int64_t vocabulary, int64_t stride,
                  const native::TokenChoices& choices);

// --- adam.cu ---

// The weights and moments are those of the CPU, bit for bit.
void AdamStep(GpuStream& gpu, const native::AdamArgs& args, int64_t n);

// Numbers whose squares are summed.
struct FloatRange {
  const float* x;
  int64_t n;
};

// The sums of x[i]^2 over blocks of native::kSumSquaresBlock elements, the last one of a range the
// rest, in double precision: the bits of the CPU. Those of a range stand behind those of the range
// before. One launch for kMaxRanges ranges.
inline constexpr int kMaxRanges = 128;
void SumSquares(GpuStream& gpu, std::span<const FloatRange> ranges, double* sums);

// --- scaled_sums.cu: bias gradients, and streams that are scaled and added (BRANCH_NORM, DLCL) ---

// dbias [dy.cols] += the sum of each column of dy. Two launches, one of up to native::kFewRows
// rows.
void AddBiasGradient(GpuStream& gpu, native::ConstMatrix dy, float* dbias);
// ReluBackward, then AddBiasGradient of its result, with the same bits and AddBiasGradient's
// launches.
void ReluBackwardWithBias(GpuStream& gpu, native::ConstMatrix y, native::Matrix dx, float* dbias);
// x *= factor.
void Scale(GpuStream& gpu, float factor, native::Matrix x);
// y += *factor * x; `factor` is device memory.
void AddScaled(GpuStream& gpu, native::ConstMatrix x, const float* factor, native::Matrix y);
// dx += *factor * dy, *dfactor += the sum of dy * x over all elements. Three launches.
void AddScaledBackward(GpuStream& gpu, native::ConstMatrix dy, native::ConstMatrix x,
                       const float* factor, native::Matrix dx, float* dfactor);

// --- column_sums.cu: the second half of sums over rows ---

// Kernels leave one row of partial sums for each fixed block of rows in scratch memory, and this
// adds them up in a fixed order. No atomics, the same bits always.
struct ColumnSumsArgs {
  const float* partials = nullptr;  // [rows, stride]
  int64_t rows = 0;
  int64_t stride = 0;
  int64_t cols = 0;  // of each of the two
  // [cols], added to: columns 0..cols and cols..2 * cols of the partial sums; null: not wanted.
  float* first = nullptr;
  float* second = nullptr;
};

void AddColumnSums(GpuStream& gpu, const char* name, const ColumnSumsArgs& args);

// --- initial_normal.cu ---

// values[i] = InitialNormal(seed, name, i) * std (parallel/base/philox.h), bit for bit, where `key`
// is that of (seed, kInitialWeight) and `hash` the name's.
void InitialNormal(GpuStream& gpu, PhiloxKey key, uint64_t hash, std::span<float> values,
                   float std);

}  // namespace deepnet::cuda

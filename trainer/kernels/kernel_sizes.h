// Sizes by which kernels cut their work and which the planner counts with as well (trainer/model).
// They depend on a run's shapes alone, never on the card, and so do the orders of sums.
#pragma once

#include <algorithm>
#include <cstdint>

namespace deepnet::native {

// A partial sum of a bias gradient covers kBiasRunRows rows. Up to kFewRows rows are summed by one
// launch without partial sums in memory: with little work, launches are what takes the time.
inline constexpr int kBiasRunRows = 64;
inline constexpr int64_t kFewRows = 512;

// A partial sum of a norm's gain and bias covers so many rows at least.
inline constexpr int kNormRunRows = 16;

// Rows and keys that flash attention works on at a time: it pads a sentence to multiples of them.
inline constexpr int64_t kFlashTile = 128;

// Rows of logits that exist at once on a CPU.
inline constexpr int64_t kCpuLogitRows = 512;

// Rows of logits begin at multiples of so many elements, as products with tensor cores want them.
inline constexpr int64_t kLogitAlignment = 64;

// Rows of logits that exist at once on a GPU: 1 GiB of them, between 512 and 8,192. So many rows of
// hidden features are one term of the sum that is the gradient of the output matrix.
constexpr int64_t LogitRows(int64_t vocabulary) {
  constexpr int64_t kBytes = int64_t{1} << 30, kFloatBytes = 4, kStep = 128;
  const int64_t rows = kBytes / (kFloatBytes * std::max<int64_t>(1, vocabulary));
  return std::clamp<int64_t>(rows / kStep * kStep, 512, 8192);
}

// The rows of logits of a pass of `rows`, at most.
constexpr int64_t LogitRows(int64_t vocabulary, int64_t rows) {
  return std::min(LogitRows(vocabulary), rows);
}

}  // namespace deepnet::native

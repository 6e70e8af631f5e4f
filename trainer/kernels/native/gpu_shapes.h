// Sizes by which kernels for GPUs cut their work, where the planner counts with them too
// (trainer/model/{describe,work}.cc). They depend on a run's shapes alone, never on the card: so do
// the orders of sums.
#pragma once

#include <algorithm>
#include <cstdint>

namespace deepnet::native {

// Rows that one partial sum of a bias gradient is of. Up to kFewRows are summed by one launch,
// without partial sums in memory: launches are what little work waits for.
inline constexpr int kBiasRunRows = 64;
inline constexpr int64_t kFewRows = 512;

// Rows of logits begin at multiples of so many elements, as products with tensor cores want them.
inline constexpr int64_t kLogitAlignment = 64;

// Rows of logits that exist at once: 1 GiB of them, between 512 and 8,192. So many rows of hidden
// features are one term of the sum that is the gradient of the output matrix.
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

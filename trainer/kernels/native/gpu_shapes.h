// Sizes by which kernels for GPUs cut their work and which the planner counts with as well
// (trainer/model/{describe,work}.cc). They depend on a run's shapes alone, never on the card, and
// so do the orders of sums.
#pragma once

#include <algorithm>
#include <cstdint>

namespace deepnet::native {

// A partial sum of a bias gradient covers kBiasRunRows rows. Up to kFewRows rows are summed by one
// launch without partial sums in memory: with little work, launches are what takes the time.
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

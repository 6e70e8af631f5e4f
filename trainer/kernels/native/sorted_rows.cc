#include "trainer/kernels/native/sorted_rows.h"

#include <algorithm>
#include <utility>

#include "parallel/base/check.h"

namespace deepnet::native {

// Counting sort, least significant digit first.
std::span<const int32_t> SortRowsByIndex(std::span<const int32_t> index, int64_t num_indices,
                                         int32_t* order, int32_t* other) {
  constexpr int kDigitBits = 11;
  constexpr int kDigits = 1 << kDigitBits;
  DEEPNET_CHECK_LT(index.size(), size_t{1} << 31);
  int64_t n = 0;
  for (size_t row = 0; row < index.size(); ++row) {
    DEEPNET_CHECK(index[row] >= -1 && index[row] < num_indices)
        << "row " << row << " has index " << index[row] << " of " << num_indices;
    if (index[row] >= 0) order[n++] = static_cast<int32_t>(row);
  }
  for (int shift = 0; shift < 31 && (num_indices - 1) >> shift > 0; shift += kDigitBits) {
    int32_t starts[kDigits + 1] = {};
    for (int64_t i = 0; i < n; ++i) ++starts[(index[order[i]] >> shift) % kDigits + 1];
    for (int digit = 0; digit < kDigits; ++digit) starts[digit + 1] += starts[digit];
    for (int64_t i = 0; i < n; ++i) {
      other[starts[(index[order[i]] >> shift) % kDigits]++] = order[i];
    }
    std::swap(order, other);
  }
  return {order, static_cast<size_t>(n)};
}

void SortRows(std::span<const int32_t> index, int64_t num_indices, RowsByIndex& sorted) {
  sorted.order.resize(2 * index.size());
  int32_t* const space = sorted.order.data();
  const std::span<const int32_t> rows =
      SortRowsByIndex(index, num_indices, space, space + index.size());
  sorted.starts.clear();
  sorted.indices.clear();
  for (size_t i = 0; i < rows.size(); ++i) {
    const int32_t here = index[rows[i]];
    if (!sorted.indices.empty() && sorted.indices.back() == here) continue;
    sorted.indices.push_back(here);
    sorted.starts.push_back(static_cast<int32_t>(i));
  }
  sorted.starts.push_back(static_cast<int32_t>(rows.size()));
  if (rows.data() != space) std::copy(rows.begin(), rows.end(), space);
  sorted.order.resize(rows.size());
}

}  // namespace deepnet::native

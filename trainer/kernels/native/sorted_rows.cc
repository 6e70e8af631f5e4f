#include "trainer/kernels/native/sorted_rows.h"

#include "parallel/base/check.h"

namespace deepnet::native {

// Counting sort, least significant digit first.
void SortRows(std::span<const int32_t> index, int64_t num_indices, RowsByIndex& sorted) {
  constexpr int kDigitBits = 11;
  constexpr int kDigits = 1 << kDigitBits;
  DEEPNET_CHECK_LT(index.size(), size_t{1} << 31);
  std::vector<int32_t>& order = sorted.order;
  order.clear();
  for (size_t row = 0; row < index.size(); ++row) {
    DEEPNET_CHECK(index[row] >= -1 && index[row] < num_indices)
        << "row " << row << " has index " << index[row] << " of " << num_indices;
    if (index[row] >= 0) order.push_back(static_cast<int32_t>(row));
  }
  std::vector<int32_t> other(order.size());
  for (int shift = 0; shift < 31 && (num_indices - 1) >> shift > 0; shift += kDigitBits) {
    int32_t starts[kDigits + 1] = {};
    for (const int32_t row : order) ++starts[(index[row] >> shift) % kDigits + 1];
    for (int digit = 0; digit < kDigits; ++digit) starts[digit + 1] += starts[digit];
    for (const int32_t row : order) other[starts[(index[row] >> shift) % kDigits]++] = row;
    order.swap(other);
  }
  sorted.starts.clear();
  sorted.indices.clear();
  for (size_t i = 0; i < order.size(); ++i) {
    const int32_t here = index[order[i]];
    if (!sorted.indices.empty() && sorted.indices.back() == here) continue;
    sorted.indices.push_back(here);
    sorted.starts.push_back(static_cast<int32_t>(i));
  }
  sorted.starts.push_back(static_cast<int32_t>(order.size()));
}

}  // namespace deepnet::native

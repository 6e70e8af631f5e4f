// The rows of a batch sorted by an index of each, a token or a position: the sum of an embedding's
// gradient then adds the rows of one index in a fixed order. On a CPU the backward pass sorts; for
// a GPU the batch is sorted once, on the host.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace deepnet::native {

struct RowsByIndex {
  std::vector<int32_t> order;    // rows with index >= 0, by index and within one index ascending
  std::vector<int32_t> starts;   // first place in `order` of each index, and order.size()
  std::vector<int32_t> indices;  // ascending
};

// Every index is -1 (skipped) or below `num_indices`.
void SortRows(std::span<const int32_t> index, int64_t num_indices, RowsByIndex& sorted);

}  // namespace deepnet::native

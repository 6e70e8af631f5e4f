// The rows of a batch sorted by an index of each, a token or a position: the sum of an embedding's
// gradient then adds the rows of one index in a fixed order. On a CPU the backward pass sorts; for
// a GPU the batch is sorted once, on the host.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace deepnet::native {

// Rows with index >= 0, by index and within one index ascending: a part of one of the arrays
// `order` and `other`, of index.size() numbers each. Every index is -1 (skipped) or below
// `num_indices`.
std::span<const int32_t> SortRowsByIndex(std::span<const int32_t> index, int64_t num_indices,
                                         int32_t* order, int32_t* other);

// The same with the places where each index begins.
struct RowsByIndex {
  std::vector<int32_t> order;
  std::vector<int32_t> starts;   // first place in `order` of each index, and order.size()
  std::vector<int32_t> indices;  // ascending
};

// Keeps the memory that `sorted` has.
void SortRows(std::span<const int32_t> index, int64_t num_indices, RowsByIndex& sorted);

}  // namespace deepnet::native

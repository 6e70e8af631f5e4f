#include "trainer/kernels/native/sorted_rows.h"

#include <algorithm>
#include <random>

#include <gtest/gtest.h>

namespace deepnet::native {
namespace {

TEST(SortRows, RowsOfAnIndexStandTogetherAndAscend) {
  for (const int64_t num_indices : {1, 3, 2048, 2049, 250000}) {
    for (const int64_t rows : {0, 1, 17, 3000}) {
      std::mt19937 generator(7);
      std::vector<int32_t> index(rows);
      for (int32_t& i : index) i = static_cast<int32_t>(generator() % (num_indices + 1)) - 1;
      std::vector<std::pair<int32_t, int32_t>> pairs;  // index, row
      for (int64_t row = 0; row < rows; ++row) {
        if (index[row] >= 0) pairs.emplace_back(index[row], row);
      }
      std::sort(pairs.begin(), pairs.end());
      std::vector<int32_t> order, starts, indices;
      for (const auto& [i, row] : pairs) {
        if (indices.empty() || indices.back() != i) {
          indices.push_back(i);
          starts.push_back(static_cast<int32_t>(order.size()));
        }
        order.push_back(row);
      }
      starts.push_back(static_cast<int32_t>(order.size()));
      RowsByIndex sorted = {.order = {9, 9, 9}, .starts = {4}, .indices = {5, 5}};
      SortRows(index, num_indices, sorted);
      EXPECT_EQ(sorted.order, order);
      EXPECT_EQ(sorted.starts, starts);
      EXPECT_EQ(sorted.indices, indices);
    }
  }
}

TEST(SortRowsDeathTest, NamesTheRowOfAWrongIndex) {
  RowsByIndex sorted;
  EXPECT_DEATH(SortRows(std::vector<int32_t>{0, 4}, 4, sorted), "row 1 has index 4 of 4");
  EXPECT_DEATH(SortRows(std::vector<int32_t>{-2}, 4, sorted), "row 0 has index -2 of 4");
}

}  // namespace
}  // namespace deepnet::native

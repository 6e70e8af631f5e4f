#include "trainer/kernels/cuda/sampling.h"

#include <limits>

#include <gtest/gtest.h>

#include "tests/gpu/kernels/device_testing.h"
#include "tests/trainer/kernels/native/kernel_testing.h"
#include "trainer/decode/top_k.h"

namespace deepnet::cuda {
namespace {

using testing::AppendBytes;
using testing::DeviceArray;
using testing::ForThreadOrders;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Compares with the choice of a beam search on the host, row by row.
void ExpectHostsChoice(const std::vector<float>& x, int64_t cols, int64_t stride,
                       const std::vector<uint8_t>& forbidden, int k) {
  const int64_t rows = static_cast<int64_t>(x.size()) / stride;
  std::vector<float> values;
  std::vector<int32_t> indices;
  const std::vector<uint8_t> none(cols, 0);
  for (int64_t row = 0; row < rows; ++row) {
    std::vector<TokenScore> best;
    AppendTopK({&x[row * stride], static_cast<size_t>(cols)}, forbidden.empty() ? none : forbidden,
               k, best);
    best.resize(k, TokenScore{-kInfinity, -1});
    for (const TokenScore& token : best) {
      values.push_back(token.log_prob);
      indices.push_back(token.token);
    }
  }
  const DeviceArray<float> device_x(x);
  const DeviceArray<uint8_t> device_forbidden(forbidden);
  ForThreadOrders([&](GpuStream& gpu) {
    const DeviceArray<float> got_values(values.size());
    const DeviceArray<int32_t> got_indices(indices.size());
    TopK(gpu, {.rows = rows,
               .cols = cols,
               .x = device_x.data(),
               .stride = stride,
               .forbidden = forbidden.empty() ? nullptr : device_forbidden.data(),
               .k = k,
               .values = got_values.data(),
               .indices = got_indices.data()});
    EXPECT_EQ(gpu.launches(), rows == 0 ? 0 : 1);
    EXPECT_EQ(got_values.Read(gpu), values);
    EXPECT_EQ(got_indices.Read(gpu), indices);
    std::vector<uint8_t> bytes;
    AppendBytes(bytes, got_indices.Read(gpu));
    return bytes;
  });
}

TEST(GpuTopK, IsTheHostsChoiceForRandomRows) {
  for (const int64_t cols : {1, 2, 9, 255, 256, 257, 3000, 32003}) {
    for (const int k : {1, 4, 10, 64}) {
      SCOPED_TRACE(std::to_string(cols) + " columns, k = " + std::to_string(k));
      ExpectHostsChoice(native::testing::RandomFloats(3 * (cols + 3), 1, 4.0f), cols, cols + 3, {},
                        k);
    }
  }
}

// Few different values: every choice is between equals, up to more of them than are collected.
TEST(GpuTopK, EqualNumbersAreChosenByColumn) {
  for (const int64_t cols : {300, 1024, 1025, 5000}) {
    for (const int kinds : {1, 2, 50}) {
      SCOPED_TRACE(std::to_string(cols) + " columns, values: " + std::to_string(kinds));
      std::vector<float> x = native::testing::RandomFloats(2 * cols, 3);
      for (float& v : x) v = -static_cast<float>(static_cast<int>(std::abs(v) * 1000) % kinds);
      ExpectHostsChoice(x, cols, cols, {}, 10);
      ExpectHostsChoice(x, cols, cols, {}, 64);
    }
  }
}

TEST(GpuTopK, ForbiddenImpossibleAndMissingNumbersAreNeverChosen) {
  for (const int64_t cols : {40, 4000}) {
    SCOPED_TRACE(cols);
    std::vector<float> x = native::testing::RandomFloats(4 * cols, 5);
    std::vector<uint8_t> forbidden(cols, 0);
    for (int64_t c = 0; c < cols; ++c) {
      forbidden[c] = c % 3 == 0;
      if (c % 4 == 1) x[c] = std::nanf("");
      if (c % 5 == 2) x[cols + c] = -kInfinity;
      if (c > 6) x[2 * cols + c] = -kInfinity;  // fewer than k are possible
      x[3 * cols + c] = c < 9 ? kInfinity : -kInfinity;
    }
    ExpectHostsChoice(x, cols, cols, forbidden, 12);
    ExpectHostsChoice(x, cols, cols, std::vector<uint8_t>(cols, 1), 3);
  }
}

// More equals than are collected, of which the first may not be chosen; then infinities.
TEST(GpuTopK, TakesTheBestOneAfterTheOtherWhereTooManyAreEqual) {
  const int64_t cols = 3000;
  std::vector<float> x(2 * cols, -1.0f);
  std::vector<uint8_t> forbidden(cols, 0);
  for (int64_t c = 0; c < 40; ++c) forbidden[c] = 1;
  x[1234] = -0.5f;
  x[77] = std::nanf("");
  for (int64_t c = 0; c < cols; ++c) x[cols + c] = c % 2 == 0 ? kInfinity : 3.0f;
  ExpectHostsChoice(x, cols, cols, forbidden, 20);
  ExpectHostsChoice(x, cols, cols, {}, 64);
}

TEST(GpuTopK, NoRowsAreNoLaunch) { ExpectHostsChoice({}, 5, 5, {}, 2); }

TEST(GpuTopKDeathTest, NamesAWrongK) {
  GpuStream gpu;
  EXPECT_DEATH(TopK(gpu, {.rows = 1, .cols = 9, .stride = 9, .k = 65}), "k = 65");
}

}  // namespace
}  // namespace deepnet::cuda

#include "trainer/kernels/native/sampling.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "tests/gpu/kernels/device_testing.h"
#include "tests/trainer/kernels/native/kernel_testing.h"
#include "trainer/kernels/cuda/kernels.h"

namespace deepnet::cuda {
namespace {

using native::TokenChoice;
using native::TokenScore;
using testing::AppendBytes;
using testing::DeviceArray;
using testing::ForThreadOrders;
using testing::Launches;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Choices from rows of [rows, stride] numbers, `cols` of which are tokens.
struct Wanted {
  std::vector<float> x;
  int64_t cols = 0, stride = 0;
  std::vector<uint8_t> kinds;
  std::vector<TokenChoice> choices;
  int k = 1;
  double temperature = 0.0;
  native::TokenCuts cuts = {};
};

std::vector<TokenScore> ChosenOnHost(const Wanted& w) {
  std::vector<TokenScore> chosen(w.choices.size() * w.k);
  const native::TokenChoices choices{.count = static_cast<int64_t>(w.choices.size()),
                                     .choices = w.choices.data(),
                                     .kinds = w.kinds.data(),
                                     .k = w.k,
                                     .temperature = w.temperature,
                                     .cuts = w.cuts,
                                     .chosen = chosen.data()};
  for (int64_t i = 0; i < choices.count; ++i) {
    native::ChooseToken(w.x.data(), w.cols, w.stride, choices, i);
  }
  return chosen;
}

void ExpectHostsChoices(const Wanted& w) {
  const std::vector<TokenScore> expected = ChosenOnHost(w);
  const DeviceArray<float> x(w.x);
  const DeviceArray<uint8_t> kinds(w.kinds);
  const DeviceArray<TokenChoice> choices(w.choices);
  ForThreadOrders([&](GpuStream& gpu) {
    const DeviceArray<TokenScore> chosen(expected.size());
    ChooseTokens(gpu, x.data(), w.cols, w.stride,
                 {.count = static_cast<int64_t>(w.choices.size()),
                  .choices = choices.data(),
                  .kinds = kinds.data(),
                  .k = w.k,
                  .temperature = w.temperature,
                  .cuts = w.cuts,
                  .chosen = chosen.data()});
    EXPECT_EQ(Launches(gpu), w.choices.empty() ? 0 : 1);
    const std::vector<TokenScore> got = chosen.Read(gpu);
    EXPECT_EQ(got, expected);
    std::vector<uint8_t> bytes;
    AppendBytes(bytes, got);
    return bytes;
  });
}

// The k best of every row.
void ExpectHostsChoice(const std::vector<float>& x, int64_t cols, int64_t stride,
                       const std::vector<uint8_t>& forbidden, int k) {
  Wanted wanted{.x = x, .cols = cols, .stride = stride, .kinds = forbidden, .k = k};
  wanted.kinds.resize(cols);
  for (int64_t row = 0; row * stride < static_cast<int64_t>(x.size()); ++row) {
    wanted.choices.push_back({.row = static_cast<int32_t>(row), .forbidden = 1});
  }
  ExpectHostsChoices(wanted);
}

TEST(GpuTopK, IsTheHostsChoiceForRandomRows) {
  for (const int64_t cols : {1, 2, 9, 255, 256, 257, 3000, 32003}) {
    for (const int k : {1, 4, 10, 64, 256}) {
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

// A beam of 200: the threads' maxima are fewer than k.
TEST(GpuTopK, MoreThanThreads) {
  for (const int64_t cols : {300, 2000}) {
    ExpectHostsChoice(native::testing::RandomFloats(2 * cols, 1), cols, cols, {}, 290);
  }
}

TEST(GpuTopK, EachChoiceHasItsRowAndItsKinds) {
  Wanted wanted{.x = native::testing::RandomFloats(3 * 70, 2), .cols = 70, .stride = 70, .k = 3};
  for (int i = 0; i < 70; ++i) wanted.kinds.push_back(1 << (i % 3));
  for (const uint32_t forbidden : {0, 1, 2, 4, 3, 5, 6, 7}) {
    wanted.choices.push_back({.row = static_cast<int32_t>(forbidden % 3), .forbidden = forbidden});
  }
  ExpectHostsChoices(wanted);
}

// --- drawing ---

// Random rows, drawn from many times; some tokens impossible, some of a forbidden kind.
Wanted Draws(int64_t cols, double temperature) {
  Wanted wanted{.x = native::testing::RandomFloats(2 * (cols + 3), 7, 3.0f),
                .cols = cols,
                .stride = cols + 3,
                .temperature = temperature};
  for (int64_t c = 0; c < cols; ++c) {
    wanted.kinds.push_back(1 << (c % 5 == 4));
    if (c % 7 == 2) wanted.x[c] = c % 2 == 0 ? -kInfinity : std::nanf("");
  }
  for (int i = 0; i < 12; ++i) {
    wanted.choices.push_back({.row = i % 2,
                              .forbidden = static_cast<uint32_t>(2 * (i % 3 > 0)),
                              .uniform = (i + 0.37) / 12});
  }
  wanted.choices[0].uniform = 0.0;
  wanted.choices[11].uniform = 1.0 - 0x1p-53;
  return wanted;
}

TEST(GpuDraw, IsTheHostsDrawForRandomRows) {
  for (const int64_t cols : {1, 2, 31, 32, 33, 255, 256, 257, 600, 3000}) {
    for (const double temperature : {0.2, 1.0, 3.0}) {
      SCOPED_TRACE(std::to_string(cols) + " columns, T = " + std::to_string(temperature));
      ExpectHostsChoices(Draws(cols, temperature));
    }
  }
}

// Numbers of a row are equal in pairs; the cuts fall nowhere near a sum of equal shares.
TEST(GpuDraw, CutsAsTheHostDoes) {
  for (const int64_t cols : {1, 33, 300}) {
    Wanted wanted = Draws(cols, 0.9);
    for (int64_t c = 1; c < 2 * wanted.stride; c += 2) wanted.x[c] = wanted.x[c - 1];
    for (const native::TokenCuts& cuts :
         std::vector<native::TokenCuts>{{.top_k = 1},
                                        {.top_k = 6},
                                        {.top_k = 1000},
                                        {.top_p = 0.6173},
                                        {.top_p = 0.9871},
                                        {.epsilon = 0.00213},
                                        {.epsilon = 1.0},
                                        {.top_k = 40, .top_p = 0.7331, .epsilon = 0.0117}}) {
      SCOPED_TRACE(std::to_string(cols) + " columns, top_k = " + std::to_string(cuts.top_k) +
                   ", top_p = " + std::to_string(cuts.top_p));
      wanted.cuts = cuts;
      ExpectHostsChoices(wanted);
    }
  }
}

TEST(GpuSampling, AGivenTokenIsTakenUnlessItIsImpossible) {
  for (const double temperature : {0.0, 1.0}) {
    Wanted wanted = Draws(300, temperature);
    wanted.k = temperature > 0.0 ? 1 : 5;
    wanted.x[7] = -kInfinity;
    wanted.x[8] = std::nanf("");
    for (int i = 0; i < 12; i += 2) wanted.choices[i].given = i / 2 + 4;
    ExpectHostsChoices(wanted);
  }
}

TEST(GpuDraw, ATinyTemperatureTakesTheBest) { ExpectHostsChoices(Draws(500, 1e-6)); }

TEST(GpuDraw, NothingWhereNothingIsPossible) {
  Wanted wanted = Draws(300, 1.0);
  wanted.kinds.assign(300, 2);
  wanted.x.assign(wanted.x.size(), -1.0f);
  wanted.kinds[299] = 1;  // the only one that half of the choices may take
  ExpectHostsChoices(wanted);
  wanted.x.assign(wanted.x.size(), -kInfinity);
  ExpectHostsChoices(wanted);
}

TEST(GpuSamplingDeathTest, NamesAWrongK) {
  GpuStream gpu;
  EXPECT_DEATH(ChooseTokens(gpu, nullptr, 9, 9, {.count = 1, .k = 2, .temperature = 1}), "k = 2");
}

}  // namespace
}  // namespace deepnet::cuda

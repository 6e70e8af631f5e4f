// Frozen vectors: a change here changes every run that was ever started (docs/design/random.md).
#include "parallel/base/philox.h"

#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/initial_normal.h"

namespace deepnet {
namespace {

// The known-answer vectors of the Random123 distribution for philox4x32-10.
TEST(Philox, GivesThePublishedVectors) {
  EXPECT_EQ(Philox({0, 0}, {0, 0, 0, 0}),
            (PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(Philox({kOnes, kOnes}, {kOnes, kOnes, kOnes, kOnes}),
            (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox({0xa4093822, 0x299f31d0}, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}),
            (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(MakeKey, GivesTheFrozenKeys) {
  struct Row {
    uint64_t seed;
    RandomPurpose purpose;
    uint32_t k0, k1;
  };
  for (const Row& row : {Row{0, RandomPurpose::kInitialWeight, 0x7b1dcdaf, 0xe220a839},
                         Row{0, RandomPurpose::kDropout, 0xa1b965f4, 0x6e789e6a},
                         Row{1, RandomPurpose::kInitialWeight, 0x89025cc1, 0x910a2dec},
                         Row{2026, RandomPurpose::kInitialWeight, 0x91948d23, 0xdb9c5598},
                         Row{2026, RandomPurpose::kDropout, 0xed35455d, 0x78bc927d},
                         Row{~0ULL, RandomPurpose::kInitialWeight, 0x1b652c20, 0xe4d97177}}) {
    const PhiloxKey key = MakeKey(row.seed, row.purpose);
    EXPECT_EQ(key.k0, row.k0) << row.seed;
    EXPECT_EQ(key.k1, row.k1) << row.seed;
  }
}

TEST(HashName, IsFnv1aOf64Bits) {
  EXPECT_EQ(HashName(""), 0xcbf29ce484222325ULL);
  EXPECT_EQ(HashName("a"), 0xaf63dc4c8601ec8cULL);
  EXPECT_EQ(HashName("foobar"), 0x85944171f73967e8ULL);
  EXPECT_EQ(HashName("encoder.layers.0.self_attn.q_proj.weight"), 0x7d352276d3191258ULL);
  EXPECT_EQ(HashName("\xff"), (0xcbf29ce484222325ULL ^ 0xff) * 0x100000001b3ULL);  // never signed
}

// Quantiles at (bits + 1/2) / 2^32, computed with 50 digits.
TEST(NormalFromBits, EqualsTheQuantileToTheLastBitsOfAFloat) {
  struct Row {
    uint32_t bits;
    double quantile;
  };
  for (const Row& row :
       {Row{0, -6.337957754553789252}, Row{1, -6.166429517819750247},
        Row{0xff, -5.295061351886091904}, Row{0x10000, -4.169567584466583013},
        Row{0x1000000, -2.660067458579971826}, Row{0x13333332, -1.439531472089817325},
        Row{0x13333333, -1.439531470445015312}, Row{0x40000000, -0.674489749829738432},
        Row{0x7fffffff, -2.918099372916622672e-10}, Row{0x80000000, 2.918099372916622672e-10},
        Row{0x9abcdef0, 0.264868041008597504}, Row{0xeccccccc, 1.439531470445015312},
        Row{0xecccccce, 1.439531473734619343}, Row{0xff000000, 2.660067478654947760},
        Row{0xffffffff, 6.337957754553789252}}) {
    EXPECT_NEAR(NormalFromBits(row.bits), row.quantile, 1e-7 * std::abs(row.quantile)) << row.bits;
  }
}

TEST(NormalFromBits, IsOddAndNeverFalls) {
  float last = -INFINITY;
  for (uint64_t bits = 0; bits < (1ULL << 32); bits += 40'009) {
    const float x = NormalFromBits(static_cast<uint32_t>(bits));
    EXPECT_EQ(x, -NormalFromBits(~static_cast<uint32_t>(bits))) << bits;
    EXPECT_GE(x, last) << bits;
    last = x;
  }
}

// The mean of a million draws has a deviation of 0.001, the second moment 0.0014, the third 0.0039,
// the fourth 0.0098: five deviations are allowed.
TEST(FillInitialNormal, HasTheMomentsOfAStandardNormal) {
  std::vector<float> values(1'000'000);
  FillInitialNormal(7, "moments", 0, values);
  double m1 = 0, m2 = 0, m3 = 0, m4 = 0;
  for (const double x : values) {
    m1 += x;
    m2 += x * x;
    m3 += x * x * x;
    m4 += x * x * x * x;
  }
  const double n = static_cast<double>(values.size());
  EXPECT_NEAR(m1 / n, 0.0, 0.005);
  EXPECT_NEAR(m2 / n, 1.0, 0.007);
  EXPECT_NEAR(m3 / n, 0.0, 0.020);
  EXPECT_NEAR(m4 / n, 3.0, 0.049);
}

TEST(InitialNormal, GivesTheFrozenValues) {
  const std::string name = "encoder.layers.0.self_attn.q_proj.weight";
  struct Row {
    int64_t index;
    float value;
  };
  for (const Row& row : {Row{0, -0x1.445726p+0f}, Row{1, 0x1.e800cp-1f}, Row{2, -0x1.2f4744p-1f},
                         Row{3, 0x1.15b046p-1f}, Row{4, -0x1.3c4f44p-9f}, Row{5, -0x1.4d07a6p-4f},
                         Row{1'000'003, 0x1.cff6dep-2f}, Row{(1LL << 34) + 1, 0x1.218866p+0f}}) {
    EXPECT_EQ(std::bit_cast<uint32_t>(InitialNormal(1, name, row.index)),
              std::bit_cast<uint32_t>(row.value))
        << row.index;
  }
}

TEST(FillInitialNormal, IsInitialNormalElementByElementWhereverItBegins) {
  const std::string name = "decoder.layers.9.fc1.weight";
  for (const int64_t first : {0, 1, 6, 4095}) {
    std::vector<float> values(11);  // not a multiple of four
    FillInitialNormal(3, name, first, values);
    for (size_t i = 0; i < values.size(); ++i) {
      const int64_t element = first + static_cast<int64_t>(i);
      EXPECT_EQ(values[i], InitialNormal(3, name, element)) << element;
    }
  }
  EXPECT_NE(InitialNormal(3, name, 0), InitialNormal(4, name, 0));
  EXPECT_NE(InitialNormal(3, name, 0), InitialNormal(3, "decoder.layers.9.fc2.weight", 0));
}

}  // namespace
}  // namespace deepnet

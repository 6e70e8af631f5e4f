#include "trainer/kernels/native/dropout.h"

#include <gtest/gtest.h>

#include "tests/trainer/kernels/native/dropout_testing.h"
#include "tests/trainer/kernels/native/kernel_testing.h"

namespace deepnet::native {
namespace {

using testing::ForEachIsaAndThreads;
using testing::Ids;
using testing::Operand;

constexpr DropoutSite kFirstKey = {
    .seed = 1, .step = 1, .stack = 0, .layer = 0, .site = 1, .rate = 0.1};
constexpr DropoutSite kFarKey = {.seed = 0xDEADBEEF12345678,
                                 .step = (int64_t{5} << 32) + 77,
                                 .stack = 1,
                                 .layer = 499,
                                 .site = 7,
                                 .rate = 0.5};

std::vector<uint8_t> MaskOfOneRow(const DropoutSite& key, uint32_t pair, uint32_t position) {
  Cpu cpu(1);
  std::vector<uint8_t> mask(12);
  DropoutMask(cpu, key, {.positions = &position, .pairs = &pair}, 1, 96, mask.data());
  return mask;
}

// Persistent: computed by an independent implementation of the layout in dropout.h.
TEST(Dropout, MasksAreTheFrozenOnes) {
  EXPECT_EQ(MaskOfOneRow(kFirstKey, 0, 0),
            (std::vector<uint8_t>{0xf9, 0xff, 0xfb, 0xfd, 0xdd, 0x73, 0xfe, 0xde, 0xdb, 0xff, 0xff,
                                  0xfe}));
  EXPECT_EQ(MaskOfOneRow(kFarKey, 123456, 1023),
            (std::vector<uint8_t>{0xf9, 0x12, 0xd1, 0x73, 0x1d, 0xf5, 0x48, 0x1c, 0xe8, 0x8b, 0xad,
                                  0x2a}));
}

TEST(Dropout, VectorMasksEqualTheScalarDefinition) {
  for (const int64_t cols : {1, 8, 13, 31, 32, 33, 64, 65, 100, 128, 136, 200}) {
    const int64_t rows = 35;
    const Ids ids(rows);
    ForEachIsaAndThreads([&](Cpu& cpu) {
      std::vector<uint8_t> mask(rows * MaskBytes(cols));
      DropoutMask(cpu, kFarKey, ids.rows(), rows, cols, mask.data());
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < cols; ++c) {
          const bool keep = mask[r * MaskBytes(cols) + c / 8] >> (c % 8) & 1;
          EXPECT_EQ(keep, KeepElement(kFarKey, ids.pair[r], ids.position[r], c)) << r << " " << c;
        }
      }
      return std::vector<double>(mask.begin(), mask.end());
    });
  }
}

TEST(Dropout, EveryPartOfTheIdentityChangesTheMask) {
  const std::vector<uint8_t> mask = MaskOfOneRow(kFarKey, 3, 4);
  EXPECT_NE(mask, MaskOfOneRow(kFarKey, 4, 4));
  EXPECT_NE(mask, MaskOfOneRow(kFarKey, 3, 5));
  const auto changed = [&](auto field, auto value) {
    DropoutSite key = kFarKey;
    key.*field = value;
    return MaskOfOneRow(key, 3, 4);
  };
  EXPECT_NE(mask, changed(&DropoutSite::seed, uint64_t{2}));
  EXPECT_NE(mask, changed(&DropoutSite::step, kFarKey.step + 1));
  EXPECT_NE(mask, changed(&DropoutSite::step, int64_t{77}));
  EXPECT_NE(mask, changed(&DropoutSite::stack, 0));
  EXPECT_NE(mask, changed(&DropoutSite::layer, 498));
  EXPECT_NE(mask, changed(&DropoutSite::site, 6));
}

TEST(Dropout, KeepsTheAskedShareOfElements) {
  const int64_t rows = 512, cols = 512;
  const Ids ids(rows);
  Cpu cpu(2);
  for (const double rate : {0.1, 0.5, 0.9}) {
    DropoutSite key = kFirstKey;
    key.rate = rate;
    std::vector<uint8_t> mask(rows * MaskBytes(cols));
    DropoutMask(cpu, key, ids.rows(), rows, cols, mask.data());
    int64_t kept = 0;
    for (const uint8_t byte : mask) kept += std::popcount(byte);
    const double n = static_cast<double>(rows * cols);
    const double five_deviations = 5 * std::sqrt(rate * (1 - rate) / n);
    EXPECT_NEAR(kept / n, 1 - rate, five_deviations);
  }
}

TEST(Dropout, ScalesWhatItKeepsForwardAndBackward) {
  for (const Element element : {Element::kFloat32, Element::kBfloat16}) {
    for (const int64_t cols : {5, 16, 37, 70}) {
      const int64_t rows = 40;
      const Ids ids(rows);
      const std::vector<float> values = testing::RandomFloats(rows * cols, 3);
      ForEachIsaAndThreads([&](Cpu& cpu) {
        Operand x = Operand::Of(element, rows, cols, values, 3);
        const Operand original = x;
        Operand dx = x;
        std::vector<uint8_t> mask(rows * MaskBytes(cols));
        DropoutForward(cpu, kFarKey, ids.rows(), x.view(), mask.data());
        DropoutBackward(cpu, kFarKey.rate, mask.data(), dx.view());
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t c = 0; c < cols; ++c) {
            const bool keep = KeepElement(kFarKey, ids.pair[r], ids.position[r], c);
            EXPECT_EQ(x.At(r, c), keep ? 2 * original.At(r, c) : 0.0);
          }
        }
        EXPECT_EQ(x.Values(), dx.Values());
        EXPECT_TRUE(x.MarginIsUntouched());
        return x.Values();
      });
    }
  }
}

TEST(Dropout, RateZeroLeavesEverythingAlone) {
  Operand x = Operand::Of(Element::kFloat32, 2, 9, testing::RandomFloats(18, 1));
  const std::vector<double> before = x.Values();
  Cpu cpu(1);
  DropoutForward(cpu, DropoutSite{}, PackedRows{}, x.view(), nullptr);
  DropoutBackward(cpu, 0.0, nullptr, x.view());
  EXPECT_EQ(x.Values(), before);
}

TEST(DropoutDeathTest, RefusesWhatTheCounterCannotHold) {
  DropoutSite key = kFirstKey;
  key.layer = 1 << 13;
  EXPECT_DEATH(MakeDropoutStream(key), "layer 8192");
  key = kFirstKey;
  key.rate = 1.0;
  EXPECT_DEATH(MakeDropoutStream(key), "rate");
}

}  // namespace
}  // namespace deepnet::native

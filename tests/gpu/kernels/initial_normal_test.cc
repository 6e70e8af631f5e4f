// Initial weights drawn on a GPU: the CPU's bits. tests/trainer/model/init_test.cc draws whole
// models.
#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/gpu/kernels/device_testing.h"
#include "trainer/kernels/cuda/kernels.h"

namespace deepnet::cuda {
namespace {

using testing::AppendBytes;
using testing::DeviceArray;
using testing::ForThreadOrders;
using testing::Launches;

// A seed of more than 32 bits.
PhiloxKey TestKey() { return MakeKey(0xDEADBEEF12345678, RandomPurpose::kInitialWeight); }

std::vector<float> ByDefinition(PhiloxKey key, uint64_t hash, int64_t n, float std) {
  std::vector<float> values;
  PhiloxBlock words{};
  for (int64_t i = 0; i < n; ++i) {
    if (i % 4 == 0) {
      words = Philox(key, {static_cast<uint32_t>(i / 4), 0, static_cast<uint32_t>(hash),
                           static_cast<uint32_t>(hash >> 32)});
    }
    values.push_back(NormalFromBits(words[static_cast<size_t>(i % 4)]) * std);
  }
  return values;
}

std::vector<uint32_t> BitsOf(const std::vector<float>& values) {
  std::vector<uint32_t> bits;
  for (const float value : values) bits.push_back(std::bit_cast<uint32_t>(value));
  return bits;
}

TEST(GpuInitialNormal, HasTheBitsOfTheCpuAtEveryLengthAndNothingBehind) {
  const uint64_t hash = HashName("encoder.layers.0.self_attn.q_proj.weight");
  for (const int64_t n : {0, 1, 3, 4, 5, 1023, 1024, 1025, 9001}) {
    for (const int64_t shift : {0, 1}) {  // in memory: aligned or not
      SCOPED_TRACE(std::to_string(n) + " shifted by " + std::to_string(shift));
      const std::vector<uint32_t> expected = BitsOf(ByDefinition(TestKey(), hash, n, 0.0312f));
      ForThreadOrders([&](GpuStream& gpu) {
        const DeviceArray<float> memory(static_cast<size_t>(shift + n + 4));
        InitialNormal(gpu, TestKey(), hash, {memory.data() + shift, static_cast<size_t>(n)},
                      0.0312f);
        EXPECT_EQ(Launches(gpu), n == 0 ? 0 : 1);
        const std::vector<float> got = memory.Read(gpu);
        EXPECT_TRUE(BitsOf({got.begin() + shift, got.end() - 4}) == expected);
        for (auto after = got.end() - 4; after != got.end(); ++after) {
          EXPECT_TRUE(std::isnan(*after));
        }
        std::vector<uint8_t> result;
        AppendBytes(result, std::vector<float>(got.begin() + shift, got.end() - 4));
        return result;
      });
    }
  }
}

TEST(GpuInitialNormal, MillionsOfElementsHaveTheBitsOfTheCpu) {
  constexpr int64_t kElements = (int64_t{3} << 20) + 2;
  const uint64_t hash = HashName("decoder.layers.499.fc1.weight");
  GpuStream gpu;
  const DeviceArray<float> memory(static_cast<size_t>(kElements));
  InitialNormal(gpu, TestKey(), hash, {memory.data(), static_cast<size_t>(kElements)}, 0.75f);
  EXPECT_TRUE(BitsOf(memory.Read(gpu)) == BitsOf(ByDefinition(TestKey(), hash, kElements, 0.75f)));
}

// Draws that hardly ever come: the ends, the middle, and where the quantile's two formulas meet.
// The counters were looked for.
TEST(GpuInitialNormal, TheEndsOfTheNormalHaveTheBitsOfTheCpu) {
  struct Draw {
    uint64_t hash;
    size_t word;
    uint32_t bits;
  };
  const PhiloxKey key = MakeKey(1, RandomPurpose::kInitialWeight);
  GpuStream gpu;
  for (const Draw& draw :
       {Draw{202288353, 3, 0}, Draw{2903876712, 1, 1}, Draw{306937888, 0, 0x13333332},
        Draw{236280037, 1, 0x13333333}, Draw{637183455, 2, 0x13333334},
        Draw{651960437, 1, 0x7FFFFFFF}, Draw{3319550459, 1, 0x80000000},
        Draw{550924513, 3, 0xECCCCCCB}, Draw{161675519, 0, 0xECCCCCCC},
        Draw{4157819046, 3, 0xECCCCCCD}, Draw{533332479, 0, 0xFFFFFFFE}}) {
    SCOPED_TRACE(draw.bits);
    ASSERT_EQ(Philox(key, {0, 0, static_cast<uint32_t>(draw.hash), 0})[draw.word], draw.bits);
    const DeviceArray<float> memory(4);
    InitialNormal(gpu, key, draw.hash, {memory.data(), 4}, 1.0f);
    EXPECT_EQ(BitsOf(memory.Read(gpu))[draw.word],
              std::bit_cast<uint32_t>(NormalFromBits(draw.bits)));
  }
}

}  // namespace
}  // namespace deepnet::cuda

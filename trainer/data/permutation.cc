// Counter layout of Philox under the key of RandomPurpose::kDataOrder (docs/design/data.md):
//   Feistel round     {half block, epoch, stream low, stream high with its top byte = round}
//   bounded number    {index, window low, window high, 0xFF000000}
#include "trainer/data/permutation.h"

#include <algorithm>
#include <bit>

#include "parallel/base/check.h"

namespace deepnet {
namespace {

constexpr uint32_t kNumRounds = 6;
constexpr int kMinHalfBits = 2;

uint64_t Feistel(const PermutationKey& key, int half_bits, uint64_t value) {
  const uint64_t mask = (uint64_t{1} << half_bits) - 1;
  uint64_t left = value >> half_bits;
  uint64_t right = value & mask;
  for (uint32_t round = 0; round < kNumRounds; ++round) {
    const auto stream_high = static_cast<uint32_t>(key.stream >> 32) & 0x00FFFFFF;
    const PhiloxBlock bits =
        Philox(key.key, {static_cast<uint32_t>(right), key.epoch, static_cast<uint32_t>(key.stream),
                         stream_high | (round << 24)});
    const uint64_t next = left ^ (bits[0] & mask);
    left = right;
    right = next;
  }
  return left << half_bits | right;
}

}  // namespace

int64_t Permute(const PermutationKey& key, int64_t size, int64_t position) {
  DEEPNET_CHECK(0 <= position && position < size) << position << " of " << size;
  const int bits = std::bit_width(static_cast<uint64_t>(size - 1));
  const int half_bits = std::max((bits + 1) / 2, kMinHalfBits);
  auto value = static_cast<uint64_t>(position);
  do {
    value = Feistel(key, half_bits, value);
  } while (value >= static_cast<uint64_t>(size));
  return static_cast<int64_t>(value);
}

uint32_t BoundedNumber(PhiloxKey key, uint64_t window, uint32_t index, uint32_t bound) {
  const PhiloxBlock bits = Philox(
      key, {index, static_cast<uint32_t>(window), static_cast<uint32_t>(window >> 32), 0xFF000000});
  return static_cast<uint32_t>(static_cast<uint64_t>(bits[0]) * bound >> 32);
}

}  // namespace deepnet

#include "parallel/base/philox.h"

#include <cmath>

#include "parallel/base/normal_quantile.h"

namespace deepnet {
namespace {

constexpr uint32_t kMultiplier0 = 0xD2511F53;
constexpr uint32_t kMultiplier1 = 0xCD9E8D57;
constexpr uint32_t kWeyl0 = 0x9E3779B9;
constexpr uint32_t kWeyl1 = 0xBB67AE85;

PhiloxBlock InitialCounter(uint64_t name_hash, int64_t block) {
  return {static_cast<uint32_t>(block), static_cast<uint32_t>(static_cast<uint64_t>(block) >> 32),
          static_cast<uint32_t>(name_hash), static_cast<uint32_t>(name_hash >> 32)};
}

}  // namespace

PhiloxBlock Philox(PhiloxKey key, PhiloxBlock c) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = static_cast<uint64_t>(kMultiplier0) * c[0];
    const uint64_t p1 = static_cast<uint64_t>(kMultiplier1) * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ key.k0, static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ key.k1, static_cast<uint32_t>(p0)};
    key.k0 += kWeyl0;
    key.k1 += kWeyl1;
  }
  return c;
}

PhiloxKey MakeKey(uint64_t seed, RandomPurpose purpose) {
  uint64_t z = seed + static_cast<uint64_t>(purpose) * 0x9E3779B97F4A7C15ULL;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  z ^= z >> 31;
  return {static_cast<uint32_t>(z), static_cast<uint32_t>(z >> 32)};
}

uint64_t HashName(std::string_view name) {
  uint64_t hash = 0xCBF29CE484222325ULL;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3ULL;
  return hash;
}

float NormalFromBits(uint32_t bits) {
  return NormalQuantile(bits, [](double x) { return std::sqrt(x); });
}

void FillInitialNormal(uint64_t seed, std::string_view name, int64_t first,
                       std::span<float> values) {
  const uint64_t hash = HashName(name);
  const PhiloxKey key = MakeKey(seed, RandomPurpose::kInitialWeight);
  PhiloxBlock words{};
  for (size_t i = 0; i < values.size(); ++i) {
    const int64_t element = first + static_cast<int64_t>(i);
    if (i == 0 || element % 4 == 0) words = Philox(key, InitialCounter(hash, element / 4));
    values[i] = NormalFromBits(words[static_cast<uint64_t>(element) % 4]);
  }
}

}  // namespace deepnet

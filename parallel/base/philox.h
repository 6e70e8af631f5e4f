// Random numbers as a function of identity: Philox4x32-10 (Salmon et al., "Parallel Random Numbers:
// As Easy as 1, 2, 3", SC 2011). No state, no order of calls, no libm: the same bits on every host,
// thread count and pipeline cut. Counter layouts and frozen vectors: docs/design/random.md.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace deepnet {

// The use of a stream of random numbers. Two purposes never share numbers. The values are
// persistent.
enum class RandomPurpose : uint32_t {
  kInitialWeight = 1,
  kDropout = 2,
  kDataOrder = 3,
  kSampling = 4,
  kHiddenPieces = 5,
  kSubwords = 6,
};

struct PhiloxKey {
  uint32_t k0 = 0;
  uint32_t k1 = 0;
};

using PhiloxBlock = std::array<uint32_t, 4>;

// Returns 128 random bits of (key, counter), after ten rounds.
PhiloxBlock Philox(PhiloxKey key, PhiloxBlock counter);

// Returns the key of a run's seed and a purpose: SplitMix64's finalizer of seed + purpose * golden
// ratio.
PhiloxKey MakeKey(uint64_t seed, RandomPurpose purpose);

// FNV-1a, 64 bits: how a parameter's name enters a counter.
uint64_t HashName(std::string_view name);

// Returns the standard normal of 32 random bits (NormalQuantile).
float NormalFromBits(uint32_t bits);

// Fills `values` with the elements from `first` on of the initial values of parameter `name`,
// standard normal. Counter of element i: {i / 4 low, i / 4 high, hash low, hash high}, word i % 4.
void FillInitialNormal(uint64_t seed, std::string_view name, int64_t first,
                       std::span<float> values);

}  // namespace deepnet

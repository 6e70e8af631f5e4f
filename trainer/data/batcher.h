// Packs encoded pairs into microbatches of constant capacity.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "trainer/data/encoded_pair.h"
#include "trainer/data/microbatch.h"

namespace deepnet {

// Positions that a pair takes in a microbatch, tags and ends included.
struct PairSize {
  int32_t source = 0;
  int32_t target = 0;

  friend bool operator==(const PairSize&, const PairSize&) = default;
};

// The most that one microbatch holds.
struct Capacity {
  int32_t source = 0;     // positions; 0 where pairs have only a target
  int32_t target = 0;     // positions
  int32_t sentences = 0;  // pairs
};

// Which pairs stand in which microbatch.
struct Packing {
  std::vector<std::vector<int>> microbatches;  // indices of pairs, in order of placement
  std::vector<int> left;                       // indices of pairs that did not fit, ascending
};

// Places the pairs, longest first, each into the microbatch where the largest of the three relative
// loads stays least, ties to the lower index. Takes O(pairs x microbatches).
Packing PackBalanced(std::span<const PairSize> pairs, int num_microbatches,
                     const Capacity& capacity);

// Places further pairs in their order into the first microbatch with room, where there is one.
// `sizes[i]` is the size of pair i as used in `packing`; `more` are further indices into it.
void PackFirstFit(std::span<const PairSize> sizes, std::span<const int> more,
                  const Capacity& capacity, Packing* packing);

// Packs pairs one after the other into one microbatch.
class MicrobatchBuilder {
 public:
  explicit MicrobatchBuilder(const Capacity& capacity);

  bool HasRoom(const EncodedPair& pair) const;

  // `ordinal` is the pair's number in the step. Requires HasRoom(pair).
  void Add(uint32_t ordinal, const EncodedPair& pair);

  // Returns the microbatch, padded to capacity. The builder is used up.
  Microbatch Build() &&;

 private:
  const Capacity capacity_;
  Microbatch batch_;
};

// Makes up sentences of real lengths for benchmarks: as few balanced microbatches as hold one pair
// of each (source, target) length in positions, with pieces drawn by `seed`. Ordinals count from 0
// through all of them. Lengths must be within capacity.
std::vector<Microbatch> MakeBenchMicrobatches(std::span<const std::pair<int, int>> lengths,
                                              const Capacity& capacity, int32_t vocabulary_size,
                                              uint64_t seed);

}  // namespace deepnet

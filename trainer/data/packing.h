// Fits pairs into microbatches of constant capacity.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace deepnet {

// Positions that a pair takes in a microbatch, tags and ends included.
struct PairSize {
  int32_t source = 0;
  int32_t target = 0;

  friend bool operator==(const PairSize&, const PairSize&) = default;
};

// What one microbatch holds at most.
struct Capacity {
  int32_t source = 0;     // positions; 0 where pairs have only a target
  int32_t target = 0;     // positions
  int32_t sentences = 0;  // pairs
};

// Numbers of pairs, by microbatch.
struct Packing {
  std::vector<std::vector<int>> microbatches;  // indices into the pairs, in order of placement
  std::vector<int> left;                       // that did not fit, ascending
};

// Longest first, each pair into the microbatch where the largest of its three relative loads stays
// least: sides of different lengths balance each other. O(pairs x microbatches). Deterministic:
// ties go to the lower index.
Packing PackBalanced(std::span<const PairSize> pairs, int num_microbatches,
                     const Capacity& capacity);

// Places further pairs in their order into the first microbatch with room; returns those left.
// `sizes[i]` is the size of pair i as used in `packing`; `more` are further indices into it.
std::vector<int> PackFirstFit(std::span<const PairSize> sizes, std::span<const int> more,
                              const Capacity& capacity, Packing* packing);

}  // namespace deepnet

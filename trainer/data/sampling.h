// Temperature sampling of directions in closed form, and shuffles that can be asked at one place:
// no lists, no state.
//
// Direction i is drawn with share p_i ~ (n_i / sum n)^(1/T): after w windows of P pairs it has
// given the integer part of w P p_i (plus a fixed phase, so that directions do not all advance at
// once).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "parallel/base/philox.h"

namespace deepnet {

// Returns exp(x) for x <= 0, by + - * / alone, so the same bits on every host; 0 below -700.
double PortableExp(double x);

// Returns integers proportional to factors times counts^(1/temperature): at temperature 1 and equal
// factors the counts themselves, else rounded at 2^40. The same bits on every host (no libm).
// counts >= 0, temperature >= 1; factors > 0, none: all 1.
std::vector<int64_t> SamplingWeights(std::span<const int64_t> counts, double temperature,
                                     std::span<const double> factors = {});

// The temperature from a window on.
struct SamplingPhase {
  int64_t first_window = 0;  // of the first phase 0, then ascending
  double temperature = 1.0;
};

class SamplingPlan {
 public:
  // `pairs_per_window` > 0; at least one count > 0; `factors` as for SamplingWeights.
  SamplingPlan(std::span<const int64_t> counts, std::vector<SamplingPhase> phases,
               int64_t pairs_per_window, std::span<const double> factors = {});

  // Returns the pairs that `direction` has given in the windows before `window`. Ascending in
  // `window`; windows up to 2^62 / pairs_per_window.
  int64_t NumDrawn(int direction, int64_t window) const;

  // Returns the share of direction `direction` in phase `phase`, from 0 to 1.
  double Share(int direction, int phase) const;

 private:
  const std::vector<SamplingPhase> phases_;
  const int64_t pairs_per_window_;
  std::vector<std::vector<int64_t>> weights_;  // [phase][direction]
  std::vector<int64_t> weight_sums_;           // [phase]
};

// Identifies a permutation: the pairs of a direction are shuffled anew in every epoch.
struct PermutationKey {
  PhiloxKey key;        // MakeKey(seed, RandomPurpose::kDataOrder)
  uint64_t stream = 0;  // HashName of the direction
  uint32_t epoch = 0;
};

// Returns entry `position` of the permutation of 0 .. size-1. It is a Feistel network of six rounds
// over the next even power of two, walked until it lands inside. Frozen vectors: sampling_test.cc.
int64_t Permute(const PermutationKey& key, int64_t size, int64_t position);

// Returns a number in [0, bound), for the shuffle of the microbatches of a window.
uint32_t BoundedNumber(PhiloxKey key, uint64_t window, uint32_t index, uint32_t bound);

}  // namespace deepnet

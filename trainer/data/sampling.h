// How many pairs of each direction have been drawn by when: temperature sampling in closed form.
//
// Direction i is drawn with share p_i ~ (n_i / sum n)^(1/T). Nothing is thrown: after w windows of
// P pairs it has given the whole part of w P p_i (plus a fixed phase, so that directions do not all
// advance at once). At T = 1 the shares are the sizes, and after sum n pairs each direction has
// given each of its pairs exactly once.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace deepnet {

// Whole numbers proportional to counts^(1/temperature): at temperature 1 the counts themselves,
// else rounded at 2^40. The same bits on every host (no libm). counts >= 0, temperature >= 1.
std::vector<int64_t> SamplingWeights(std::span<const int64_t> counts, double temperature);

// A temperature from a window on.
struct SamplingPhase {
  int64_t first_window = 0;  // of the first phase 0, then ascending
  double temperature = 1.0;
};

class SamplingPlan {
 public:
  // `pairs_per_window` > 0; at least one count > 0.
  SamplingPlan(std::span<const int64_t> counts, std::vector<SamplingPhase> phases,
               int64_t pairs_per_window);

  // Pairs that direction `direction` has given in the windows before `window`. Ascending in
  // `window`; windows up to 2^62 / pairs_per_window.
  int64_t NumDrawn(int direction, int64_t window) const;

  // Share of direction `direction` in phase `phase`, from 0 to 1.
  double Share(int direction, int phase) const;
  int num_phases() const { return static_cast<int>(phases_.size()); }

 private:
  const std::vector<SamplingPhase> phases_;
  const int64_t pairs_per_window_;
  std::vector<std::vector<int64_t>> weights_;  // [phase][direction]
  std::vector<int64_t> weight_sums_;           // [phase]
};

}  // namespace deepnet

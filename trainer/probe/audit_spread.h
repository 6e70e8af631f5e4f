// How far the values of one tensor, or of many together, are from what they were drawn from: the
// arithmetic of the audit, without models (trainer/probe/audit.h).
//
// Tolerances. A matrix drawn from N(0, sigma^2): its deviation may be off by kStdTolerance or,
// where that is more, by kSamplingErrors times the sampling error of the n elements looked at, 1 /
// sqrt(2 n); its mean by kSamplingErrors sigma / sqrt(n). A tensor that starts at one value has
// that value in every element looked at. A zero row is zero in all elements.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "parallel/plan/inventory.h"

namespace deepnet {

inline constexpr double kStdTolerance = 0.02;
inline constexpr double kSamplingErrors = 6.0;  // one false alarm in 500 million tensors

// A tensor, or all tensors of a group in units of their sigma.
struct SpreadAudit {
  int64_t elements = 0;    // looked at, without those of a zero row
  double std_ratio = 1.0;  // measured over expected deviation; 1 where nothing is drawn
  double tolerance = 0.0;  // of std_ratio
  double mean = 0.0;       // over the expected deviation; measured mean where nothing is drawn
  std::string fault;       // what is wrong, with both values; empty: as theory wants
};

// Sums over the elements of a tensor that were looked at.
struct SpreadSums {
  int64_t count = 0;
  double sum = 0.0, squares = 0.0;  // of values; squares of a constant tensor: off its value
  int64_t wrong = 0;  // elements of a constant tensor, or of a zero row, that are not as they must

  SpreadSums& operator+=(const SpreadSums& other);
  SpreadSums InUnitsOf(double deviation) const;
};

// Elements of a row of `p`; 1 for a vector.
int64_t RowElements(const Parameter& p);

// `values`: the first elements of `p`, of which every `stride`-th is looked at.
SpreadSums LookAtValues(const Parameter& p, std::span<const float> values, int64_t stride);

// `sums` are in units of the expected deviation.
SpreadAudit JudgeSpread(const SpreadSums& sums);
SpreadAudit JudgeTensor(const Parameter& p, const SpreadSums& sums);

// How far from theory, as a share of what is allowed; infinite for a fault.
double Badness(const SpreadAudit& audit);

}  // namespace deepnet

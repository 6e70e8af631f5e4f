#include "trainer/probe/audit_spread.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_format.h"

namespace deepnet {
namespace {

// Adds elements begin, begin + stride, ... below `end`.
void AddRange(const Parameter& p, std::span<const float> values, int64_t begin, int64_t end,
              int64_t stride, SpreadSums& sums) {
  for (int64_t i = begin; i < end; i += stride) {
    const double value = values[i];
    const double off = p.initial_std == 0 ? value - p.initial_value : value;
    sums.sum += value;
    sums.squares += off * off;
    if (p.initial_std == 0 && values[i] != p.initial_value) ++sums.wrong;
    ++sums.count;
  }
}

SpreadAudit JudgeConstant(const Parameter& p, const SpreadSums& sums) {
  SpreadAudit audit{.elements = sums.count};
  audit.mean = sums.sum / static_cast<double>(sums.count);
  if (sums.wrong > 0) {
    audit.fault = absl::StrFormat("%d of %d elements do not start at %g", sums.wrong, sums.count,
                                  p.initial_value);
  }
  return audit;
}

}  // namespace

SpreadSums& SpreadSums::operator+=(const SpreadSums& other) {
  count += other.count;
  sum += other.sum;
  squares += other.squares;
  wrong += other.wrong;
  return *this;
}

SpreadSums SpreadSums::InUnitsOf(double deviation) const {
  SpreadSums units = *this;
  units.sum /= deviation;
  units.squares /= deviation * deviation;
  return units;
}

int64_t RowElements(const Parameter& p) {
  return p.shape.size() < 2 ? 1 : p.NumElements() / p.shape[0];
}

SpreadSums LookAtValues(const Parameter& p, std::span<const float> values, int64_t stride) {
  const auto size = static_cast<int64_t>(values.size());
  SpreadSums sums;
  if (p.zero_row < 0) {
    AddRange(p, values, 0, size, stride, sums);
    return sums;
  }
  const int64_t begin = p.zero_row * RowElements(p), end = begin + RowElements(p);
  AddRange(p, values, 0, begin, stride, sums);
  AddRange(p, values, end, size, stride, sums);
  for (int64_t i = begin; i < end; ++i) sums.wrong += values[i] != 0.0f ? 1 : 0;
  return sums;
}

SpreadAudit JudgeSpread(const SpreadSums& sums) {
  const auto n = static_cast<double>(sums.count);
  SpreadAudit audit{.elements = sums.count};
  audit.mean = sums.sum / n;
  audit.std_ratio = std::sqrt(std::max(0.0, sums.squares / n - audit.mean * audit.mean));
  audit.tolerance = std::max(kStdTolerance, kSamplingErrors / std::sqrt(2 * n));
  const double most_mean = kSamplingErrors / std::sqrt(n);
  if (!(std::abs(audit.std_ratio - 1) <= audit.tolerance)) {  // NaN is a fault too
    audit.fault = absl::StrFormat("standard deviation %.4f of what theory wants (%.1f %% allowed)",
                                  audit.std_ratio, 100 * audit.tolerance);
  } else if (!(std::abs(audit.mean) <= most_mean)) {
    audit.fault =
        absl::StrFormat("mean %.4f deviations from 0 (%.4f allowed)", audit.mean, most_mean);
  }
  return audit;
}

SpreadAudit JudgeTensor(const Parameter& p, const SpreadSums& sums) {
  if (p.initial_std == 0) return JudgeConstant(p, sums);
  SpreadAudit audit = JudgeSpread(sums.InUnitsOf(p.initial_std));
  if (audit.fault.empty() && sums.wrong > 0) {
    audit.fault =
        absl::StrFormat("row %d must be zero, %d of its elements are not", p.zero_row, sums.wrong);
  }
  if (!audit.fault.empty()) absl::StrAppendFormat(&audit.fault, "; N(0, %.6f)", p.initial_std);
  return audit;
}

double Badness(const SpreadAudit& audit) {
  if (!audit.fault.empty()) return std::numeric_limits<double>::infinity();
  return audit.tolerance > 0 ? std::abs(audit.std_ratio - 1) / audit.tolerance : 0.0;
}

}  // namespace deepnet

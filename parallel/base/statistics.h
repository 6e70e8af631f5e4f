// Statistics of a few measured numbers.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace deepnet {

// Returns the middle one of `values`, the upper of the two where their number is even, 0 of none.
inline double Median(std::vector<double> values) {
  if (values.empty()) return 0.0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// The same, but the lower of the two.
inline double LowerMedian(std::vector<double> values) {
  for (double& value : values) value = -value;
  return -Median(std::move(values));
}

}  // namespace deepnet

#include "trainer/probe/statistics.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "parallel/base/check.h"

namespace deepnet {

Spread MeanAndSpread(std::span<const double> values) {
  std::vector<double> finite;
  for (const double value : values) {
    if (std::isfinite(value)) finite.push_back(value);
  }
  if (finite.empty()) return {};
  Spread spread{.count = static_cast<int>(finite.size()),
                .low = *std::min_element(finite.begin(), finite.end()),
                .high = *std::max_element(finite.begin(), finite.end())};
  for (const double value : finite) spread.mean += value / spread.count;
  double squares = 0.0;
  for (const double value : finite) squares += (value - spread.mean) * (value - spread.mean);
  if (spread.count > 1) spread.deviation = std::sqrt(squares / (spread.count - 1));
  return spread;
}

std::optional<LogFit> FitLogarithm(std::span<const double> x, std::span<const double> y) {
  DEEPNET_CHECK_EQ(x.size(), y.size());
  std::vector<double> u, v;
  for (size_t i = 0; i < x.size(); ++i) {
    if (!(x[i] > 0) || !std::isfinite(x[i]) || !std::isfinite(y[i])) continue;
    u.push_back(std::log10(x[i]));
    v.push_back(y[i]);
  }
  const double mean_u = MeanAndSpread(u).mean, mean_v = MeanAndSpread(v).mean;
  double uu = 0.0, uv = 0.0;
  for (size_t i = 0; i < u.size(); ++i) {
    uu += (u[i] - mean_u) * (u[i] - mean_u);
    uv += (u[i] - mean_u) * (v[i] - mean_v);
  }
  if (u.size() < 2 || uu < 1e-12) return std::nullopt;
  LogFit fit{.points = static_cast<int>(u.size()), .slope = uv / uu};
  fit.offset = mean_v - fit.slope * mean_u;
  double squares = 0.0;
  for (size_t i = 0; i < u.size(); ++i) {
    squares += std::pow(v[i] - fit.slope * u[i] - fit.offset, 2);
  }
  fit.residual = std::sqrt(squares / fit.points);
  if (fit.points > 2) {
    const double variance = squares / (fit.points - 2);
    fit.slope_error = std::sqrt(variance / uu);
    fit.offset_error = std::sqrt(variance * (1.0 / fit.points + mean_u * mean_u / uu));
  }
  return fit;
}

}  // namespace deepnet

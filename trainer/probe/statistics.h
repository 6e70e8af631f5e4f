// Means, spreads and straight lines through few points: all the laboratory says in numbers beyond
// what it has measured. Pure.
#pragma once

#include <optional>
#include <span>

namespace deepnet {

// Of the runs that differ in their seed only. All zero without values.
struct Spread {
  int count = 0;
  double mean = 0.0;
  double low = 0.0;        // smallest value
  double high = 0.0;       // largest
  double deviation = 0.0;  // of a sample: over count - 1; 0 of a single value
};

// Values that are no finite numbers are left out.
Spread MeanAndSpread(std::span<const double> values);

// y = slope log10(x) + offset by least squares, as the paper draws score against depth (figure 8).
struct LogFit {
  int points = 0;
  double slope = 0.0;         // A: of one factor of ten
  double offset = 0.0;        // B
  double slope_error = 0.0;   // one standard error, from the residuals; 0 with two points: unknown
  double offset_error = 0.0;  // likewise
  double residual = 0.0;      // root of the mean square
};

// Pairs whose x is not above 0 or whose y is not finite are left out. Nothing where fewer than two
// different x remain. `x` and `y` are equally long.
std::optional<LogFit> FitLogarithm(std::span<const double> x, std::span<const double> y);

}  // namespace deepnet

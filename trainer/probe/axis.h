// From values to places on a plot, and the round numbers written beside its axes. Pure.
#pragma once

#include <string>
#include <vector>

namespace deepnet {

enum class Scale { kLinear, kLog };

// Maps [low, high] to [from, to]; `from` may be the larger one, as on a screen's upright axis.
struct Axis {
  Scale scale = Scale::kLinear;
  double low = 0.0;   // kLog: above 0
  double high = 1.0;  // above low
  double from = 0.0;
  double to = 1.0;

  double Place(double value) const;
};

// An axis that holds all `values` with a little room; any values will do: those that cannot be
// shown (not finite; kLog: not above 0) are left out. `from` and `to` as in Axis.
Axis MakeAxis(Scale scale, const std::vector<double>& values, double from, double to);

// About `count` round values inside an axis: multiples of 1, 2 or 5 times a power of ten, or, over
// more than a factor of ten on kLog, such powers only.
std::vector<double> Ticks(const Axis& axis, int count);

// "0.002", "28.9", "1,000", "5e-4", "not a number": short, for people. `digits` significant ones.
std::string ShortNumber(double value, int digits = 3);

// `value` with that many significant digits: 1,772,152 with two is 1,800,000.
double Rounded(double value, int digits);

}  // namespace deepnet

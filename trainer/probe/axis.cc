#include "trainer/probe/axis.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

#include "parallel/base/logging.h"

namespace deepnet {
namespace {

constexpr double kRoom = 0.06;  // of the range, on either side

double Coordinate(Scale scale, double value) {
  return scale == Scale::kLog ? std::log10(value) : value;
}

double Value(Scale scale, double coordinate) {
  return scale == Scale::kLog ? std::pow(10.0, coordinate) : coordinate;
}

std::vector<double> LinearTicks(double low, double high, int count) {
  const double rough = (high - low) / count;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough * 0.999) {
      step = factor * power;
      break;
    }
  }
  std::vector<double> ticks;
  for (double k = std::ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; ++k) {
    ticks.push_back(k == 0 ? 0.0 : k * step);
  }
  return ticks;
}

std::vector<double> LogTicks(double low, double high, int count) {
  const double decades = std::log10(high / low);
  std::vector<double> factors = {1.0};
  if (decades < 2.5) factors = {1.0, 2.0, 5.0};
  const int every = std::max(1, static_cast<int>(std::ceil(decades / count)));
  std::vector<double> ticks;
  for (int power = static_cast<int>(std::floor(std::log10(low))); std::pow(10.0, power) <= high;
       ++power) {
    if (power % every != 0) continue;
    for (const double factor : factors) {
      const double tick = factor * std::pow(10.0, power);
      if (tick >= low * 0.999 && tick <= high * 1.001) ticks.push_back(tick);
    }
  }
  return ticks.size() >= 2 ? ticks : LinearTicks(low, high, count);
}

}  // namespace

double Axis::Place(double value) const {
  const double share = (Coordinate(scale, value) - Coordinate(scale, low)) /
                       (Coordinate(scale, high) - Coordinate(scale, low));
  return from + share * (to - from);
}

Axis MakeAxis(Scale scale, const std::vector<double>& values, double from, double to) {
  double low = HUGE_VAL, high = -HUGE_VAL;
  for (const double value : values) {
    if (!std::isfinite(value) || (scale == Scale::kLog && value <= 0)) continue;
    low = std::min(low, Coordinate(scale, value));
    high = std::max(high, Coordinate(scale, value));
  }
  if (low > high) low = high = Coordinate(scale, 1.0);
  // Equal values still need a range: a tenth of a decade, or of the value.
  const double least = scale == Scale::kLog ? 0.1 : std::max(0.1 * std::abs(high), 1e-9);
  const double room = std::max(kRoom * (high - low), (least - (high - low)) / 2);
  const bool at_zero = scale == Scale::kLinear && low >= 0 && low - room < 0;
  return {.scale = scale,
          .low = at_zero ? 0.0 : Value(scale, low - room),
          .high = Value(scale, high + room),
          .from = from,
          .to = to};
}

std::vector<double> Ticks(const Axis& axis, int count) {
  return axis.scale == Scale::kLog ? LogTicks(axis.low, axis.high, count)
                                   : LinearTicks(axis.low, axis.high, count);
}

std::string ShortNumber(double value, int digits) {
  if (std::isnan(value)) return "not a number";
  if (std::isinf(value)) return value > 0 ? "infinite" : "minus infinite";
  const double size = std::abs(value);
  if (size >= 1000 && size < 1e15) return WithCommas(std::llround(value));
  if (size > 0 && size < 1e-3) {
    const std::string text = absl::StrFormat("%.*e", digits - 1, value);  // "5.00e-04"
    const size_t at = text.find('e');
    std::string mantissa = text.substr(0, at);
    if (mantissa.find('.') != std::string::npos) {
      mantissa.erase(mantissa.find_last_not_of('0') + 1);
      if (mantissa.back() == '.') mantissa.pop_back();
    }
    return absl::StrCat(mantissa, "e", std::stoi(text.substr(at + 1)));
  }
  if (size >= std::pow(10.0, digits)) return absl::StrFormat("%.0f", value);  // no "5.3e+02"
  return absl::StrFormat("%.*g", digits, value);
}

double Rounded(double value, int digits) {
  return std::strtod(absl::StrFormat("%.*e", digits - 1, value).c_str(), nullptr);
}

}  // namespace deepnet

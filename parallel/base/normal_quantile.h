// The standard normal of 32 random bits, one source for hosts and GPUs. It consists of operations
// that IEEE 754 rounds in one way only (+ - * / and the square root of doubles, one conversion to
// float), and compilers fuse none of them (-ffp-contract=off, --fmad=false): the same bits
// everywhere.
#pragma once

#include <bit>
#include <cstdint>

namespace deepnet {

// Returns the polynomial of `coefficients`, highest power first, by Horner's rule.
template <typename... Coefficients>
constexpr double Polynomial(double x, double y, Coefficients... coefficients) {
  ((y = y * x + coefficients), ...);
  return y;
}

// Returns the natural logarithm of a normal positive double by + - * / alone: x = m 2^e with m in
// [sqrt(1/2), sqrt(2)), ln m = 2 atanh((m - 1) / (m + 1)) by its series.
constexpr double PortableLog(double x) {
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  int exponent = static_cast<int>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0x000FFFFFFFFFFFFFULL) | 0x3FF0000000000000ULL);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    ++exponent;
  }
  const double s = (m - 1.0) / (m + 1.0);
  const double sum = Polynomial(s * s, 1.0 / 25, 1.0 / 23, 1.0 / 21, 1.0 / 19, 1.0 / 17, 1.0 / 15,
                                1.0 / 13, 1.0 / 11, 1.0 / 9, 1.0 / 7, 1.0 / 5, 1.0 / 3, 1.0);
  return 2.0 * s * sum + exponent * 0.6931471805599453;
}

// Returns the quantile at (bits + 1/2) / 2^32 by Wichura's AS 241 (PPND16). `root` is the square
// root of the caller's device, correctly rounded.
template <typename Root>
constexpr float NormalQuantile(uint32_t bits, Root root) {
  const double p = (bits + 0.5) * 0x1p-32;
  const double q = p - 0.5;
  if (-0.425 <= q && q <= 0.425) {
    const double r = 0.180625 - q * q;
    const double above =
        Polynomial(r, 2509.0809287301226727, 33430.575583588128105, 67265.770927008700853,
                   45921.953931549871457, 13731.693765509461125, 1971.5909503065514427,
                   133.14166789178437745, 3.387132872796366608);
    const double below = Polynomial(
        r, 5226.495278852854561, 28729.085735721942674, 39307.89580009271061, 21213.794301586595867,
        5394.1960214247511077, 687.1870074920579083, 42.313330701600911252, 1.0);
    return static_cast<float>(q * above / below);
  }
  // At most 4.79, as p is at least 2^-33: what AS 241 has for r > 5 is never needed.
  const double r = root(-PortableLog(q < 0 ? p : 1.0 - p));
  const double above =
      Polynomial(r - 1.6, 7.7454501427834140764e-4, 0.0227238449892691845833,
                 0.24178072517745061177, 1.27045825245236838258, 3.64784832476320460504,
                 5.7694972214606914055, 4.6303378461565452959, 1.42343711074968357734);
  const double below =
      Polynomial(r - 1.6, 1.05075007164441684324e-9, 5.475938084995344946e-4,
                 0.0151986665636164571966, 0.14810397642748007459, 0.68976733498510000455,
                 1.6763848301838038494, 2.05319162663775882187, 1.0);
  const double x = above / below;
  return static_cast<float>(q < 0 ? -x : x);
}

}  // namespace deepnet

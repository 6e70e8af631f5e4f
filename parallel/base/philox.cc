#include "parallel/base/philox.h"

#include <bit>
#include <cmath>

namespace deepnet {
namespace {

constexpr uint32_t kMultiplier0 = 0xD2511F53;
constexpr uint32_t kMultiplier1 = 0xCD9E8D57;
constexpr uint32_t kWeyl0 = 0x9E3779B9;
constexpr uint32_t kWeyl1 = 0xBB67AE85;

// Natural logarithm of a normal positive double by + - * / alone: x = m 2^e with m in
// [sqrt(1/2), sqrt(2)), ln m = 2 atanh((m - 1) / (m + 1)) by its series.
double PortableLog(double x) {
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  int exponent = static_cast<int>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0x000FFFFFFFFFFFFFULL) | 0x3FF0000000000000ULL);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    ++exponent;
  }
  const double s = (m - 1.0) / (m + 1.0);
  const double s2 = s * s;
  double sum = 0.0;
  for (int k = 25; k >= 1; k -= 2) sum = sum * s2 + 1.0 / k;
  return 2.0 * s * sum + exponent * 0.6931471805599453;
}

PhiloxBlock InitialCounter(uint64_t name_hash, int64_t block) {
  return {static_cast<uint32_t>(block), static_cast<uint32_t>(static_cast<uint64_t>(block) >> 32),
          static_cast<uint32_t>(name_hash), static_cast<uint32_t>(name_hash >> 32)};
}

// Horner's rule, highest power first.
template <int n>
double Polynomial(const double (&c)[n], double x) {
  double y = c[0];
  for (int i = 1; i < n; ++i) y = y * x + c[i];
  return y;
}

}  // namespace

PhiloxBlock Philox(PhiloxKey key, PhiloxBlock c) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = static_cast<uint64_t>(kMultiplier0) * c[0];
    const uint64_t p1 = static_cast<uint64_t>(kMultiplier1) * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ key.k0, static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ key.k1, static_cast<uint32_t>(p0)};
    key.k0 += kWeyl0;
    key.k1 += kWeyl1;
  }
  return c;
}

PhiloxKey MakeKey(uint64_t seed, RandomPurpose purpose) {
  uint64_t z = seed + static_cast<uint64_t>(purpose) * 0x9E3779B97F4A7C15ULL;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  z ^= z >> 31;
  return {static_cast<uint32_t>(z), static_cast<uint32_t>(z >> 32)};
}

uint64_t HashName(std::string_view name) {
  uint64_t hash = 0xCBF29CE484222325ULL;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3ULL;
  return hash;
}

float NormalFromBits(uint32_t bits) {
  // Coefficients of AS 241, highest power first.
  static constexpr double kA[] = {
      2509.0809287301226727, 33430.575583588128105, 67265.770927008700853, 45921.953931549871457,
      13731.693765509461125, 1971.5909503065514427, 133.14166789178437745, 3.387132872796366608};
  static constexpr double kB[] = {
      5226.495278852854561,  28729.085735721942674, 39307.89580009271061,  21213.794301586595867,
      5394.1960214247511077, 687.1870074920579083,  42.313330701600911252, 1.0};
  static constexpr double kC[] = {7.7454501427834140764e-4, 0.0227238449892691845833,
                                  0.24178072517745061177,   1.27045825245236838258,
                                  3.64784832476320460504,   5.7694972214606914055,
                                  4.6303378461565452959,    1.42343711074968357734};
  static constexpr double kD[] = {1.05075007164441684324e-9, 5.475938084995344946e-4,
                                  0.0151986665636164571966,  0.14810397642748007459,
                                  0.68976733498510000455,    1.6763848301838038494,
                                  2.05319162663775882187,    1.0};
  static constexpr double kE[] = {2.01033439929228813265e-7, 2.71155556874348757815e-5,
                                  0.0012426609473880784386,  0.026532189526576123093,
                                  0.29656057182850489123,    1.7848265399172913358,
                                  5.4637849111641143699,     6.6579046435011037772};
  static constexpr double kF[] = {2.04426310338993978564e-15, 1.4215117583164458887e-7,
                                  1.8463183175100546818e-5,   7.868691311456132591e-4,
                                  0.0148753612908506148525,   0.13692988092273580531,
                                  0.59983220655588793769,     1.0};
  const double p = (bits + 0.5) * 0x1p-32;
  const double q = p - 0.5;
  if (std::fabs(q) <= 0.425) {
    const double r = 0.180625 - q * q;
    return static_cast<float>(q * Polynomial(kA, r) / Polynomial(kB, r));
  }
  const double r = std::sqrt(-PortableLog(q < 0 ? p : 1.0 - p));
  const double x = r <= 5.0 ? Polynomial(kC, r - 1.6) / Polynomial(kD, r - 1.6)
                            : Polynomial(kE, r - 5.0) / Polynomial(kF, r - 5.0);
  return static_cast<float>(q < 0 ? -x : x);
}

float InitialNormal(uint64_t seed, std::string_view name, int64_t index) {
  const uint64_t hash = HashName(name);
  const PhiloxBlock words =
      Philox(MakeKey(seed, RandomPurpose::kInitialWeight), InitialCounter(hash, index / 4));
  return NormalFromBits(words[static_cast<uint64_t>(index) % 4]);
}

void FillInitialNormal(uint64_t seed, std::string_view name, std::span<float> values) {
  const uint64_t hash = HashName(name);
  const PhiloxKey key = MakeKey(seed, RandomPurpose::kInitialWeight);
  PhiloxBlock words{};
  for (size_t i = 0; i < values.size(); ++i) {
    if (i % 4 == 0) words = Philox(key, InitialCounter(hash, static_cast<int64_t>(i / 4)));
    values[i] = NormalFromBits(words[i % 4]);
  }
}

}  // namespace deepnet

// Parts of the tests of the elementwise CPU kernels: numbers, operands of either element, and the
// instruction sets and thread counts that every kernel must agree on.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "trainer/kernels/native/cpu.h"
#include "trainer/kernels/native/isa.h"
#include "trainer/kernels/native/matrix.h"

namespace deepnet::native::testing {

// Largest difference allowed, as a share of the largest expected magnitude.
inline double Tolerance(Element element) { return element == Element::kFloat32 ? 1e-5 : 2e-2; }

inline std::vector<float> RandomFloats(int64_t n, uint32_t seed, float scale = 1.0f) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> x(n);
  for (float& v : x) v = normal(generator);
  return x;
}

inline uint16_t RoundToBfloat16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return static_cast<uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

// A matrix that owns its memory: `margin` columns beside the ones in view, which must not change.
class Operand {
 public:
  Operand(Element element, int64_t rows, int64_t cols, int64_t margin = 0)
      : element_(element), rows_(rows), cols_(cols), stride_(cols + margin) {
    floats_.resize(element == Element::kFloat32 ? rows * stride_ : 0, kUntouched);
    halves_.resize(element == Element::kFloat32 ? 0 : rows * stride_, RoundToBfloat16(kUntouched));
  }

  // Holds `values` [rows, cols], rounded if bfloat16.
  static Operand Of(Element element, int64_t rows, int64_t cols, const std::vector<float>& values,
                    int64_t margin = 0) {
    Operand operand(element, rows, cols, margin);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) operand.Set(r, c, values[r * cols + c]);
    }
    return operand;
  }

  Matrix view() {
    void* data =
        element_ == Element::kFloat32 ? static_cast<void*>(floats_.data()) : halves_.data();
    return {data, element_, rows_, cols_, stride_};
  }
  double At(int64_t r, int64_t c) const {
    if (element_ == Element::kFloat32) return floats_[r * stride_ + c];
    return std::bit_cast<float>(static_cast<uint32_t>(halves_[r * stride_ + c]) << 16);
  }
  void Set(int64_t r, int64_t c, float x) {
    if (element_ == Element::kFloat32) {
      floats_[r * stride_ + c] = x;
    } else {
      halves_[r * stride_ + c] = RoundToBfloat16(x);
    }
  }
  std::vector<double> Values() const {
    std::vector<double> values;
    for (int64_t r = 0; r < rows_; ++r) {
      for (int64_t c = 0; c < cols_; ++c) values.push_back(At(r, c));
    }
    return values;
  }
  bool MarginIsUntouched() const {
    for (int64_t r = 0; r < rows_; ++r) {
      for (int64_t c = cols_; c < stride_; ++c) {
        if (At(r, c) != kUntouched) return false;
      }
    }
    return true;
  }

 private:
  static constexpr float kUntouched = 96.0f;  // exact in bfloat16

  Element element_;
  int64_t rows_, cols_, stride_;
  std::vector<float> floats_;
  std::vector<uint16_t> halves_;
};

inline std::vector<double> Doubles(const std::vector<float>& x) { return {x.begin(), x.end()}; }

// max |got - expected| / max |expected|.
inline double RelativeError(const std::vector<double>& got, const std::vector<double>& expected) {
  if (got.size() != expected.size()) return 1e30;
  double error = 0.0, largest = 1e-30;
  for (size_t i = 0; i < got.size(); ++i) {
    if (!std::isfinite(got[i])) return 1e30;
    error = std::max(error, std::abs(got[i] - expected[i]));
    largest = std::max(largest, std::abs(expected[i]));
  }
  return error / largest;
}

// Runs body(cpu) for every instruction set of this host and 1, 2 and 4 threads. What body
// returns must agree bit for bit between thread counts.
inline void ForEachIsaAndThreads(const std::function<std::vector<double>(Cpu&)>& body) {
  for (const Isa isa : kAllIsas) {
    if (!Supports(isa)) continue;
    SCOPED_TRACE(std::string(IsaName(isa)));
    std::vector<double> first;
    for (const int threads : {1, 2, 4}) {
      SCOPED_TRACE("threads: " + std::to_string(threads));
      Cpu cpu(threads, isa);
      const std::vector<double> result = body(cpu);
      if (threads == 1) first = result;
      EXPECT_EQ(result, first);
      if (::testing::Test::HasFailure()) return;
    }
  }
}

inline void Append(std::vector<double>& to, const std::vector<double>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

// (f(x + step) - f(x - step)) / (2 step) for every x[i], in double precision.
inline std::vector<double> FiniteDifferences(std::vector<double>& x,
                                             const std::function<double()>& f) {
  constexpr double kStep = 1e-5;
  std::vector<double> gradient(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const double saved = x[i];
    x[i] = saved + kStep;
    const double above = f();
    x[i] = saved - kStep;
    const double below = f();
    x[i] = saved;
    gradient[i] = (above - below) / (2 * kStep);
  }
  return gradient;
}

// Pairs 7, 7, ..., positions counting up: sentences of five tokens.
struct Ids {
  explicit Ids(int64_t rows) : pair(rows), position(rows) {
    for (int64_t r = 0; r < rows; ++r) {
      pair[r] = static_cast<uint32_t>(r / 5 + 7);
      position[r] = static_cast<uint32_t>(r % 5);
    }
  }
  PackedRows rows() const {
    return {.count = static_cast<int64_t>(pair.size()),
            .positions = position.data(),
            .pairs = pair.data()};
  }
  std::vector<uint32_t> pair, position;
};

// `x` as a matrix without gaps.
inline ConstMatrix Floats(const std::vector<float>& x, int64_t cols) {
  return {x.data(), Element::kFloat32, static_cast<int64_t>(x.size()) / cols, cols, cols};
}
inline Matrix Floats(std::vector<float>& x, int64_t cols) {
  return {x.data(), Element::kFloat32, static_cast<int64_t>(x.size()) / cols, cols, cols};
}

}  // namespace deepnet::native::testing

// What the tests of the reference operations share: numbers, rows, dropout written out.
#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/devices.h"
#include "trainer/kernels/native/dropout.h"
#include "trainer/kernels/ops.h"

namespace deepnet::testing {

constexpr double kExact = 1e-12;      // sums of a few products in float64
constexpr double kUntouched = 77.25;  // what padding holds before and after

// Two sentences, of 3 and 2 tokens, and one row of padding behind them.
struct TwoSentences {
  static constexpr int64_t kRows = 5, kCapacity = 6;
  std::vector<int32_t> tokens = {4, 7, 2, 4, 2};
  std::vector<uint32_t> positions = {0, 1, 2, 0, 1};
  std::vector<uint32_t> pairs = {8, 8, 8, 9, 9};
  std::vector<int32_t> offsets = {0, 3, 5};

  PackedRows Get() const {
    return {.count = kRows,
            .num_sentences = 2,
            .tokens = tokens.data(),
            .positions = positions.data(),
            .pairs = pairs.data(),
            .offsets = offsets.data()};
  }
};

class AtenOpsTest : public OnDevice {
 protected:
  AtenOpsTest() : ops_(MakeReference()) {}

  // Numbers between -1 and 1 without a pattern; another `phase` gives others.
  at::Tensor Numbers(at::IntArrayRef shape, double phase) const {
    const int64_t count = c10::multiply_integers(shape);
    return at::sin(at::arange(count, at::kDouble) * 1.3 + phase).reshape(shape).to(device());
  }
  at::Tensor Leaf(at::IntArrayRef shape, double phase) const {
    return Numbers(shape, phase).set_requires_grad(true);
  }
  at::Tensor Out(int64_t columns) const {
    return at::full({TwoSentences::kCapacity, columns}, kUntouched, ops_->Stream());
  }
  // `real` with the row of padding that every operation has to leave alone.
  at::Tensor Padded(const at::Tensor& real) const {
    const at::Tensor whole = Out(real.size(1));
    whole.narrow(0, 0, real.size(0)).copy_(real.detach());
    return whole;
  }
  at::Tensor Mask(int64_t features) const {
    return at::zeros({TwoSentences::kCapacity, native::MaskBytes(features)},
                     at::TensorOptions(device()).dtype(at::kByte));
  }

  static DropoutSite Site() {
    return {.seed = 3, .step = 5, .stack = 1, .layer = 2, .site = kSiteFeedForward, .rate = 0.4};
  }
  // 1 / (1 - rate) or 0 for features first.. of each row, by the definition of one decision.
  at::Tensor Factors(const DropoutSite& site, int64_t features, int64_t first = 0) const {
    const native::DropoutKey key{site.seed,  site.step, site.stack,
                                 site.layer, site.site, site.rate};
    const at::Tensor factors = at::zeros({TwoSentences::kRows, features}, at::kDouble);
    for (int64_t r = 0; r < TwoSentences::kRows; ++r) {
      for (int64_t f = 0; f < features; ++f) {
        const bool keep = native::KeepElement(key, rows_.pairs[r], rows_.positions[r], first + f);
        factors[r][f].fill_(keep ? 1.0 / (1.0 - site.rate) : 0.0);
      }
    }
    return factors.to(device());
  }

  static void ExpectNear(const at::Tensor& got, const at::Tensor& expected) {
    ASSERT_EQ(got.sizes(), expected.sizes());
    EXPECT_LE((got.detach() - expected.detach()).abs().max().item<double>(), kExact);
  }
  // The real rows as expected, the padding as it was.
  static void ExpectRows(const at::Tensor& got, const at::Tensor& expected) {
    ExpectNear(got.narrow(0, 0, expected.size(0)), expected);
    const at::Tensor padding = got.narrow(0, expected.size(0), got.size(0) - expected.size(0));
    EXPECT_TRUE(padding.eq(kUntouched).all().item<bool>());
  }

  const std::unique_ptr<Ops> ops_;
  const TwoSentences rows_;
  const PackedRows ids_ = rows_.Get();
  const int64_t n_ = TwoSentences::kRows;
};

}  // namespace deepnet::testing

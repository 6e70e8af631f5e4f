// The fused kernels against the reference through a whole model: losses and every gradient.
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "parallel/base/statistics.h"
#include "tests/support/model_pass.h"
#include "trainer/kernels/aten.h"
#include "trainer/kernels/compute.h"

namespace deepnet {
namespace {

using testing::ExpectClose;
using testing::ForwardBackward;
using testing::ModelPass;
using testing::OpsVariants;

ComputeSpec Compute(DataType dtype, int threads) {
  ComputeSpec compute;
  compute.set_dtype(dtype);
  compute.set_threads_per_rank(threads);
  return compute;  // isa unset: the best of this host
}

bool IsOfTheThree(const ModelSpec& spec) { return spec.residual() <= PRE_LN; }

constexpr double kFloat32 = 1e-5;
// A shift of all rows is gone behind a BatchNorm: the gradients of many biases are 0 by theory.
constexpr double kFloat32OverRows = 3e-5;

TEST(NativeOps, EqualsTheReferenceInFloat32) {
  for (const ModelSpec& spec : OpsVariants()) {
    if (!IsOfTheThree(spec)) continue;
    SCOPED_TRACE(spec.ShortDebugString());
    const auto exact = MakeAtenOps(at::kDouble, at::kDouble);
    const auto native = MakeNativeOps(Compute(FLOAT32, 2));
    const double tolerance = spec.norm() == BATCH_NORM ? kFloat32OverRows : kFloat32;
    ExpectClose(ForwardBackward(spec, *native), ForwardBackward(spec, *exact), tolerance);
  }
}

// Relative errors of the whole gradient: medians over a few models, for now and then a rounding
// flips which of two scores is the larger.
struct Errors {
  double native = 0.0, reference = 0.0;
};

constexpr double kLossRounding = 3e-2;  // bfloat16, without norms

Errors MedianErrors(const ModelSpec& spec, DataType dtype, at::ScalarType operand) {
  std::vector<double> native, reference;
  for (const uint64_t seed : {5, 6, 7, 8, 9}) {
    const ModelPass exact = ForwardBackward(spec, *MakeAtenOps(at::kDouble, at::kDouble), seed);
    const auto error = [&](Ops& ops) {
      const ModelPass pass = ForwardBackward(spec, ops, seed);
      EXPECT_NEAR(pass.loss.loss, exact.loss.loss, kLossRounding * exact.loss.loss);
      return testing::GradientError(pass, exact);
    };
    native.push_back(error(*MakeNativeOps(Compute(dtype, 2))));
    reference.push_back(error(*MakeAtenOps(operand, at::kFloat)));
  }
  return {Median(native), Median(reference)};
}

// Each kernel is held to 2e-2 of its own reference in tests/trainer/kernels/native. Through five
// layers of width 8 such roundings amplify, in the reference as well, and without norms also those
// of float32: what can be asked of a whole model is that the kernels stay as close to the exact
// gradient as the reference does.
TEST(NativeOps, IsAsCloseToTheExactGradientAsTheReference) {
  for (const ModelSpec& spec : OpsVariants()) {
    SCOPED_TRACE(spec.ShortDebugString());
    const Errors float32 = MedianErrors(spec, FLOAT32, at::kFloat);
    EXPECT_LE(float32.native, 2 * float32.reference + 1e-6);
    const Errors bfloat16 = MedianErrors(spec, BFLOAT16, at::kBFloat16);
    EXPECT_LE(bfloat16.native, 3 * bfloat16.reference + 1e-2);
  }
}

TEST(NativeOps, GivesTheSameBitsForAnyNumberOfThreads) {
  for (const DataType dtype : {FLOAT32, BFLOAT16}) {
    for (const ModelSpec& spec : OpsVariants()) {
      SCOPED_TRACE(spec.ShortDebugString());
      const ModelPass one = ForwardBackward(spec, *MakeNativeOps(Compute(dtype, 1)));
      for (const int threads : {2, 4}) {
        const ModelPass many = ForwardBackward(spec, *MakeNativeOps(Compute(dtype, threads)));
        EXPECT_EQ(one.loss.loss, many.loss.loss);
        EXPECT_TRUE(at::equal(one.gradient, many.gradient)) << threads;
      }
    }
  }
}

}  // namespace
}  // namespace deepnet

// The operations of a GPU against the reference on the CPU, through whole models: losses and every
// gradient. Runs on the emulated GPU, and on a real one where a build links CUDA.
#include <memory>
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include "tests/support/model_pass.h"
#include "trainer/kernels/compute.h"

namespace deepnet {
namespace {

using testing::ExpectClose;
using testing::ForwardBackward;
using testing::GradientError;
using testing::Median;
using testing::ModelPass;
using testing::OpsVariants;

std::unique_ptr<Ops> MakeGpu(at::ScalarType operand) {
  const c10::impl::VirtualGuardImpl guard(GpuType().value());
  guard.setDevice({guard.type(), 0});
  return MakeCudaOps(guard.getDevice(), operand, /*check_launches=*/false);
}

std::unique_ptr<Ops> MakeExact() { return MakeAtenOps(at::kCPU, at::kDouble, at::kDouble); }

constexpr double kFloat32 = 1e-5;
// A shift of all rows is gone behind a BatchNorm: the gradients of many biases are 0 by theory.
constexpr double kFloat32OverRows = 3e-5;

bool IsOfTheThree(const ModelSpec& spec) { return spec.residual() <= PRE_LN; }

TEST(CudaOps, EqualsTheReferenceInFloat32) {
  for (const ModelSpec& spec : OpsVariants()) {
    if (!IsOfTheThree(spec)) continue;
    SCOPED_TRACE(spec.ShortDebugString());
    const double tolerance = spec.norm() == BATCH_NORM ? kFloat32OverRows : kFloat32;
    ExpectClose(ForwardBackward(spec, *MakeGpu(at::kFloat)), ForwardBackward(spec, *MakeExact()),
                tolerance);
  }
}

// Roundings amplify in a whole model (tests/trainer/model/native_ops_test.cc): a GPU is asked to be
// as close to the exact gradient as the reference in the same types.
void ExpectAsCloseAsTheReference(const ModelSpec& spec, at::ScalarType operand, double factor,
                                 double floor) {
  std::vector<double> gpu, reference;
  for (const uint64_t seed : {5, 6, 7, 8, 9}) {
    const ModelPass exact = ForwardBackward(spec, *MakeExact(), seed);
    gpu.push_back(GradientError(ForwardBackward(spec, *MakeGpu(operand), seed), exact));
    const auto ops = MakeAtenOps(at::kCPU, operand, at::kFloat);
    reference.push_back(GradientError(ForwardBackward(spec, *ops, seed), exact));
  }
  EXPECT_LE(Median(gpu), factor * Median(reference) + floor);
}

TEST(CudaOps, IsAsCloseToTheExactGradientAsTheReference) {
  for (const ModelSpec& spec : OpsVariants()) {
    SCOPED_TRACE(spec.ShortDebugString());
    ExpectAsCloseAsTheReference(spec, at::kFloat, 2, 1e-6);
    ExpectAsCloseAsTheReference(spec, at::kBFloat16, 3, 1e-2);
  }
}

TEST(CudaOps, GivesTheSameBitsInEveryRun) {
  for (const at::ScalarType operand : {at::kFloat, at::kBFloat16}) {
    for (const ModelSpec& spec : OpsVariants()) {
      SCOPED_TRACE(spec.ShortDebugString());
      const ModelPass one = ForwardBackward(spec, *MakeGpu(operand));
      const ModelPass other = ForwardBackward(spec, *MakeGpu(operand));
      EXPECT_EQ(one.loss.loss, other.loss.loss);
      EXPECT_TRUE(at::equal(one.gradient, other.gradient));
    }
  }
}

}  // namespace
}  // namespace deepnet

#include "trainer/probe/admin_profile.h"

#include <cmath>
#include <memory>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/tiny_model.h"
#include "trainer/model/sublayer_probe.h"

namespace deepnet {
namespace {

constexpr int kEncoderSublayers = 2 * 2, kDecoderSublayers = 3 * 3;  // of TinySpec
constexpr double kRounding = 1e-12;

// Variances, computed by hand, of what each sub-layer adds.
class Variances : public SublayerProbe {
 public:
  void AtEnter(const PassContext&, const SublayerView&) override {}
  void AtLeave(const PassContext& pass, const SublayerView& view) override {
    stream.push_back(Of(pass, view.stream_RD));
    branch.push_back(Of(pass, view.branch_RD));
  }

  std::vector<double> stream, branch;

 private:
  static double Of(const PassContext& pass, const at::Tensor& x_RD) {
    double sum = 0.0, squares = 0.0;
    const int64_t rows = pass.rows->count, width = x_RD.size(1);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < width; ++c) {
        const double x = x_RD[r][c].item<double>();
        sum += x;
        squares += x * x;
      }
    }
    const double n = static_cast<double>(rows * width);
    return squares / n - (sum / n) * (sum / n);
  }
};

class AdminProfile : public ::testing::Test {
 protected:
  AdminProfile() : ops_(MakeAtenOps(at::kCPU, at::kDouble, at::kDouble)) {
    ModelSpec spec = testing::WithResidual(testing::TinySpec(), ADMIN);
    spec.set_dropout(0.2);
    model_ = std::make_unique<Transformer>(spec, testing::TinyCapacity(), *ops_, true);
    model_->parameters().Initialize(4);
    model_->Refresh();
    microbatch_ = testing::TinyMicrobatch(spec, 3);
  }

  std::unique_ptr<Ops> ops_;
  std::unique_ptr<Transformer> model_;
  Microbatch microbatch_;
};

TEST_F(AdminProfile, StartsAtOneAndNeverFallsWithinAStack) {
  const std::vector<double> omega = ProfileAdmin(*model_, microbatch_, 7);
  ASSERT_EQ(omega.size(), static_cast<size_t>(kEncoderSublayers + kDecoderSublayers));
  EXPECT_EQ(omega[0], 1.0);
  EXPECT_EQ(omega[kEncoderSublayers], 1.0);
  for (size_t i = 1; i < omega.size(); ++i) {
    if (i == kEncoderSublayers) continue;
    EXPECT_GE(omega[i], omega[i - 1]) << i;
  }
}

TEST_F(AdminProfile, SumsTheVariancesOfStreamAndBranch) {
  const std::vector<double> omega = ProfileAdmin(*model_, microbatch_, 7);
  Variances variances;
  MicrobatchPass pass = MakePass(microbatch_, /*seed=*/7, /*step=*/0, /*training=*/true);
  pass.probe = &variances;
  const auto kept = model_->MakeActivations(/*shared=*/false);
  model_->chunks()[0].Forward(pass, kept->values, model_->work(), kept->kept, {},
                              kept->gradients.target_RD);
  ASSERT_EQ(variances.stream.size(), omega.size());
  for (size_t i = 0; i + 1 < omega.size(); ++i) {
    if (i + 1 == kEncoderSublayers) continue;
    EXPECT_NEAR(omega[i + 1] * omega[i + 1], variances.stream[i] + variances.branch[i],
                kRounding * omega[i + 1])
        << i;
  }
}

}  // namespace
}  // namespace deepnet

#include <array>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "parallel/base/philox.h"
#include "tests/support/tiny_model.h"
#include "trainer/instruments/meters.h"
#include "trainer/kernels/aten.h"
#include "trainer/kernels/compute.h"
#include "trainer/model/architecture.h"
#include "trainer/model/pass.h"

namespace deepnet {
namespace {

constexpr int kEncoderSublayers = 2 * 2, kDecoderSublayers = 3 * 3;  // of TinySpec
constexpr double kRounding = 1e-12;
constexpr double kDropout = 0.4;
constexpr uint64_t kSeed = 7;

// Over all elements, by the definition.
double Variance(const at::Tensor& x_RD) {
  double sum = 0.0, squares = 0.0;
  for (int64_t r = 0; r < x_RD.size(0); ++r) {
    for (int64_t c = 0; c < x_RD.size(1); ++c) {
      const double x = x_RD[r][c].item<double>();
      sum += x;
      squares += x * x;
    }
  }
  const double n = static_cast<double>(x_RD.numel());
  return squares / n - (sum / n) * (sum / n);
}

// Records what enters each stack.
class Entrance : public SublayerProbe {
 public:
  void AtEnter(const PassContext& pass, const SublayerView& view) override {
    at::Tensor& x_RD = entered_RD[static_cast<size_t>(view.place.stack)];
    if (!x_RD.defined()) x_RD = view.stream_RD.narrow(0, 0, pass.rows->count).clone();
  }
  void AtLeave(const PassContext&, const SublayerView&) override {}

  std::array<at::Tensor, 2> entered_RD;
};

// The factor of one element of a branch, by docs/design/random.md.
double DropoutFactor(const PackedRows& rows, int64_t row, int64_t feature,
                     const SublayerPlace& place) {
  const uint32_t site = place.kind == SublayerKind::kSelfAttention    ? 1
                        : place.kind == SublayerKind::kCrossAttention ? 2
                                                                      : 3;
  const PhiloxBlock words =
      Philox(MakeKey(kSeed, RandomPurpose::kDropout),
             {0, rows.pairs[row], rows.positions[row] | site << 20,
              static_cast<uint32_t>(feature / 8) | static_cast<uint32_t>(place.layer) << 18 |
                  static_cast<uint32_t>(place.stack) << 31});
  const uint32_t lane =
      words[static_cast<size_t>(feature % 8 / 2)] >> (16 * (feature % 2)) & 0xFFFF;
  return lane >= std::lround(kDropout * 65536) ? 1 / (1 - kDropout) : 0.0;
}

class AdminProfile : public ::testing::Test {
 protected:
  AdminProfile() : ops_(MakeAtenOps(at::kDouble, at::kDouble)) {
    ModelSpec spec = testing::WithResidual(testing::TinySpec(), ADMIN);
    spec.set_dropout(kDropout);
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
  const std::vector<double> omega = ProfileAdmin(*model_, microbatch_, kSeed);
  ASSERT_EQ(omega.size(), static_cast<size_t>(kEncoderSublayers + kDecoderSublayers));
  EXPECT_EQ(omega[0], 1.0);
  EXPECT_EQ(omega[kEncoderSublayers], 1.0);
  for (size_t i = 1; i < omega.size(); ++i) {
    if (i == kEncoderSublayers) continue;
    EXPECT_GE(omega[i], omega[i - 1]) << i;
  }
}

// With last matrices of 0 a branch is its bias, whatever it reads: so the whole pass can be done by
// hand, from what enters a stack on, without what the profile itself is told of.
TEST_F(AdminProfile, SumsTheVariancesOfStreamAndBranchBehindItsDropout) {
  const ModelSpec& spec = model_->spec();
  const int sublayers = NumSublayers(spec);
  std::vector<at::Tensor> biases_D;
  for (int i = 0; i < sublayers; ++i) {
    const SublayerPlace place = SublayerAt(spec, i);
    const std::string last = place.kind == SublayerKind::kFeedForward
                                 ? LayerPrefix(place.stack, place.layer) + "fc2"
                                 : BlockName(place) + ".out_proj";
    model_->parameters().Get(last + ".weight").zero_();
    biases_D.push_back(0.3 * (i + 1) +
                       at::arange(spec.d_model(), at::kDouble) * (i % 3 - 1) / spec.d_model());
    model_->parameters().Get(last + ".bias").copy_(biases_D.back());
  }
  model_->Refresh();
  const std::vector<double> omega = ProfileAdmin(*model_, microbatch_, kSeed);
  Entrance entrance;
  MicrobatchPass pass = MakePass(model_->ops(), microbatch_, kSeed, /*step=*/0, /*training=*/true);
  pass.probe = &entrance;
  const auto kept = model_->MakeActivations(/*shared=*/false);
  model_->chunks()[0].Forward(pass, kept->values, model_->work(), kept->kept,
                              {.dhidden_RD = kept->gradients.target_RD});

  ASSERT_EQ(omega.size(), static_cast<size_t>(sublayers));
  double r = 1.0;
  at::Tensor x_RD;
  for (int i = 0; i < sublayers; ++i) {
    const SublayerPlace place = SublayerAt(spec, i);
    if (i == 0 || i == kEncoderSublayers) {
      r = 1.0;
      x_RD = entrance.entered_RD[static_cast<size_t>(place.stack)];
    }
    EXPECT_NEAR(omega[static_cast<size_t>(i)], r, kRounding * r) << i;
    const PackedRows& rows = place.stack == 0 ? pass.rows.source : pass.rows.target;
    at::Tensor branch_RD = biases_D[static_cast<size_t>(i)].expand_as(x_RD).clone();
    for (int64_t row = 0; row < x_RD.size(0); ++row) {
      for (int64_t c = 0; c < x_RD.size(1); ++c) {
        branch_RD[row][c] *= DropoutFactor(rows, row, c, place);
      }
    }
    const at::Tensor sum_RD = r * x_RD + branch_RD;
    r = std::sqrt(Variance(r * x_RD) + Variance(branch_RD));
    x_RD = at::layer_norm(sum_RD, {x_RD.size(1)}, {}, {}, spec.layer_norm_epsilon());
  }
}

}  // namespace
}  // namespace deepnet

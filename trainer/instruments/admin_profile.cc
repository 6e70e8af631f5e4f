#include "trainer/instruments/admin_profile.h"

#include <array>
#include <cmath>

#include <ATen/ATen.h>

#include "parallel/base/check.h"
#include "trainer/model/pass.h"

namespace deepnet {
namespace {

double Variance(const PassContext& pass, const at::Tensor& x_RD) {
  const at::Tensor rows = x_RD.narrow(0, 0, pass.rows->count).to(at::kDouble);
  return rows.var(/*unbiased=*/false).item<double>();
}

// Sub-layers of a stack run in order, so that each is given its omega just before it runs.
class Profile : public SublayerProbe {
 public:
  explicit Profile(const Parameters& parameters) : parameters_(parameters) {}

  void AtEnter(const PassContext&, const SublayerView& view) override {
    const double r = std::sqrt(squares_[view.place.stack]);
    omega_.push_back(r);
    parameters_.Get(BlockName(view.place) + kStreamScale).fill_(r);
  }
  void AtLeave(const PassContext& pass, const SublayerView& view) override {
    squares_[view.place.stack] = Variance(pass, view.stream_RD) + Variance(pass, view.branch_RD);
  }

  const std::vector<double>& omega() const { return omega_; }

 private:
  const Parameters& parameters_;
  std::array<double, 2> squares_ = {1.0, 1.0};  // r^2 of each stack
  std::vector<double> omega_;
};

}  // namespace

std::vector<double> ProfileAdmin(Transformer& model, const Microbatch& microbatch, uint64_t seed) {
  DEEPNET_CHECK_EQ(model.spec().residual(), ADMIN);
  DEEPNET_CHECK_EQ(model.chunks().size(), 1u);
  Profile profile(model.parameters());
  MicrobatchPass pass = MakePass(model.ops(), microbatch, seed, /*step=*/0, /*training=*/true);
  pass.probe = &profile;
  const auto kept = model.MakeActivations(/*shared=*/false);
  model.chunks()[0].Forward(pass, kept->values, model.work(), kept->kept,
                            {.gradient_scale = 0.0, .dhidden_RD = kept->gradients.target_RD});
  return profile.omega();
}

}  // namespace deepnet

#include "trainer/model/residual.h"

#include <ATen/ATen.h>

#include "parallel/base/check.h"

namespace deepnet {
namespace {

// x <- LN(alpha x + dropout(f(x))): DEEPNORM, and POST_LN with alpha = 1.
class PostNormJoin : public Join {
 public:
  using Join::Join;

  at::Tensor Enter(const PassContext&, const Stream& stream, const at::Tensor&,
                   JoinSaved&) const override {
    return stream.operand_RD;
  }
  void Leave(const PassContext& pass, const Stream& stream, const at::Tensor& branch_RD,
             JoinSaved& saved) const override {
    ResidualNormArgs args{.rows = pass.rows->count,
                          .x_RD = stream.value_RD,
                          .branch_RD = branch_RD,
                          .alpha = options_.alpha,
                          .dropout = Dropout(pass),
                          .ids = pass.rows,
                          .gain_D = norm_.gain_D,
                          .bias_D = norm_.bias_D,
                          .epsilon = options_.epsilon,
                          .y_RD = stream.value_RD};
    if (!stream.operand_RD.is_same(stream.value_RD)) args.y_operand_RD = stream.operand_RD;
    if (pass.keep) args.state = &saved.norm;
    if (pass.keep) args.mask = saved.mask;
    pass.ops->ResidualNorm(args);
  }

  at::Tensor Input(const PassContext& pass, const JoinSaved&, const Upstream& upstream,
                   const at::Tensor& scratch_RD) const override {
    if (upstream.join == nullptr) return upstream.embedded_RD;
    upstream.join->Output(pass, *upstream.saved, scratch_RD);
    return scratch_RD;
  }
  void LeaveBackward(const PassContext& pass, JoinSaved& saved, const at::Tensor& dstream_RD,
                     const at::Tensor& dbranch_RD) const override {
    pass.ops->ResidualNormBackward({.rows = pass.rows->count,
                                    .dy_RD = dstream_RD,
                                    .state = &saved.norm,
                                    .alpha = options_.alpha,
                                    .dropout_rate = options_.dropout,
                                    .mask = saved.mask,
                                    .gain_D = norm_.gain_D,
                                    .dx_RD = dstream_RD,
                                    .dbranch_RD = dbranch_RD,
                                    .dgain_D = norm_.dgain_D,
                                    .dbias_D = norm_.dbias_D});
  }
  bool InputGradientAddsToStream() const override { return true; }
  void EnterBackward(const PassContext&, JoinSaved&, const at::Tensor&,
                     const at::Tensor&) const override {}
};

// x <- x + dropout(f(LN(x))).
class PreNormJoin : public Join {
 public:
  using Join::Join;

  at::Tensor Enter(const PassContext& pass, const Stream& stream, const at::Tensor& scratch_RD,
                   JoinSaved& saved) const override {
    pass.ops->ResidualNorm({.rows = pass.rows->count,
                            .x_RD = stream.value_RD,
                            .gain_D = norm_.gain_D,
                            .bias_D = norm_.bias_D,
                            .epsilon = options_.epsilon,
                            .y_operand_RD = scratch_RD,
                            .state = pass.keep ? &saved.norm : nullptr});
    return scratch_RD;
  }
  void Leave(const PassContext& pass, const Stream& stream, const at::Tensor& branch_RD,
             JoinSaved& saved) const override {
    pass.ops->AddBranch(pass.rows->count, stream.value_RD, branch_RD, Dropout(pass), pass.rows,
                        pass.keep ? saved.mask : at::Tensor());
  }

  at::Tensor Input(const PassContext& pass, const JoinSaved& saved, const Upstream&,
                   const at::Tensor& scratch_RD) const override {
    Output(pass, saved, scratch_RD);
    return scratch_RD;
  }
  void LeaveBackward(const PassContext& pass, JoinSaved& saved, const at::Tensor& dstream_RD,
                     const at::Tensor& dbranch_RD) const override {
    pass.ops->AddBranchBackward(pass.rows->count, dstream_RD, options_.dropout, saved.mask,
                                dbranch_RD);
  }
  bool InputGradientAddsToStream() const override { return false; }
  void EnterBackward(const PassContext& pass, JoinSaved& saved, const at::Tensor& dinput_RD,
                     const at::Tensor& dstream_RD) const override {
    pass.ops->ResidualNormBackward({.rows = pass.rows->count,
                                    .dy_RD = dinput_RD,
                                    .state = &saved.norm,
                                    .gain_D = norm_.gain_D,
                                    .dx_RD = dstream_RD,
                                    .accumulate_dx = true,
                                    .dgain_D = norm_.dgain_D,
                                    .dbias_D = norm_.dbias_D});
  }
};

}  // namespace

NormParameters::NormParameters(const Parameters& parameters, const std::string& name)
    : gain_D(parameters.Get(name + ".weight")),
      bias_D(parameters.Get(name + ".bias")),
      dgain_D(parameters.Gradient(name + ".weight")),
      dbias_D(parameters.Gradient(name + ".bias")) {}

JoinSaved Join::MakeSaved(const Ops& ops, int64_t capacity, int64_t width) const {
  JoinSaved saved{{at::zeros({capacity, width}, ops.Stream()), at::zeros({capacity}, ops.Stream())},
                  {}};
  if (options_.dropout > 0) {
    saved.mask = at::zeros({capacity, (width + 7) / 8}, ops.Stream().dtype(at::kByte));
  }
  return saved;
}

void Join::Output(const PassContext& pass, const JoinSaved& saved, const at::Tensor& y_RD) const {
  pass.ops->NormOutput(pass.rows->count, saved.norm, norm_.gain_D, norm_.bias_D, y_RD);
}

DropoutSite Join::Dropout(const PassContext& pass) const {
  return {.seed = pass.seed,
          .step = pass.step,
          .stack = options_.stack,
          .layer = options_.layer,
          .site = options_.site,
          .rate = pass.keep ? options_.dropout : 0.0};
}

std::unique_ptr<Join> MakeJoin(Residual residual, JoinOptions options, NormParameters norm) {
  switch (residual) {
    case DEEPNORM:
      return std::make_unique<PostNormJoin>(options, std::move(norm));
    case POST_LN:
      options.alpha = 1.0;
      return std::make_unique<PostNormJoin>(options, std::move(norm));
    case PRE_LN:
      options.alpha = 1.0;
      return std::make_unique<PreNormJoin>(options, std::move(norm));
    default:
      DEEPNET_CHECK(false) << "residual " << residual << " passed validation";
      return nullptr;
  }
}

}  // namespace deepnet

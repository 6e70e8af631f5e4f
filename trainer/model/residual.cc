#include "trainer/model/residual.h"

#include "parallel/base/check.h"
#include "parallel/base/clock.h"
#include "trainer/kernels/aten.h"

namespace deepnet {
namespace {

constexpr Site kSites[] = {kSiteSelfAttention, kSiteCrossAttention,
                           kSiteFeedForward};  // [SublayerKind]

// x *= factor, a constant.
void ScaleRows(const PassContext& pass, const at::Tensor& x, double factor) {
  if (factor != 1.0) pass.ops->Scale(pass.rows->count, x, factor);
}

}  // namespace

ResidualConnection::ResidualConnection(const BuildContext& build, const SublayerPlace& place)
    : place_(place),
      scheme_(MakeSublayerScheme(build.spec, place)),
      dropout_(SiteOf(place, kSites[static_cast<int>(place.kind)], build.spec.dropout())),
      width_(build.spec.d_model()) {
  const Parameters& parameters = build.parameters;
  const std::string block = BlockName(place);
  if (scheme_.input_norm) input_norm_.emplace(build, block + kNorm);
  if (scheme_.output_norm) output_norm_.emplace(build, block + kOutputNorm);
  if (scheme_.end_norm) end_norm_.emplace(build, EndNormName(place, scheme_));
  if (scheme_.stream_scale != 0) stream_scale_.emplace(parameters, block + kStreamScale, "");
  if (scheme_.branch_scale != BranchScale::kNone) {
    branch_scale_.emplace(parameters, BranchScaleName(place, scheme_), "");
  }
  if (scheme_.shifts) shift_.emplace(parameters, "", block + kInputShift);
}

ResidualConnection::Saved ResidualConnection::MakeSaved(const Ops& ops, int64_t capacity) const {
  const auto rows = [&] { return at::zeros({capacity, width_}, ops.ResidualOptions()); };
  Saved saved;
  if (input_norm_) saved.norms[0] = input_norm_->MakeState(ops, capacity);
  if (output_norm_) saved.norms[OutputIndex()] = output_norm_->MakeState(ops, capacity);
  if (end_norm_) saved.norms[EndIndex()] = end_norm_->MakeState(ops, capacity);
  if (scheme_.KeepsStream()) saved.stream_RD = rows();
  if (scheme_.KeepsBranch()) saved.branch_RD = rows();
  if (dropout_.rate > 0) saved.mask = MakeMask(ops, capacity, width_);
  return saved;
}

DropoutSite SiteOf(const SublayerPlace& place, Site site, double rate) {
  return {.stack = place.stack, .layer = place.layer, .site = site, .rate = rate};
}

DropoutSite At(DropoutSite site, const PassContext& pass) {
  site.seed = pass.microbatch->seed;
  site.step = pass.microbatch->step;
  if (!pass.keep()) site.rate = 0.0;
  return site;
}

at::Tensor ResidualConnection::SecondStream(const PassContext& pass) const {
  return scheme_.second_stream ? pass.second_RD : at::Tensor();
}

at::Tensor ResidualConnection::Enter(const PassContext& pass, const ResidualStream& stream,
                                     Saved& saved) const {
  if (pass.keep() && scheme_.KeepsStream()) {
    pass.ops->Copy(pass.rows->count, stream.value_RD, saved.stream_RD);
  }
  const at::Tensor input_RD = BranchInput(pass, stream, saved);
  if (pass.microbatch->probe != nullptr) {
    pass.microbatch->probe->AtEnter(
        pass,
        {.place = place_, .scheme = &scheme_, .stream_RD = stream.value_RD, .input_RD = input_RD});
  }
  return input_RD;
}

at::Tensor ResidualConnection::BranchInput(const PassContext& pass, const ResidualStream& stream,
                                           Saved& saved) const {
  const at::Tensor& input_RD = pass.work->input_RD;
  if (input_norm_) {
    input_norm_->Forward(pass, stream.value_RD, input_RD, saved.norms[0]);
    ScaleRows(pass, input_RD, scheme_.input_scale);
    return input_RD;
  }
  if (!shift_) return stream.operand_RD;
  shift_->Forward(pass, stream.value_RD, input_RD);
  return input_RD;
}

void ResidualConnection::Leave(const PassContext& pass, const ResidualStream& stream,
                               Saved& saved) const {
  const at::Tensor& branch_RD = pass.work->branch_RD;
  if (output_norm_) output_norm_->Forward(pass, branch_RD, branch_RD, saved.norms[OutputIndex()]);
  if (branch_scale_) {
    if (pass.keep()) pass.ops->Copy(pass.rows->count, branch_RD, saved.branch_RD);
    branch_scale_->Forward(pass, branch_RD, branch_RD);
  }
  ScaleRows(pass, branch_RD, scheme_.RampAt(pass.microbatch->step));
  if (stream_scale_) stream_scale_->Forward(pass, stream.value_RD, stream.value_RD);
  if (pass.microbatch->probe != nullptr) ShowLeave(pass, stream, saved);
  if (scheme_.layer_input) AddRows(pass, stream.value_RD, pass.work->layer_input_RD);
  if (const at::Tensor second_RD = SecondStream(pass); second_RD.defined()) {
    AddDropped(pass, second_RD, saved);
  }
  if (end_norm_) {  // stream <- N(alpha stream + dropout(branch)), in one sweep
    end_norm_->Run(pass,
                   {.x_RD = stream.value_RD,
                    .branch_RD = branch_RD,
                    .alpha = scheme_.alpha,
                    .dropout = At(dropout_, pass),
                    .ids = pass.rows,
                    .y_RD = stream.value_RD,
                    .y_operand_RD = stream.own_operand_RD(),
                    .mask = pass.keep() ? saved.mask : at::Tensor()},
                   saved.norms[EndIndex()]);
    return;
  }
  if (scheme_.alpha == 0) pass.ops->Zero(FirstRows(pass.rows->count, stream.value_RD));
  AddDropped(pass, stream.value_RD, saved);
  if (!scheme_.input_norm) FillOperand(pass, stream);
}

// stream += dropout(branch).
void ResidualConnection::AddDropped(const PassContext& pass, const at::Tensor& stream_RD,
                                    const Saved& saved) const {
  pass.ops->ResidualNorm({.rows = pass.rows->count,
                          .x_RD = stream_RD,
                          .branch_RD = pass.work->branch_RD,
                          .dropout = At(dropout_, pass),
                          .ids = pass.rows,
                          .sum_RD = stream_RD,
                          .mask = pass.keep() ? saved.mask : at::Tensor()});
}

// The fused steps below leave neither dropout(branch) nor the sum, so both are computed here for
// the probe, in tensors of their own. The mask is drawn again with the same bits.
void ResidualConnection::ShowLeave(const PassContext& pass, const ResidualStream& stream,
                                   const Saved& saved) const {
  const double started = SecondsNow();
  SublayerView view{.place = place_, .scheme = &scheme_, .stream_RD = stream.value_RD};
  const at::Tensor x_RD = FirstRows(pass.rows->count, stream.value_RD);
  view.branch_RD = at::zeros_like(x_RD);
  AddDropped(pass, view.branch_RD, saved);
  if (scheme_.end_norm) {
    view.sum_RD = at::empty_like(x_RD);
    view.sum_RD.copy_(x_RD);
    if (scheme_.layer_input) AddRows(pass, view.sum_RD, pass.work->layer_input_RD);
    ScaleRows(pass, view.sum_RD, scheme_.alpha);
    AddRows(pass, view.sum_RD, view.branch_RD);
  }
  view.seconds = SecondsNow() - started;
  pass.microbatch->probe->AtLeave(pass, view);
}

at::Tensor ResidualConnection::Input(const PassContext& pass, const Saved& saved,
                                     const Upstream& upstream) const {
  const at::Tensor& input_RD = pass.work->input_RD;
  if (input_norm_) {
    input_norm_->Output(pass, saved.norms[0], input_RD);
    ScaleRows(pass, input_RD, scheme_.input_scale);
  } else if (shift_) {
    shift_->Forward(pass, saved.stream_RD, input_RD);
  } else if (scheme_.KeepsStream()) {
    if (saved.stream_RD.dtype() == input_RD.dtype()) return saved.stream_RD;
    pass.ops->Copy(pass.rows->count, saved.stream_RD, input_RD);
  } else if (upstream.residual == nullptr) {
    return upstream.embedded_RD;
  } else {
    const ResidualConnection& before = *upstream.residual;
    before.end_norm_->Output(pass, upstream.saved->norms[before.EndIndex()], input_RD);
  }
  return input_RD;
}

void ResidualConnection::LeaveBackward(const PassContext& pass, Saved& saved,
                                       const at::Tensor& dstream_RD) const {
  const at::Tensor& dbranch_RD = pass.work->dbranch_RD;
  if (end_norm_) {
    end_norm_->RunBackward(pass,
                           {.dy_RD = dstream_RD,
                            .alpha = scheme_.alpha,
                            .dropout_rate = dropout_.rate,
                            .mask = saved.mask,
                            .dpast_RD = SecondStream(pass),
                            .dx_RD = dstream_RD,
                            .dbranch_RD = dbranch_RD},
                           saved.norms[EndIndex()]);
  } else {
    pass.ops->AddBranchBackward(pass.rows->count, dstream_RD, dropout_.rate, saved.mask,
                                dbranch_RD);
    if (scheme_.alpha == 0) pass.ops->Zero(FirstRows(pass.rows->count, dstream_RD));
  }
  if (scheme_.layer_input) {
    pass.ops->Copy(pass.rows->count, dstream_RD, pass.work->layer_input_RD);
  }
  if (stream_scale_) stream_scale_->BackwardInPlace(pass, dstream_RD, saved.stream_RD);
  ScaleRows(pass, dbranch_RD, scheme_.RampAt(pass.microbatch->step));
  if (branch_scale_) branch_scale_->BackwardInPlace(pass, dbranch_RD, saved.branch_RD);
  if (output_norm_) output_norm_->BackwardInPlace(pass, dbranch_RD, saved.norms[OutputIndex()]);
}

void ResidualConnection::EnterBackward(const PassContext& pass, Saved& saved,
                                       const at::Tensor& dstream_RD) const {
  const at::Tensor& dinput_RD = pass.work->dinput_RD;
  if (input_norm_) {
    ScaleRows(pass, dinput_RD, scheme_.input_scale);
    input_norm_->BackwardInto(pass, dinput_RD, saved.norms[0], dstream_RD);
  } else if (shift_) {
    shift_->BackwardInPlace(pass, dinput_RD, at::Tensor());
    AddRows(pass, dstream_RD, dinput_RD);
  }
}

InnerNorm::InnerNorm(const BuildContext& build, const SublayerPlace& place) {
  const SublayerScheme scheme = MakeSublayerScheme(build.spec, place);
  const std::string block = BlockName(place);
  if (scheme.inner_norm) norm_.emplace(build, block + kInnerNorm);
  if (scheme.head_scale) scale_shift_.emplace(build.parameters, block + kHeadScale, "");
  if (scheme.shifts && place.kind == SublayerKind::kFeedForward) {
    scale_shift_.emplace(build.parameters, "", block + kInnerShift);
  }
}

NormState InnerNorm::MakeState(const Ops& ops, int64_t capacity) const {
  return norm_ ? norm_->MakeState(ops, capacity) : NormState();
}

at::Tensor InnerNorm::Forward(const PassContext& pass, const at::Tensor& inside_RI,
                              const at::Tensor& scratch_RI, NormState& state) const {
  if (!any()) return inside_RI;
  if (norm_) norm_->Forward(pass, inside_RI, scratch_RI, state);
  if (scale_shift_) scale_shift_->Forward(pass, inside_RI, scratch_RI);
  return scratch_RI;
}

at::Tensor InnerNorm::Recompute(const PassContext& pass, const at::Tensor& inside_RI,
                                const at::Tensor& scratch_RI, const NormState& state) const {
  if (!any()) return inside_RI;
  if (norm_) norm_->Output(pass, state, scratch_RI);
  if (scale_shift_) scale_shift_->Forward(pass, inside_RI, scratch_RI);
  return scratch_RI;
}

void InnerNorm::Backward(const PassContext& pass, const at::Tensor& dy_RI,
                         const at::Tensor& inside_RI, NormState& state) const {
  if (scale_shift_) scale_shift_->BackwardInPlace(pass, dy_RI, inside_RI);
  if (norm_) norm_->BackwardInPlace(pass, dy_RI, state);
}

StackEndStep::StackEndStep(const BuildContext& build, int stack)
    : width_(build.spec.d_model()), second_(EndOf(build.spec) == StackEnd::kSecondNorm) {
  const std::string name = StackName(stack);
  switch (EndOf(build.spec)) {
    case StackEnd::kNorm:
      norm_.emplace(build, name + kFinalNorm);
      return;
    case StackEnd::kSecondNorm:
      norm_.emplace(build, name + kFinalNorm, SecondNormEpsilon(build.spec));
      return;
    case StackEnd::kScaledShift:
      scale_shift_.emplace(build.parameters, stack == 0 ? name + kFinalScale : "",
                           name + kFinalShift);
      return;
    case StackEnd::kNothing:
      DEEPNET_CHECK(false) << "nothing stands there";
  }
}

NormState StackEndStep::MakeState(const Ops& ops, int64_t capacity) const {
  if (norm_) return norm_->MakeState(ops, capacity);
  return {at::zeros({capacity, width_}, ops.ResidualOptions()), {}};
}

void StackEndStep::Forward(const PassContext& pass, const ResidualStream& stream,
                           NormState& state) const {
  if (second_) {  // its norm takes its place: nothing reads it after this
    norm_->Forward(pass, pass.second_RD, pass.second_RD, state);
    AddRows(pass, stream.value_RD, pass.second_RD);
  } else if (norm_) {
    return norm_->ForwardStream(pass, stream, state);
  } else {
    if (pass.keep()) pass.ops->Copy(pass.rows->count, stream.value_RD, state.xhat_RD);
    scale_shift_->Forward(pass, stream.value_RD, stream.value_RD);
  }
  FillOperand(pass, stream);
}

void StackEndStep::Backward(const PassContext& pass, const at::Tensor& dstream_RD,
                            NormState& state) const {
  if (second_) {
    pass.ops->Copy(pass.rows->count, dstream_RD, pass.second_RD);
    return norm_->BackwardInPlace(pass, pass.second_RD, state);
  }
  if (norm_) return norm_->BackwardInPlace(pass, dstream_RD, state);
  scale_shift_->BackwardInPlace(pass, dstream_RD, state.xhat_RD);
}

}  // namespace deepnet

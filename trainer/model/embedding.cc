#include "trainer/model/embedding.h"

#include <cmath>

#include "trainer/kernels/aten.h"
#include "trainer/model/architecture.h"
#include "trainer/model/scheme.h"

namespace deepnet {

at::Tensor SinusoidalPositions(int64_t count, int64_t width) {
  at::Tensor table = at::zeros({count, width}, at::kDouble);
  const int64_t half = width / 2;
  const double rate = half > 1 ? std::log(10000.0) / static_cast<double>(half - 1) : 0.0;
  for (int64_t p = 0; p < count; ++p) {
    double* row = table.data_ptr<double>() + p * width;
    for (int64_t k = 0; k < half; ++k) {
      const double angle = static_cast<double>(p + 2) * std::exp(-rate * static_cast<double>(k));
      row[k] = std::sin(angle);
      row[half + k] = std::cos(angle);
    }
  }
  return table;
}

Embedding::Embedding(const BuildContext& build, LayerKind use)
    : stack_(StackOfKind(build.spec, use)),
      scale_(build.spec.unscaled_embedding() ? 1.0 : std::sqrt(build.spec.d_model())),
      dropout_(build.spec.dropout()),
      width_(build.spec.d_model()) {
  const auto& [spec, capacity, ops, parameters] = build;
  const std::string name = EmbeddingName(spec, use);
  table_VD_ = {parameters.Get(name), parameters.EmbeddingGradient(name, use)};
  if (spec.positions() == LEARNED) {
    positions_PD_ = parameters.Trained(StackName(stack_) + "embed_positions.weight");
  } else {
    const at::TensorOptions options = ops.ResidualOptions();  // the host converts
    positions_PD_.value = SinusoidalPositions(spec.max_positions(), spec.d_model())
                              .to(options.dtype().toScalarType())
                              .to(options.device());
  }
}

at::Tensor Embedding::MaskFor(const Ops& ops, int64_t capacity) const {
  return dropout_ == 0 ? at::Tensor() : MakeMask(ops, capacity, width_);
}

void Embedding::Forward(const PassContext& pass, const ResidualStream& stream,
                        const at::Tensor& mask) const {
  pass.ops->Embed({.rows = pass.rows,
                   .table_VD = table_VD_.value,
                   .positions_PD = positions_PD_.value,
                   .scale = scale_,
                   .dropout = {.seed = pass.microbatch->seed,
                               .step = pass.microbatch->step,
                               .stack = stack_,
                               .layer = 0,
                               .site = kSiteEmbedding,
                               .rate = pass.keep() ? dropout_ : 0.0},
                   .x_RD = stream.value_RD,
                   .x_operand_RD = stream.own_operand_RD(),
                   .mask = mask});
}

void Embedding::Backward(const PassContext& pass, const at::Tensor& dx_RD,
                         const at::Tensor& mask) const {
  pass.ops->EmbedBackward({.rows = pass.rows,
                           .dx_RD = dx_RD,
                           .scale = scale_,
                           .dropout_rate = dropout_,
                           .mask = mask,
                           .dtable_VD = table_VD_.gradient,
                           .dpositions_PD = positions_PD_.gradient});
}

OutputLayer::OutputLayer(const BuildContext& build) {
  const std::string name = EmbeddingName(build.spec, LayerKind::kOutput);
  weight_VD_ = build.parameters.MakeWeight({name});
  dweight_VD_ = build.parameters.EmbeddingGradient(name, LayerKind::kOutput);
}

void OutputLayer::Loss(const PassContext& pass, const at::Tensor& hidden_RD,
                       const LossArgs& loss) const {
  pass.ops->CrossEntropy({.rows = pass.rows->count,
                          .hidden_RD = hidden_RD,
                          .weight_VD = weight_VD_,
                          .labels = pass.microbatch->rows.labels,
                          .index = pass.rows->index,
                          .smoothing = loss.label_smoothing,
                          .scale = loss.gradient_scale,
                          .dhidden_RD = loss.dhidden_RD,
                          .dweight_VD = loss.dhidden_RD.defined() ? dweight_VD_ : at::Tensor(),
                          .sums = loss.sums,
                          .row_nll = loss.token_nll});
}

void OutputLayer::Logits(const PassContext& pass, const at::Tensor& hidden_RD,
                         const at::Tensor& logits_RV) const {
  pass.ops->Linear(
      {.rows = pass.rows->count, .x_RI = hidden_RD, .weight_OI = weight_VD_, .y_RO = logits_RV});
}

}  // namespace deepnet

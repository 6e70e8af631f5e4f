#include "trainer/model/pass.h"

#include <algorithm>

#include "trainer/kernels/aten.h"
#include "trainer/model/architecture.h"

namespace deepnet {

at::Tensor MakeMask(const Ops& ops, int64_t rows, int64_t features) {
  return at::zeros({rows, (features + 7) / 8}, ops.ResidualOptions().dtype(at::kByte));
}

ResidualStream MakeResidualStream(const Ops& ops, int64_t capacity, int64_t width) {
  const at::Tensor value_RD = at::zeros({capacity, width}, ops.ResidualOptions());
  return {value_RD, SameTypes(ops) ? value_RD : at::zeros({capacity, width}, ops.OperandOptions())};
}

Workspace::Workspace(const ModelSpec& spec, const Ops& ops, int64_t capacity, Recompute recompute) {
  const int64_t d = spec.d_model(), f = spec.ffn_dim();
  const auto operands = [&](int64_t columns) {
    return at::zeros({capacity, columns}, ops.OperandOptions());
  };
  const auto residuals = [&] { return at::zeros({capacity, d}, ops.ResidualOptions()); };
  input_RD = operands(d);
  branch_RD = residuals();
  dbranch_RD = operands(d);
  dcontext_RD = operands(d);
  dqkv_R3D = operands(3 * d);
  dinput_RD = residuals();
  dinner_RF = operands(f);
  if (ReadsLayerInput(spec)) layer_input_RD = residuals();
  if (HasSecondStream(spec)) second_RD = residuals();
  if (recompute != SELECTIVE_FFN && recompute != SELECTIVE_GEMM) return;
  inner_RF = operands(f);
  if (spec.activation() == GELU) pre_RF = operands(f);
  if (spec.activation_dropout() > 0) inner_mask_RF = MakeMask(ops, capacity, f);
  if (recompute == SELECTIVE_GEMM) qkv_R3D = operands(3 * d);
}

void AddRows(const PassContext& pass, const at::Tensor& y_RD, const at::Tensor& x_RD) {
  pass.ops->Add(FirstRows(pass.rows->count, y_RD), FirstRows(pass.rows->count, x_RD));
}

void FillOperand(const PassContext& pass, const ResidualStream& stream) {
  if (stream.one_tensor()) return;
  pass.ops->Copy(pass.rows->count, stream.value_RD, stream.operand_RD);
}

PackedRows RowsOf(const PackedSide& side, const std::vector<uint32_t>& pairs, int num_sentences) {
  return {.count = side.NumTokens(),
          .num_sentences = num_sentences,
          .tokens = side.tokens.data(),
          .positions = side.positions.data(),
          .pairs = pairs.data(),
          .offsets = side.offsets.data()};
}

MicrobatchPass MakePass(Ops& ops, const Microbatch& microbatch, uint64_t seed, int64_t step,
                        bool training) {
  const auto rows_of = [&](const PackedSide& side, const std::vector<uint32_t>& pairs) {
    PackedRows rows = RowsOf(side, pairs, microbatch.num_sentences);
    if (!training || !ops.session().RepeatsPasses()) return rows;
    rows.count = static_cast<int64_t>(side.tokens.size());
    rows.num_sentences = std::max(0, static_cast<int>(side.offsets.size()) - 1);
    return rows;
  };
  return {
      .rows = ops.session().Upload({.source = rows_of(microbatch.source, microbatch.source_pairs),
                                    .target = rows_of(microbatch.target, microbatch.target_pairs),
                                    .step = step,
                                    .labels = microbatch.labels.data()}),
      .seed = seed,
      .step = step,
      .training = training};
}

BoundarySet BoundaryBefore(const Inventory& whole, int position) {
  BoundarySet set;
  if (position == static_cast<int>(whole.layers.size())) return set;
  const Layer& next = whole.layers[position];
  for (const BoundaryTensor& tensor : next.inputs) {
    const bool hidden = tensor.name == kHidden, encoder = next.kind == LayerKind::kEncoder;
    set.encoder_output |= !hidden;
    set.source |= hidden && encoder;
    set.target |= hidden && !encoder;
  }
  return set;
}

}  // namespace deepnet

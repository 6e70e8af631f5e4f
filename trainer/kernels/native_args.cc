#include "trainer/kernels/native_args.h"

#include <ATen/ATen.h>

namespace deepnet {

native::Element ElementOf(at::ScalarType type) {
  if (type == at::kHalf) return native::Element::kFloat16;
  return type == at::kBFloat16 ? native::Element::kBfloat16 : native::Element::kFloat32;
}

native::ConstMatrix In(const at::Tensor& x, int64_t rows) {
  if (!x.defined()) return {};
  return {x.const_data_ptr(), ElementOf(x.scalar_type()), rows, x.size(1), x.stride(0)};
}

native::Matrix Out(const at::Tensor& x, int64_t rows) {
  if (!x.defined()) return {};
  return {x.data_ptr(), ElementOf(x.scalar_type()), rows, x.size(1), x.stride(0)};
}

float* Floats(const at::Tensor& x) { return x.defined() ? x.data_ptr<float>() : nullptr; }

uint8_t* Bytes(const at::Tensor& x) { return x.defined() ? x.data_ptr<uint8_t>() : nullptr; }

native::RowIds IdsOf(const PackedRows* rows) {
  if (rows == nullptr) return {};
  return {.pair = rows->pairs, .position = rows->positions};
}

native::ResidualNormForwardArgs ArgsOf(const ResidualNormArgs& a) {
  return {.rows = a.rows,
          .width = (a.x_RD.defined() ? a.x_RD : a.branch_RD).size(1),
          .alpha = static_cast<float>(a.alpha),
          .epsilon = static_cast<float>(a.epsilon),
          .centred = a.centred,
          .x = Floats(a.x_RD),
          .branch = In(a.branch_RD, a.rows),
          .dropout = a.dropout,
          .ids = IdsOf(a.ids),
          .gain = Floats(a.gain_D),
          .bias = Floats(a.bias_D),
          .sum = Floats(a.sum_RD),
          .y = Floats(a.y_RD),
          .y_operand = Out(a.y_operand_RD, a.rows),
          .xhat = a.state != nullptr ? Floats(a.state->xhat_RD) : nullptr,
          .rstd = a.state != nullptr ? Floats(a.state->rstd) : nullptr,
          .mask = Bytes(a.mask)};
}

native::ResidualNormBackwardArgs ArgsOf(const ResidualNormGradArgs& a, const at::Tensor& dy_RD) {
  return {.rows = a.rows,
          .width = a.dy_RD.size(1),
          .alpha = static_cast<float>(a.alpha),
          .rate = a.dropout_rate,
          .centred = a.centred,
          .dy = Floats(dy_RD),
          .dpast = Floats(a.dpast_RD),
          .xhat = Floats(a.state->xhat_RD),
          .rstd = Floats(a.state->rstd),
          .gain = Floats(a.gain_D),
          .mask = Bytes(a.mask),
          .d_residual = Floats(a.dx_RD),
          .accumulate_residual = a.accumulate_dx,
          .d_branch = Out(a.dbranch_RD, a.rows),
          .d_gain = Floats(a.dgain_D),
          .d_bias = Floats(a.dbias_D)};
}

native::ScaleShiftForwardArgs ArgsOf(const ScaleShiftArgs& a) {
  return {.x = In(a.x_RD, a.rows),
          .scale = Floats(a.scale_G),
          .groups = a.scale_G.defined() ? a.scale_G.size(0) : 1,
          .shift = Floats(a.shift_1),
          .y = Out(a.y_RD, a.rows)};
}

native::ScaleShiftBackwardArgs ArgsOf(const ScaleShiftGradArgs& a) {
  return {.dy = In(a.dy_RD, a.rows),
          .x = a.scale_G.defined() ? In(a.x_RD, a.rows) : native::ConstMatrix(),
          .scale = Floats(a.scale_G),
          .groups = a.scale_G.defined() ? a.scale_G.size(0) : 1,
          .shift = Floats(a.shift_1),
          .dx = Out(a.dx_RD, a.rows),
          .d_scale = Floats(a.dscale_G),
          .d_shift = Floats(a.dshift_1)};
}

namespace {

native::AttentionShape ShapeOf(const AttentionArgs& a) {
  return {.num_sentences = a.queries->num_sentences,
          .q_offsets = a.queries->offsets,
          .k_offsets = a.keys->offsets,
          .heads = a.heads,
          .head_dim = static_cast<int>(a.q_RD.size(1) / a.heads),
          .causal = a.causal};
}

}  // namespace

native::AttentionForwardArgs ArgsOf(const AttentionArgs& a) {
  return {.shape = ShapeOf(a),
          .q = In(a.q_RD, a.queries->count),
          .k = In(a.k_RD, a.keys->count),
          .v = In(a.v_RD, a.keys->count),
          .dropout = a.dropout,
          .q_ids = IdsOf(a.queries),
          .context = Out(a.context_RD, a.queries->count),
          .lse = Floats(a.log_sum_exp_RH)};
}

native::AttentionBackwardArgs ArgsOf(const AttentionGradArgs& g) {
  const AttentionArgs& a = g.forward;
  return {.shape = ShapeOf(a),
          .q = In(a.q_RD, a.queries->count),
          .k = In(a.k_RD, a.keys->count),
          .v = In(a.v_RD, a.keys->count),
          .lse = Floats(a.log_sum_exp_RH),
          .context = In(a.context_RD, a.queries->count),
          .d_context = In(g.dcontext_RD, a.queries->count),
          .dropout = a.dropout,
          .q_ids = IdsOf(a.queries),
          .dq = Out(g.dq_RD, a.queries->count),
          .dk = Out(g.dk_RD, a.keys->count),
          .dv = Out(g.dv_RD, a.keys->count)};
}

native::DecodeAttentionArgs ArgsOf(const DecodeAttentionArgs& a) {
  return {.heads = a.heads,
          .head_dim = static_cast<int>(a.q_RD.size(1) / a.heads),
          .q = In(a.q_RD, a.rows),
          .keys = In(a.keys_ND, a.keys_ND.size(0)),
          .values = In(a.values_ND, a.values_ND.size(0)),
          .index = a.index,
          .index_stride = a.index_stride,
          .lengths = a.lengths,
          .context = Out(a.context_RD, a.rows)};
}

native::EmbedForwardArgs ArgsOf(const EmbedArgs& a) {
  return {.rows = a.rows->count,
          .width = a.table_VD.size(1),
          .vocabulary = a.table_VD.size(0),
          .ids = a.rows->tokens,
          .row_ids = IdsOf(a.rows),
          .table = In(a.table_VD, a.table_VD.size(0)),
          .scale = static_cast<float>(a.scale),
          .positions = Floats(a.positions_PD),
          .max_positions = a.positions_PD.size(0),
          .dropout = a.dropout,
          .x = Floats(a.x_RD),
          .x_operand = Out(a.x_operand_RD, a.rows->count),
          .mask = Bytes(a.mask)};
}

native::EmbedBackwardArgs ArgsOf(const EmbedGradArgs& a) {
  return {.rows = a.rows->count,
          .width = a.dx_RD.size(1),
          .index = a.rows->tokens,
          .num_indices = a.dtable_VD.size(0),
          .dx = Floats(a.dx_RD),
          .rate = a.dropout_rate,
          .mask = Bytes(a.mask),
          .scale = static_cast<float>(a.scale),
          .grad = Floats(a.dtable_VD)};
}

native::EmbedBackwardArgs PositionArgsOf(const EmbedGradArgs& a) {
  native::EmbedBackwardArgs args = ArgsOf(a);
  args.index = reinterpret_cast<const int32_t*>(a.rows->positions);
  args.num_indices = a.dpositions_PD.size(0);
  args.scale = 1.0f;
  args.grad = Floats(a.dpositions_PD);
  return args;
}

native::AdamRange RangeOf(const AdamArgs& a) {
  return {.n = a.weights.numel(),
          .weights = Floats(a.weights),
          .gradient = Floats(a.gradient),
          .m = Floats(a.moment1),
          .v = Floats(a.moment2)};
}

}  // namespace deepnet

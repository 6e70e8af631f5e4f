// Every Backward below is its Forward read upwards: gradient of the branch from the join, through
// the last product to the first, the input computed again for the weight gradients, and on to the
// stream.
#include "trainer/model/layers.h"

#include <ATen/ATen.h>

#include "parallel/base/check.h"

namespace deepnet {
namespace {

std::string Prefix(int stack, int layer) {
  return (stack == 0 ? "encoder.layers." : "decoder.layers.") + std::to_string(layer) + ".";
}

std::unique_ptr<Join> MakeSublayerJoin(const ModelSpec& spec, const DepthScaling& scaling,
                                       const Parameters& parameters, int stack, int layer,
                                       Site site, const std::string& norm) {
  return MakeJoin(spec.residual(),
                  {.alpha = stack == 0 ? scaling.encoder_alpha : scaling.decoder_alpha,
                   .dropout = spec.dropout(),
                   .epsilon = spec.layer_norm_epsilon(),
                   .stack = stack,
                   .layer = layer,
                   .site = site},
                  NormParameters(parameters, Prefix(stack, layer) + norm));
}

// "<prefix>self_attn." and {"q", "k", "v"} -> names of the weights.
std::vector<std::string> Projections(const std::string& prefix, std::vector<std::string> letters) {
  for (std::string& letter : letters) letter = prefix + letter + "_proj";
  return letters;
}

DropoutSite At(DropoutSite site, const PassContext& pass) {
  site.seed = pass.seed;
  site.step = pass.step;
  if (!pass.keep) site.rate = 0.0;
  return site;
}

// Where a branch writes the gradient of its input.
const at::Tensor& InputGradient(const Join& join, const at::Tensor& dstream_RD,
                                const Workspace& work) {
  return join.InputGradientAddsToStream() ? dstream_RD : work.dinput_RD;
}

}  // namespace

LinearLayer::LinearLayer(Ops& ops, const Parameters& parameters,
                         const std::vector<std::string>& names) {
  std::vector<std::string> weights, biases;
  for (const std::string& name : names) {
    weights.push_back(name + ".weight");
    biases.push_back(name + ".bias");
  }
  weight_ = ops.MakeWeight(parameters.GetJoined(weights), parameters.trainable());
  bias_ = parameters.GetJoined(biases);
  dweight_ = parameters.GradientJoined(weights);
  dbias_ = parameters.GradientJoined(biases);
}

Workspace::Workspace(const ModelSpec& spec, const Ops& ops, int64_t capacity)
    : input_RD(at::zeros({capacity, spec.width()}, ops.Operand())),
      branch_RD(at::zeros({capacity, spec.width()}, ops.Stream())),
      dbranch_RD(at::zeros({capacity, spec.width()}, ops.Operand())),
      dcontext_RD(at::zeros({capacity, spec.width()}, ops.Operand())),
      dqkv_R3D(at::zeros({capacity, 3 * spec.width()}, ops.Operand())),
      dinput_RD(at::zeros({capacity, spec.width()}, ops.Stream())),
      dinner_RF(at::zeros({capacity, spec.ffn_width()}, ops.Operand())) {}

// --- self-attention ------------------------------------------------------------------------------

SelfAttention::SelfAttention(const ModelSpec& spec, const DepthScaling& scaling, Ops& ops,
                             const Parameters& parameters, int stack, int layer)
    : width_(spec.width()),
      heads_(spec.heads()),
      dropout_{.stack = stack,
               .layer = layer,
               .site = kSiteSelfAttentionWeights,
               .rate = spec.attention_dropout()},
      qkv_(ops, parameters, Projections(Prefix(stack, layer) + "self_attn.", {"q", "k", "v"})),
      out_(ops, parameters, {Prefix(stack, layer) + "self_attn.out_proj"}),
      join_(MakeSublayerJoin(spec, scaling, parameters, stack, layer, kSiteSelfAttention,
                             "self_attn_layer_norm")) {}

SelfAttention::Saved SelfAttention::MakeSaved(const Ops& ops, int64_t capacity) const {
  Saved saved;
  saved.qkv_R3D = at::zeros({capacity, 3 * width_}, ops.Operand());
  saved.q_RD = saved.qkv_R3D.narrow(1, 0, width_);
  saved.k_RD = saved.qkv_R3D.narrow(1, width_, width_);
  saved.v_RD = saved.qkv_R3D.narrow(1, 2 * width_, width_);
  saved.context_RD = at::zeros({capacity, width_}, ops.Operand());
  saved.log_sum_exp_RH = at::zeros({capacity, heads_}, ops.Stream());
  saved.join = join_->MakeSaved(ops, capacity, width_);
  return saved;
}

AttentionArgs SelfAttention::Args(const PassContext& pass, const Saved& saved) const {
  return {.q_RD = saved.q_RD,
          .k_RD = saved.k_RD,
          .v_RD = saved.v_RD,
          .queries = pass.rows,
          .keys = pass.rows,
          .heads = heads_,
          .causal = dropout_.stack == 1,
          .dropout = At(dropout_, pass),
          .context_RD = saved.context_RD,
          .log_sum_exp_RH = saved.log_sum_exp_RH};
}

void SelfAttention::Forward(const PassContext& pass, const Stream& stream, Workspace& work,
                            Saved& saved) const {
  const at::Tensor input_RD = join_->Enter(pass, stream, work.input_RD, saved.join);
  qkv_.Forward(pass, input_RD, /*relu=*/false, saved.qkv_R3D);
  pass.ops->Attention(Args(pass, saved));
  out_.Forward(pass, saved.context_RD, /*relu=*/false, work.branch_RD);
  join_->Leave(pass, stream, work.branch_RD, saved.join);
}

void SelfAttention::Backward(const PassContext& pass, const Upstream& upstream,
                             const at::Tensor& dstream_RD, Workspace& work, Saved& saved) const {
  join_->LeaveBackward(pass, saved.join, dstream_RD, work.dbranch_RD);
  out_.BackwardWeight(pass, work.dbranch_RD, saved.context_RD);
  out_.BackwardInput(pass, work.dbranch_RD, {}, /*accumulate=*/false, work.dcontext_RD);
  pass.ops->AttentionBackward({.forward = Args(pass, saved),
                               .dcontext_RD = work.dcontext_RD,
                               .dq_RD = work.dqkv_R3D.narrow(1, 0, width_),
                               .dk_RD = work.dqkv_R3D.narrow(1, width_, width_),
                               .dv_RD = work.dqkv_R3D.narrow(1, 2 * width_, width_)});
  const at::Tensor input_RD = join_->Input(pass, saved.join, upstream, work.input_RD);
  qkv_.BackwardWeight(pass, work.dqkv_R3D, input_RD);
  qkv_.BackwardInput(pass, work.dqkv_R3D, {}, join_->InputGradientAddsToStream(),
                     InputGradient(*join_, dstream_RD, work));
  join_->EnterBackward(pass, saved.join, work.dinput_RD, dstream_RD);
}

void SelfAttention::Step(const PassContext& pass, const Stream& stream, Workspace& work,
                         Saved& saved, KeyValueCache& cache, int64_t first_row,
                         const CacheIndex& index) const {
  const int64_t rows = pass.rows->count;
  const at::Tensor input_RD = join_->Enter(pass, stream, work.input_RD, saved.join);
  qkv_.Forward(pass, input_RD, /*relu=*/false, saved.qkv_R3D);
  pass.ops->Copy(rows, saved.k_RD, cache.keys_ND.narrow(0, first_row, rows));
  pass.ops->Copy(rows, saved.v_RD, cache.values_ND.narrow(0, first_row, rows));
  pass.ops->DecodeAttention({.rows = rows,
                             .q_RD = saved.q_RD,
                             .keys_ND = cache.keys_ND,
                             .values_ND = cache.values_ND,
                             .index = index.index,
                             .index_stride = index.stride,
                             .lengths = index.lengths,
                             .heads = heads_,
                             .context_RD = saved.context_RD});
  out_.Forward(pass, saved.context_RD, /*relu=*/false, work.branch_RD);
  join_->Leave(pass, stream, work.branch_RD, saved.join);
}

void SelfAttention::Refresh(Ops& ops) {
  qkv_.Refresh(ops);
  out_.Refresh(ops);
}

// --- cross-attention -----------------------------------------------------------------------------

CrossAttention::CrossAttention(const ModelSpec& spec, const DepthScaling& scaling, Ops& ops,
                               const Parameters& parameters, int layer)
    : width_(spec.width()),
      heads_(spec.heads()),
      dropout_{.stack = 1,
               .layer = layer,
               .site = kSiteCrossAttentionWeights,
               .rate = spec.attention_dropout()},
      q_(ops, parameters, Projections(Prefix(1, layer) + "encoder_attn.", {"q"})),
      kv_(ops, parameters, Projections(Prefix(1, layer) + "encoder_attn.", {"k", "v"})),
      out_(ops, parameters, {Prefix(1, layer) + "encoder_attn.out_proj"}),
      join_(MakeSublayerJoin(spec, scaling, parameters, 1, layer, kSiteCrossAttention,
                             "encoder_attn_layer_norm")) {}

CrossAttention::Saved CrossAttention::MakeSaved(const Ops& ops, int64_t source_capacity,
                                                int64_t target_capacity) const {
  Saved saved;
  saved.q_RD = at::zeros({target_capacity, width_}, ops.Operand());
  saved.kv_R2D = at::zeros({source_capacity, 2 * width_}, ops.Operand());
  saved.k_RD = saved.kv_R2D.narrow(1, 0, width_);
  saved.v_RD = saved.kv_R2D.narrow(1, width_, width_);
  saved.context_RD = at::zeros({target_capacity, width_}, ops.Operand());
  saved.log_sum_exp_RH = at::zeros({target_capacity, heads_}, ops.Stream());
  saved.join = join_->MakeSaved(ops, target_capacity, width_);
  return saved;
}

AttentionArgs CrossAttention::Args(const PassContext& pass, const Memory& memory,
                                   const Saved& saved) const {
  return {.q_RD = saved.q_RD,
          .k_RD = saved.k_RD,
          .v_RD = saved.v_RD,
          .queries = pass.rows,
          .keys = memory.rows,
          .heads = heads_,
          .causal = false,
          .dropout = At(dropout_, pass),
          .context_RD = saved.context_RD,
          .log_sum_exp_RH = saved.log_sum_exp_RH};
}

void CrossAttention::Forward(const PassContext& pass, const Memory& memory, const Stream& stream,
                             Workspace& work, Saved& saved) const {
  PassContext memory_pass = pass;
  memory_pass.rows = memory.rows;
  const at::Tensor input_RD = join_->Enter(pass, stream, work.input_RD, saved.join);
  q_.Forward(pass, input_RD, /*relu=*/false, saved.q_RD);
  kv_.Forward(memory_pass, memory.value_RD, /*relu=*/false, saved.kv_R2D);
  pass.ops->Attention(Args(pass, memory, saved));
  out_.Forward(pass, saved.context_RD, /*relu=*/false, work.branch_RD);
  join_->Leave(pass, stream, work.branch_RD, saved.join);
}

void CrossAttention::Backward(const PassContext& pass, const Memory& memory,
                              const Upstream& upstream, const at::Tensor& dstream_RD,
                              Workspace& work, Workspace& memory_work, Saved& saved) const {
  PassContext memory_pass = pass;
  memory_pass.rows = memory.rows;
  const at::Tensor dq_RD = work.dqkv_R3D.narrow(1, 0, width_);
  const at::Tensor dkv_R2D = memory_work.dqkv_R3D.narrow(1, width_, 2 * width_);
  join_->LeaveBackward(pass, saved.join, dstream_RD, work.dbranch_RD);
  out_.BackwardWeight(pass, work.dbranch_RD, saved.context_RD);
  out_.BackwardInput(pass, work.dbranch_RD, {}, /*accumulate=*/false, work.dcontext_RD);
  pass.ops->AttentionBackward({.forward = Args(pass, memory, saved),
                               .dcontext_RD = work.dcontext_RD,
                               .dq_RD = dq_RD,
                               .dk_RD = dkv_R2D.narrow(1, 0, width_),
                               .dv_RD = dkv_R2D.narrow(1, width_, width_)});
  kv_.BackwardWeight(memory_pass, dkv_R2D, memory.value_RD);
  kv_.BackwardInput(memory_pass, dkv_R2D, {}, /*accumulate=*/true, memory.gradient_RD);
  const at::Tensor input_RD = join_->Input(pass, saved.join, upstream, work.input_RD);
  q_.BackwardWeight(pass, dq_RD, input_RD);
  q_.BackwardInput(pass, dq_RD, {}, join_->InputGradientAddsToStream(),
                   InputGradient(*join_, dstream_RD, work));
  join_->EnterBackward(pass, saved.join, work.dinput_RD, dstream_RD);
}

void CrossAttention::FillCache(const PassContext& pass, const Memory& memory,
                               const at::Tensor& kv_R2D) const {
  PassContext memory_pass = pass;
  memory_pass.rows = memory.rows;
  kv_.Forward(memory_pass, memory.value_RD, /*relu=*/false, kv_R2D);
}

void CrossAttention::Step(const PassContext& pass, const Stream& stream, Workspace& work,
                          Saved& saved, const KeyValueCache& cache, const CacheIndex& index) const {
  const at::Tensor input_RD = join_->Enter(pass, stream, work.input_RD, saved.join);
  q_.Forward(pass, input_RD, /*relu=*/false, saved.q_RD);
  pass.ops->DecodeAttention({.rows = pass.rows->count,
                             .q_RD = saved.q_RD,
                             .keys_ND = cache.keys_ND,
                             .values_ND = cache.values_ND,
                             .index = index.index,
                             .index_stride = index.stride,
                             .lengths = index.lengths,
                             .heads = heads_,
                             .context_RD = saved.context_RD});
  out_.Forward(pass, saved.context_RD, /*relu=*/false, work.branch_RD);
  join_->Leave(pass, stream, work.branch_RD, saved.join);
}

void CrossAttention::Refresh(Ops& ops) {
  q_.Refresh(ops);
  kv_.Refresh(ops);
  out_.Refresh(ops);
}

// --- feed-forward --------------------------------------------------------------------------------

FeedForward::FeedForward(const ModelSpec& spec, const DepthScaling& scaling, Ops& ops,
                         const Parameters& parameters, int stack, int layer)
    : width_(spec.width()),
      inner_(spec.ffn_width()),
      gelu_(spec.activation() == GELU),
      dropout_{.stack = stack,
               .layer = layer,
               .site = kSiteActivation,
               .rate = spec.activation_dropout()},
      fc1_(ops, parameters, {Prefix(stack, layer) + "fc1"}),
      fc2_(ops, parameters, {Prefix(stack, layer) + "fc2"}),
      join_(MakeSublayerJoin(spec, scaling, parameters, stack, layer, kSiteFeedForward,
                             "final_layer_norm")) {}

FeedForward::Saved FeedForward::MakeSaved(const Ops& ops, int64_t capacity) const {
  Saved saved;
  saved.inner_RF = at::zeros({capacity, inner_}, ops.Operand());
  if (gelu_) saved.pre_RF = at::zeros({capacity, inner_}, ops.Operand());
  if (dropout_.rate > 0) {
    saved.mask = at::zeros({capacity, (inner_ + 7) / 8}, ops.Stream().dtype(at::kByte));
  }
  saved.join = join_->MakeSaved(ops, capacity, width_);
  return saved;
}

void FeedForward::Forward(const PassContext& pass, const Stream& stream, Workspace& work,
                          Saved& saved) const {
  const at::Tensor input_RD = join_->Enter(pass, stream, work.input_RD, saved.join);
  fc1_.Forward(pass, input_RD, /*relu=*/!gelu_, gelu_ ? saved.pre_RF : saved.inner_RF);
  if (gelu_) pass.ops->Gelu(pass.rows->count, saved.pre_RF, saved.inner_RF);
  const DropoutSite dropout = At(dropout_, pass);
  if (dropout.rate > 0) {
    pass.ops->Dropout(pass.rows->count, dropout, *pass.rows, saved.inner_RF, saved.mask);
  }
  fc2_.Forward(pass, saved.inner_RF, /*relu=*/false, work.branch_RD);
  join_->Leave(pass, stream, work.branch_RD, saved.join);
}

void FeedForward::Backward(const PassContext& pass, const Upstream& upstream,
                           const at::Tensor& dstream_RD, Workspace& work, Saved& saved) const {
  join_->LeaveBackward(pass, saved.join, dstream_RD, work.dbranch_RD);
  fc2_.BackwardWeight(pass, work.dbranch_RD, saved.inner_RF);
  // With RELU, positive outputs are those that were kept by both the activation and its dropout.
  fc2_.BackwardInput(pass, work.dbranch_RD, gelu_ ? at::Tensor() : saved.inner_RF,
                     /*accumulate=*/false, work.dinner_RF);
  if (dropout_.rate > 0) {
    pass.ops->DropoutBackward(pass.rows->count, dropout_.rate, saved.mask, work.dinner_RF);
  }
  if (gelu_) pass.ops->GeluBackward(pass.rows->count, saved.pre_RF, work.dinner_RF, work.dinner_RF);
  const at::Tensor input_RD = join_->Input(pass, saved.join, upstream, work.input_RD);
  fc1_.BackwardWeight(pass, work.dinner_RF, input_RD);
  fc1_.BackwardInput(pass, work.dinner_RF, {}, join_->InputGradientAddsToStream(),
                     InputGradient(*join_, dstream_RD, work));
  join_->EnterBackward(pass, saved.join, work.dinput_RD, dstream_RD);
}

void FeedForward::Refresh(Ops& ops) {
  fc1_.Refresh(ops);
  fc2_.Refresh(ops);
}

// --- layers --------------------------------------------------------------------------------------

EncoderLayer::EncoderLayer(const ModelSpec& spec, const DepthScaling& scaling, Ops& ops,
                           const Parameters& parameters, int layer)
    : attention_(spec, scaling, ops, parameters, 0, layer),
      feed_forward_(spec, scaling, ops, parameters, 0, layer) {}

EncoderLayer::Saved EncoderLayer::MakeSaved(const Ops& ops, int64_t capacity) const {
  return {attention_.MakeSaved(ops, capacity), feed_forward_.MakeSaved(ops, capacity)};
}

void EncoderLayer::Forward(const PassContext& pass, const Stream& stream, Workspace& work,
                           Saved& saved) const {
  attention_.Forward(pass, stream, work, saved.attention);
  feed_forward_.Forward(pass, stream, work, saved.feed_forward);
}

void EncoderLayer::Backward(const PassContext& pass, const Upstream& upstream,
                            const at::Tensor& dstream_RD, Workspace& work, Saved& saved) const {
  feed_forward_.Backward(pass, {&attention_.join(), &saved.attention.join, {}}, dstream_RD, work,
                         saved.feed_forward);
  attention_.Backward(pass, upstream, dstream_RD, work, saved.attention);
}

Upstream EncoderLayer::Output(const Saved& saved) const {
  return {&feed_forward_.join(), &saved.feed_forward.join, {}};
}

void EncoderLayer::Refresh(Ops& ops) {
  attention_.Refresh(ops);
  feed_forward_.Refresh(ops);
}

DecoderLayer::DecoderLayer(const ModelSpec& spec, const DepthScaling& scaling, Ops& ops,
                           const Parameters& parameters, int layer)
    : self_attention_(spec, scaling, ops, parameters, 1, layer),
      cross_attention_(spec, scaling, ops, parameters, layer),
      feed_forward_(spec, scaling, ops, parameters, 1, layer) {}

DecoderLayer::Saved DecoderLayer::MakeSaved(const Ops& ops, int64_t source_capacity,
                                            int64_t target_capacity) const {
  return {self_attention_.MakeSaved(ops, target_capacity),
          cross_attention_.MakeSaved(ops, source_capacity, target_capacity),
          feed_forward_.MakeSaved(ops, target_capacity)};
}

void DecoderLayer::Forward(const PassContext& pass, const Memory& memory, const Stream& stream,
                           Workspace& work, Saved& saved) const {
  self_attention_.Forward(pass, stream, work, saved.self_attention);
  cross_attention_.Forward(pass, memory, stream, work, saved.cross_attention);
  feed_forward_.Forward(pass, stream, work, saved.feed_forward);
}

void DecoderLayer::Backward(const PassContext& pass, const Memory& memory, const Upstream& upstream,
                            const at::Tensor& dstream_RD, Workspace& work, Workspace& memory_work,
                            Saved& saved) const {
  feed_forward_.Backward(pass, {&cross_attention_.join(), &saved.cross_attention.join, {}},
                         dstream_RD, work, saved.feed_forward);
  cross_attention_.Backward(pass, memory, {&self_attention_.join(), &saved.self_attention.join, {}},
                            dstream_RD, work, memory_work, saved.cross_attention);
  self_attention_.Backward(pass, upstream, dstream_RD, work, saved.self_attention);
}

void DecoderLayer::Step(const PassContext& pass, const Stream& stream, Workspace& work,
                        Saved& saved, KeyValueCache& self_cache, int64_t first_row,
                        const CacheIndex& self_index, const KeyValueCache& memory_cache,
                        const CacheIndex& memory_index) const {
  self_attention_.Step(pass, stream, work, saved.self_attention, self_cache, first_row, self_index);
  cross_attention_.Step(pass, stream, work, saved.cross_attention, memory_cache, memory_index);
  feed_forward_.Forward(pass, stream, work, saved.feed_forward);
}

Upstream DecoderLayer::Output(const Saved& saved) const {
  return {&feed_forward_.join(), &saved.feed_forward.join, {}};
}

void DecoderLayer::Refresh(Ops& ops) {
  self_attention_.Refresh(ops);
  cross_attention_.Refresh(ops);
  feed_forward_.Refresh(ops);
}

}  // namespace deepnet

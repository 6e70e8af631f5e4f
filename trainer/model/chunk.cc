#include "trainer/model/chunk.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "parallel/base/check.h"
#include "trainer/model/architecture.h"

namespace deepnet {
namespace {

// How many layers of `kind` the chunk has, and the first: within its stack, and in the chain.
struct Part {
  int first = 0;
  int layer = 0;
  int count = 0;
};

Part PartOf(const Inventory& whole, const LayerSpan& span, LayerKind kind) {
  Part part;
  for (int l = span.first; l < span.end; ++l) {
    if (whole.layers[l].kind != kind) continue;
    if (part.count++ > 0) continue;
    part.first = whole.layers[l].index;
    part.layer = l;
  }
  return part;
}

bool Has(const Inventory& whole, const LayerSpan& span, LayerKind kind) {
  return PartOf(whole, span, kind).count > 0;
}

// Whether the last layer of `kind` is in `span`; the output layer stands behind all of them.
bool Ends(const Inventory& whole, const LayerSpan& span, LayerKind kind) {
  const Part part = PartOf(whole, span, kind);
  return part.count > 0 && whole.layers[part.layer + part.count].kind != kind;
}

template <typename StackT>
StackT MakeStack(const ModelSpec& spec, const MicrobatchSpec& capacity, const Inventory& whole,
                 const ChunkSpec& chunk, LayerKind kind, Ops& ops, const Parameters& parameters) {
  const Part part = PartOf(whole, chunk.layers, kind);
  return StackT(spec, capacity, chunk.recompute, ops, parameters, part.first, part.count);
}

int FirstOf(const Inventory& whole, const LayerSpan& span, LayerKind kind) {
  return PartOf(whole, span, kind).layer;
}

bool SameTypes(const Ops& ops) { return ops.Operand().dtype() == ops.Stream().dtype(); }

// The rows of a stream that did not come from a layer of this chunk, in operand type.
void FillOperand(const PassContext& pass, const Stream& stream) {
  if (stream.operand_RD.is_same(stream.value_RD)) return;
  pass.ops->Copy(pass.rows->count, stream.value_RD, stream.operand_RD);
}

}  // namespace

Chunk::Chunk(const ModelSpec& spec, const MicrobatchSpec& capacity, const Inventory& whole,
             const ChunkSpec& chunk, Ops& ops, const Parameters& parameters)
    : spec_(chunk),
      inputs_(CutBefore(whole, chunk.layers.first)),
      outputs_(CutBefore(whole, chunk.layers.end)),
      has_source_(whole.layers[chunk.layers.first].kind < LayerKind::kTargetEmbedding),
      has_target_(whole.layers[chunk.layers.end - 1].kind >= LayerKind::kTargetEmbedding),
      ends_encoder_(Ends(whole, chunk.layers, LayerKind::kEncoder)),
      ends_decoder_(Ends(whole, chunk.layers, LayerKind::kDecoder)),
      reads_memory_(HasMemory(spec) && Has(whole, chunk.layers, LayerKind::kDecoder)),
      first_encoder_(FirstOf(whole, chunk.layers, LayerKind::kEncoder)),
      first_decoder_(FirstOf(whole, chunk.layers, LayerKind::kDecoder)),
      source_embedding_at_(FirstOf(whole, chunk.layers, LayerKind::kSourceEmbedding)),
      target_embedding_at_(FirstOf(whole, chunk.layers, LayerKind::kTargetEmbedding)),
      source_capacity_(capacity.source_tokens()),
      target_capacity_(capacity.target_tokens()),
      ops_(ops),
      encoder_(MakeStack<EncoderStack>(spec, capacity, whole, chunk, LayerKind::kEncoder, ops,
                                       parameters)),
      decoder_(MakeStack<DecoderStack>(spec, capacity, whole, chunk, LayerKind::kDecoder, ops,
                                       parameters)) {
  DEEPNET_CHECK(chunk.layers.NumLayers() > 0);
  if (Has(whole, chunk.layers, LayerKind::kSourceEmbedding)) {
    source_embedding_.emplace(spec, ops, parameters, EmbeddingUse::kSource);
  }
  if (Has(whole, chunk.layers, LayerKind::kTargetEmbedding)) {
    target_embedding_.emplace(spec, ops, parameters, EmbeddingUse::kTarget);
  }
  if (Has(whole, chunk.layers, LayerKind::kOutput)) output_.emplace(spec, ops, parameters);
  if (EndOf(spec) != StackEnd::kNothing) {
    if (ends_encoder_) encoder_end_.emplace(spec, parameters, 0);
    if (ends_decoder_) decoder_end_.emplace(spec, parameters, LabelledStack(spec));
  }
  if (!HasEmbeddingNorm(spec)) return;
  if (source_embedding_) source_norm_.emplace(spec, parameters, StackName(0) + kEmbeddingNorm);
  if (!target_embedding_) return;
  target_norm_.emplace(spec, parameters, StackName(LabelledStack(spec)) + kEmbeddingNorm);
}

Stream Chunk::SourceStream(const at::Tensor& value_RD, const ChunkWorkspace& work) const {
  return {value_RD, SameTypes(ops_) ? value_RD : work.source_operand_RD};
}

Stream Chunk::TargetStream(const at::Tensor& value_RD, const ChunkWorkspace& work) const {
  return {value_RD, SameTypes(ops_) ? value_RD : work.target_operand_RD};
}

PassContext Chunk::Context(const MicrobatchPass& pass, const PackedRows& rows,
                           const Workspace& work) const {
  return {.ops = &ops_,
          .rows = &rows,
          .seed = pass.seed,
          .step = pass.step,
          .keep = pass.training,
          .deferred = pass.deferred,
          .probe = pass.probe,
          .second_RD = work.second_RD};
}

LossSums Chunk::Forward(const MicrobatchPass& pass, const Flow& values, ChunkWorkspace& work,
                        Kept& kept, const LossOptions& loss, const at::Tensor& dhidden_RD,
                        float* token_nll) const {
  if (has_source_) Encode(pass, values, work, kept);
  if (has_target_) ForwardTarget(pass, values, work, kept);
  if (!output_) return {};
  return output_->Loss(Context(pass, pass.target, work.target),
                       TargetStream(values.target_RD, work).operand_RD, pass.labels, loss,
                       dhidden_RD, token_nll);
}

void Chunk::Encode(const MicrobatchPass& pass, const Flow& values, ChunkWorkspace& work,
                   Kept& kept) const {
  const StackPass stack{.context = Context(pass, pass.source, work.source), .work = &work.source};
  const Stream stream = SourceStream(values.source_RD, work);
  if (source_embedding_) {
    source_embedding_->Forward(stack.context, stream, kept.source_mask);
    if (source_norm_) source_norm_->ForwardStream(stack.context, stream, kept.source_norm);
  } else {
    FillOperand(stack.context, stream);
  }
  encoder_.Forward(stack, stream, kept.encoder, work.encoder);
  if (encoder_end_) encoder_end_->Forward(stack.context, stream, kept.encoder_end);
  if (ends_encoder_) ops_.Copy(pass.source.count, stream.operand_RD, values.memory_RD);
}

void Chunk::ForwardTarget(const MicrobatchPass& pass, const Flow& values, ChunkWorkspace& work,
                          Kept& kept) const {
  const Memory memory{.rows = &pass.source, .value_RD = values.memory_RD, .gradient_RD = {}};
  const StackPass stack{.context = Context(pass, pass.target, work.target),
                        .work = &work.target,
                        .memory = &memory,
                        .memory_work = &work.source};
  const Stream stream = TargetStream(values.target_RD, work);
  EnterDecoder(stack.context, stream, kept);
  decoder_.Forward(stack, stream, kept.decoder, work.decoder);
  LeaveDecoder(stack.context, stream, kept);
}

void Chunk::EnterDecoder(const PassContext& pass, const Stream& stream, Kept& kept) const {
  if (target_embedding_) {
    target_embedding_->Forward(pass, stream, kept.target_mask);
    if (target_norm_) target_norm_->ForwardStream(pass, stream, kept.target_norm);
  } else {
    FillOperand(pass, stream);
  }
}

void Chunk::LeaveDecoder(const PassContext& pass, const Stream& stream, Kept& kept) const {
  if (decoder_end_) decoder_end_->Forward(pass, stream, kept.decoder_end);
}

void Chunk::Backward(const MicrobatchPass& pass, Flow& gradients, const at::Tensor& memory_RD,
                     ChunkWorkspace& work, Kept& kept) const {
  if (ends_decoder_ && reads_memory_) gradients.memory_RD.zero_();
  if (has_target_) BackwardTarget(pass, gradients, memory_RD, work, kept);
  if (ends_encoder_) gradients.source_RD = gradients.memory_RD;
  if (has_source_) BackwardSource(pass, gradients.source_RD, work, kept);
}

void Chunk::BackwardTarget(const MicrobatchPass& pass, const Flow& gradients,
                           const at::Tensor& memory_RD, ChunkWorkspace& work, Kept& kept) const {
  const Memory memory{
      .rows = &pass.source, .value_RD = memory_RD, .gradient_RD = gradients.memory_RD};
  const StackPass stack{.context = Context(pass, pass.target, work.target),
                        .work = &work.target,
                        .memory = &memory,
                        .memory_work = &work.source,
                        .layer_done = pass.layer_done,
                        .first_layer = first_decoder_};
  if (decoder_end_) decoder_end_->Backward(stack.context, gradients.target_RD, kept.decoder_end);
  decoder_.Backward(stack, gradients.target_RD, kept.decoder, work.decoder);
  if (target_embedding_) {
    if (target_norm_) {
      target_norm_->BackwardInPlace(stack.context, gradients.target_RD, kept.target_norm);
    }
    target_embedding_->Backward(stack.context, gradients.target_RD, kept.target_mask);
    if (pass.layer_done != nullptr) (*pass.layer_done)(target_embedding_at_);
  }
}

void Chunk::BackwardSource(const MicrobatchPass& pass, const at::Tensor& dsource_RD,
                           ChunkWorkspace& work, Kept& kept) const {
  const StackPass stack{.context = Context(pass, pass.source, work.source),
                        .work = &work.source,
                        .layer_done = pass.layer_done,
                        .first_layer = first_encoder_};
  if (encoder_end_) encoder_end_->Backward(stack.context, dsource_RD, kept.encoder_end);
  encoder_.Backward(stack, dsource_RD, kept.encoder, work.encoder);
  if (source_embedding_) {
    if (source_norm_) source_norm_->BackwardInPlace(stack.context, dsource_RD, kept.source_norm);
    source_embedding_->Backward(stack.context, dsource_RD, kept.source_mask);
    if (pass.layer_done != nullptr) (*pass.layer_done)(source_embedding_at_);
  }
}

void Chunk::Refresh() {
  encoder_.Refresh();
  decoder_.Refresh();
  if (output_) output_->Refresh(ops_);
}

}  // namespace deepnet

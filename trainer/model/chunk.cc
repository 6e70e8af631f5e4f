#include "trainer/model/chunk.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "parallel/base/check.h"
#include "trainer/model/architecture.h"
#include "trainer/model/roles.h"

namespace deepnet {
namespace {

// The layers of one kind in a chunk.
struct Part {
  int first = 0;  // index of the first one in its stack
  int layer = 0;  // position of the first one in the chain
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

// True if the last layer of `kind` is in `span`. The output layer comes after all of them.
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

// The highest level of recomputation that uses a Workspace; FULL has buffers of its own.
Recompute HighestLevel(const std::vector<Chunk>& chunks, bool decoder_only) {
  Recompute highest = NONE;
  for (const Chunk& chunk : chunks) {
    const Recompute level = chunk.spec().recompute.level;
    if (level == FULL || (decoder_only && chunk.decoder().size() == 0)) continue;
    highest = std::max(highest, level);
  }
  return highest;
}

}  // namespace

Chunk::Chunk(const ModelSpec& spec, const MicrobatchSpec& capacity, const Inventory& whole,
             const ChunkSpec& chunk, Ops& ops, const Parameters& parameters)
    : spec_(chunk),
      inputs_(BoundaryBefore(whole, chunk.layers.first)),
      outputs_(BoundaryBefore(whole, chunk.layers.end)),
      has_source_(whole.layers[chunk.layers.first].kind < LayerKind::kTargetEmbedding),
      has_target_(whole.layers[chunk.layers.end - 1].kind >= LayerKind::kTargetEmbedding),
      ends_encoder_(Ends(whole, chunk.layers, LayerKind::kEncoder)),
      ends_decoder_(Ends(whole, chunk.layers, LayerKind::kDecoder)),
      reads_encoder_output_(HasMemory(spec) && Has(whole, chunk.layers, LayerKind::kDecoder)),
      first_encoder_(FirstOf(whole, chunk.layers, LayerKind::kEncoder)),
      first_decoder_(FirstOf(whole, chunk.layers, LayerKind::kDecoder)),
      source_embedding_at_(FirstOf(whole, chunk.layers, LayerKind::kSourceEmbedding)),
      target_embedding_at_(FirstOf(whole, chunk.layers, LayerKind::kTargetEmbedding)),
      source_capacity_(capacity.max_source_tokens()),
      target_capacity_(capacity.max_target_tokens()),
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

ResidualStream Chunk::SourceStream(const at::Tensor& value_RD, const ChunkWorkspace& work) const {
  return {value_RD, SameTypes(ops_) ? value_RD : work.source_operand_RD};
}

ResidualStream Chunk::TargetStream(const at::Tensor& value_RD, const ChunkWorkspace& work) const {
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

LossSums Chunk::Forward(const MicrobatchPass& pass, const BoundaryActivations& values,
                        ChunkWorkspace& work, Kept& kept, const LossOptions& loss,
                        const at::Tensor& dhidden_RD, float* token_nll) const {
  if (has_source_) Encode(pass, values, work, kept);
  if (has_target_) ForwardTarget(pass, values, work, kept);
  if (!output_) return {};
  return output_->Loss(Context(pass, pass.target, work.target),
                       TargetStream(values.target_RD, work).operand_RD, pass.labels, loss,
                       dhidden_RD, token_nll);
}

void Chunk::Encode(const MicrobatchPass& pass, const BoundaryActivations& values,
                   ChunkWorkspace& work, Kept& kept) const {
  const StackPass stack{.context = Context(pass, pass.source, work.source), .work = &work.source};
  const ResidualStream stream = SourceStream(values.source_RD, work);
  if (source_embedding_) {
    source_embedding_->Forward(stack.context, stream, kept.source_mask);
    if (source_norm_) source_norm_->ForwardStream(stack.context, stream, kept.source_norm);
  } else {
    FillOperand(stack.context, stream);
  }
  encoder_.Forward(stack, stream, kept.encoder, work.encoder);
  if (encoder_end_) encoder_end_->Forward(stack.context, stream, kept.encoder_end);
  if (ends_encoder_) ops_.Copy(pass.source.count, stream.operand_RD, values.encoder_output_RD);
}

void Chunk::ForwardTarget(const MicrobatchPass& pass, const BoundaryActivations& values,
                          ChunkWorkspace& work, Kept& kept) const {
  const EncoderOutput encoder_output{
      .rows = &pass.source, .value_RD = values.encoder_output_RD, .gradient_RD = {}};
  const StackPass stack{.context = Context(pass, pass.target, work.target),
                        .work = &work.target,
                        .encoder_output = &encoder_output,
                        .source_work = &work.source};
  const ResidualStream stream = TargetStream(values.target_RD, work);
  EnterDecoder(stack.context, stream, kept);
  decoder_.Forward(stack, stream, kept.decoder, work.decoder);
  LeaveDecoder(stack.context, stream, kept);
}

void Chunk::EnterDecoder(const PassContext& pass, const ResidualStream& stream, Kept& kept) const {
  if (target_embedding_) {
    target_embedding_->Forward(pass, stream, kept.target_mask);
    if (target_norm_) target_norm_->ForwardStream(pass, stream, kept.target_norm);
  } else {
    FillOperand(pass, stream);
  }
}

void Chunk::LeaveDecoder(const PassContext& pass, const ResidualStream& stream, Kept& kept) const {
  if (decoder_end_) decoder_end_->Forward(pass, stream, kept.decoder_end);
}

void Chunk::Backward(const MicrobatchPass& pass, BoundaryActivations& gradients,
                     const at::Tensor& encoder_output_RD, ChunkWorkspace& work, Kept& kept) const {
  if (ends_decoder_ && reads_encoder_output_) gradients.encoder_output_RD.zero_();
  if (has_target_) BackwardTarget(pass, gradients, encoder_output_RD, work, kept);
  if (ends_encoder_) gradients.source_RD = gradients.encoder_output_RD;
  if (has_source_) BackwardSource(pass, gradients.source_RD, work, kept);
}

void Chunk::BackwardTarget(const MicrobatchPass& pass, const BoundaryActivations& gradients,
                           const at::Tensor& encoder_output_RD, ChunkWorkspace& work,
                           Kept& kept) const {
  const EncoderOutput encoder_output{.rows = &pass.source,
                                     .value_RD = encoder_output_RD,
                                     .gradient_RD = gradients.encoder_output_RD};
  const StackPass stack{.context = Context(pass, pass.target, work.target),
                        .work = &work.target,
                        .encoder_output = &encoder_output,
                        .source_work = &work.source,
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

Chunk::Kept Chunk::MakeKept(const ChunkWorkspace& work) const {
  ChunkPools empty;
  return MakeKeptFrom(empty, work);
}

Chunk::Kept Chunk::MakeKeptFrom(ChunkPools& pools, const ChunkWorkspace& work) const {
  Kept kept;
  TakeLayers(pools, work, kept);
  if (source_embedding_) kept.source_mask = source_embedding_->MakeMask(ops_, source_capacity_);
  if (target_embedding_) kept.target_mask = target_embedding_->MakeMask(ops_, target_capacity_);
  if (source_norm_) kept.source_norm = source_norm_->MakeState(ops_, source_capacity_);
  if (target_norm_) kept.target_norm = target_norm_->MakeState(ops_, target_capacity_);
  if (encoder_end_) kept.encoder_end = encoder_end_->MakeState(ops_, source_capacity_);
  if (decoder_end_) kept.decoder_end = decoder_end_->MakeState(ops_, target_capacity_);
  return kept;
}

void Chunk::GiveLayers(ChunkPools& pools, Kept& kept) const {
  encoder_.GiveKept(pools.encoder, kept.encoder);
  decoder_.GiveKept(pools.decoder, kept.decoder);
}

void Chunk::TakeLayers(ChunkPools& pools, const ChunkWorkspace& work, Kept& kept) const {
  kept.encoder = encoder_.TakeKept(pools.encoder, work.source);
  kept.decoder = decoder_.TakeKept(pools.decoder, work.target, &work.source);
}

Chunk::Kept Chunk::MakeKeptForInference() const {
  return {.encoder = encoder_.MakeKeptForInference(), .decoder = decoder_.MakeKeptForInference()};
}

ChunkWorkspace MakeChunkWorkspace(const ModelSpec& spec, const MicrobatchSpec& capacity,
                                  const Ops& ops, const std::vector<Chunk>& chunks) {
  const int64_t s = capacity.max_source_tokens(), t = capacity.max_target_tokens();
  const auto any = [&](const auto& has) { return std::any_of(chunks.begin(), chunks.end(), has); };
  const bool decodes = any([](const Chunk& chunk) { return chunk.decoder().size() > 0; });
  const bool encodes = any([](const Chunk& chunk) { return chunk.encoder().size() > 0; });
  // Decoder layers work on the rows of the encoder's output too, which are the source's.
  ChunkWorkspace work{.source = Workspace(spec, ops, encodes || decodes ? s : 0,
                                          HighestLevel(chunks, /*decoder_only=*/false)),
                      .target = Workspace(spec, ops, decodes ? t : 0, HighestLevel(chunks, true))};
  if (!SameTypes(ops)) {
    work.source_operand_RD = at::zeros({s, spec.d_model()}, ops.OperandOptions());
    if (any([](const Chunk& chunk) { return chunk.has_target(); }))
      work.target_operand_RD = at::zeros({t, spec.d_model()}, ops.OperandOptions());
  }
  for (const Chunk& chunk : chunks) {
    chunk.encoder().Prepare(work.encoder);
    chunk.decoder().Prepare(work.decoder);
  }
  return work;
}

// --- incremental decoding ---

void Chunk::FillCrossCaches(const PackedRows& source, const at::Tensor& encoder_output_RD,
                            std::span<const at::Tensor> kv_R2D) const {
  const PassContext pass{.ops = &ops_, .rows = &source, .keep = false};
  const EncoderOutput encoder_output{
      .rows = &source, .value_RD = encoder_output_RD, .gradient_RD = {}};
  for (int i = 0; i < decoder_.size(); ++i)
    decoder_.layers()[i].FillCache(pass, encoder_output, kv_R2D[i]);
}

void Chunk::DecodeStep(const PackedRows& rows, int64_t step, const BoundaryActivations& values,
                       const DecodeCaches& caches, ChunkWorkspace& work, Kept& kept,
                       const at::Tensor& logits_RV) const {
  const PassContext pass{
      .ops = &ops_, .rows = &rows, .step = step, .keep = false, .second_RD = work.target.second_RD};
  const ResidualStream stream = TargetStream(values.target_RD, work);
  std::vector<DecoderLayer::Saved>& saved = kept.decoder.saved;
  EnterDecoder(pass, stream, kept);
  for (int i = 0; i < decoder_.size(); ++i) {
    decoder_.BeforeLayer(pass, i, stream, kept.decoder);
    decoder_.layers()[i].Step(pass, stream, work.target, saved[i % saved.size()], caches.self[i],
                              caches.first_row, caches.self_index, caches.cross[i],
                              caches.cross_index);
    decoder_.AfterLayer(pass, i, stream, kept.decoder);
  }
  LeaveDecoder(pass, stream, kept);
  if (output_) output_->Logits(pass, stream.operand_RD, logits_RV);
}

}  // namespace deepnet

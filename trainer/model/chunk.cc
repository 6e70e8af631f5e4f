#include "trainer/model/chunk.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "parallel/base/check.h"

namespace deepnet {
namespace {

// How many layers of `kind` the chunk has, and the index of the first within its stack.
struct Part {
  int first = 0;
  int count = 0;
};

Part PartOf(const Inventory& whole, const LayerSpan& span, LayerKind kind) {
  Part part;
  for (int l = span.first; l < span.end; ++l) {
    if (whole.layers[l].kind != kind) continue;
    if (part.count++ == 0) part.first = whole.layers[l].index;
  }
  return part;
}

bool Has(const Inventory& whole, const LayerSpan& span, LayerKind kind) {
  return PartOf(whole, span, kind).count > 0;
}

// Whether the last layer of `kind` is in `span`.
bool Ends(const Inventory& whole, const LayerSpan& span, LayerKind kind, int layers) {
  const Part part = PartOf(whole, span, kind);
  return part.count > 0 && part.first + part.count == layers;
}

template <typename StackT>
StackT MakeStack(const ModelSpec& spec, const MicrobatchSpec& capacity, const Inventory& whole,
                 const ChunkSpec& chunk, LayerKind kind, Ops& ops, const Parameters& parameters) {
  const Part part = PartOf(whole, chunk.layers, kind);
  return StackT(spec, capacity, chunk.recompute, ops, parameters, part.first, part.count);
}

bool SameTypes(const Ops& ops) { return ops.Operand().dtype() == ops.Stream().dtype(); }

// The rows of a stream that did not come from a layer of this chunk, in operand type.
void FillOperand(const PassContext& pass, const Stream& stream) {
  if (stream.operand_RD.is_same(stream.value_RD)) return;
  pass.ops->Copy(pass.rows->count, stream.value_RD, stream.operand_RD);
}

// The highest level of recomputation that works in a Workspace; LAYER has buffers of its own.
Recompute HighestLevel(const std::vector<Chunk>& chunks, bool decoder_only) {
  Recompute highest = NONE;
  for (const Chunk& chunk : chunks) {
    const Recompute level = chunk.spec().recompute.level;
    if (level == LAYER || (decoder_only && chunk.decoder().size() == 0)) continue;
    highest = std::max(highest, level);
  }
  return highest;
}

}  // namespace

PackedRows RowsOf(const PackedSide& side, const std::vector<uint32_t>& pairs, int num_sentences) {
  return {.count = side.NumTokens(),
          .num_sentences = num_sentences,
          .tokens = side.tokens.data(),
          .positions = side.positions.data(),
          .pairs = pairs.data(),
          .offsets = side.offsets.data()};
}

MicrobatchPass MakePass(const Microbatch& microbatch, uint64_t seed, int64_t step, bool training) {
  return {.source = RowsOf(microbatch.source, microbatch.source_pairs, microbatch.num_sentences),
          .target = RowsOf(microbatch.target, microbatch.target_pairs, microbatch.num_sentences),
          .labels = microbatch.labels.data(),
          .seed = seed,
          .step = step,
          .training = training};
}

CutTensors CutBefore(const Inventory& whole, int position) {
  CutTensors cut;
  if (position == static_cast<int>(whole.layers.size())) return cut;
  const Layer& behind = whole.layers[position];
  for (const BoundaryTensor& tensor : behind.inputs) {
    if (tensor.name != kHidden) {
      cut.memory = true;
    } else if (behind.kind == LayerKind::kEncoder) {
      cut.source = true;
    } else {
      cut.target = true;
    }
  }
  return cut;
}

Chunk::Chunk(const ModelSpec& spec, const MicrobatchSpec& capacity, const Inventory& whole,
             const ChunkSpec& chunk, Ops& ops, const Parameters& parameters)
    : spec_(chunk),
      inputs_(CutBefore(whole, chunk.layers.first)),
      outputs_(CutBefore(whole, chunk.layers.end)),
      has_source_(whole.layers[chunk.layers.first].position <= spec.encoder_layers()),
      has_target_(whole.layers[chunk.layers.end - 1].position > spec.encoder_layers()),
      ends_encoder_(Ends(whole, chunk.layers, LayerKind::kEncoder, spec.encoder_layers())),
      ends_decoder_(Ends(whole, chunk.layers, LayerKind::kDecoder, spec.decoder_layers())),
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
  if (spec.residual() != PRE_LN) return;
  if (ends_encoder_) encoder_norm_.emplace(spec, parameters, "encoder.layer_norm");
  if (ends_decoder_) decoder_norm_.emplace(spec, parameters, "decoder.layer_norm");
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
  if (encoder_norm_) kept.encoder_norm = encoder_norm_->MakeState(ops_, source_capacity_);
  if (decoder_norm_) kept.decoder_norm = decoder_norm_->MakeState(ops_, target_capacity_);
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

Stream Chunk::SourceStream(const at::Tensor& value_RD, const ChunkWorkspace& work) const {
  return {value_RD, SameTypes(ops_) ? value_RD : work.source_operand_RD};
}

Stream Chunk::TargetStream(const at::Tensor& value_RD, const ChunkWorkspace& work) const {
  return {value_RD, SameTypes(ops_) ? value_RD : work.target_operand_RD};
}

PassContext Chunk::Context(const MicrobatchPass& pass, const PackedRows& rows) const {
  return {.ops = &ops_,
          .rows = &rows,
          .seed = pass.seed,
          .step = pass.step,
          .keep = pass.training,
          .deferred = pass.deferred};
}

LossSums Chunk::Forward(const MicrobatchPass& pass, const Flow& values, ChunkWorkspace& work,
                        Kept& kept, const LossOptions& loss, const at::Tensor& dhidden_RD,
                        float* token_nll) const {
  if (has_source_) Encode(pass, values, work, kept);
  if (has_target_) ForwardTarget(pass, values, work, kept);
  if (!output_) return {};
  return output_->Loss(Context(pass, pass.target), TargetStream(values.target_RD, work).operand_RD,
                       pass.labels, loss, dhidden_RD, token_nll);
}

void Chunk::Encode(const MicrobatchPass& pass, const Flow& values, ChunkWorkspace& work,
                   Kept& kept) const {
  const StackPass stack{.context = Context(pass, pass.source), .work = &work.source};
  const Stream stream = SourceStream(values.source_RD, work);
  if (source_embedding_) {
    source_embedding_->Forward(stack.context, stream, kept.source_mask);
  } else {
    FillOperand(stack.context, stream);
  }
  encoder_.Forward(stack, stream, kept.encoder, work.encoder);
  if (encoder_norm_) encoder_norm_->Forward(stack.context, stream, kept.encoder_norm);
  if (ends_encoder_) ops_.Copy(pass.source.count, stream.operand_RD, values.memory_RD);
}

void Chunk::ForwardTarget(const MicrobatchPass& pass, const Flow& values, ChunkWorkspace& work,
                          Kept& kept) const {
  const Memory memory{.rows = &pass.source, .value_RD = values.memory_RD, .gradient_RD = {}};
  const StackPass stack{.context = Context(pass, pass.target),
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
  } else {
    FillOperand(pass, stream);
  }
}

void Chunk::LeaveDecoder(const PassContext& pass, const Stream& stream, Kept& kept) const {
  if (decoder_norm_) decoder_norm_->Forward(pass, stream, kept.decoder_norm);
}

void Chunk::FillMemoryCaches(const PackedRows& source, const at::Tensor& memory_RD,
                             std::span<const at::Tensor> kv_R2D) const {
  const PassContext pass{.ops = &ops_, .rows = &source, .keep = false};
  const Memory memory{.rows = &source, .value_RD = memory_RD, .gradient_RD = {}};
  for (int i = 0; i < decoder_.size(); ++i) decoder_.layers()[i].FillCache(pass, memory, kv_R2D[i]);
}

void Chunk::DecodeStep(const PackedRows& rows, const Flow& values, const DecodeCaches& caches,
                       ChunkWorkspace& work, Kept& kept, const at::Tensor& logits_RV) const {
  const PassContext pass{.ops = &ops_, .rows = &rows, .keep = false};
  const Stream stream = TargetStream(values.target_RD, work);
  std::vector<DecoderLayer::Saved>& saved = kept.decoder.saved;
  EnterDecoder(pass, stream, kept);
  for (int i = 0; i < decoder_.size(); ++i) {
    decoder_.layers()[i].Step(pass, stream, work.target, saved[i % saved.size()], caches.self[i],
                              caches.first_row, caches.self_index, caches.memory[i],
                              caches.memory_index);
  }
  LeaveDecoder(pass, stream, kept);
  if (output_) output_->Logits(pass, stream.operand_RD, logits_RV);
}

void Chunk::Backward(const MicrobatchPass& pass, Flow& gradients, const at::Tensor& memory_RD,
                     ChunkWorkspace& work, Kept& kept) const {
  if (ends_decoder_) gradients.memory_RD.zero_();
  if (has_target_) BackwardTarget(pass, gradients, memory_RD, work, kept);
  if (ends_encoder_) gradients.source_RD = gradients.memory_RD;
  if (has_source_) BackwardSource(pass, gradients.source_RD, work, kept);
}

void Chunk::BackwardTarget(const MicrobatchPass& pass, const Flow& gradients,
                           const at::Tensor& memory_RD, ChunkWorkspace& work, Kept& kept) const {
  const Memory memory{
      .rows = &pass.source, .value_RD = memory_RD, .gradient_RD = gradients.memory_RD};
  const StackPass stack{.context = Context(pass, pass.target),
                        .work = &work.target,
                        .memory = &memory,
                        .memory_work = &work.source};
  if (decoder_norm_) decoder_norm_->Backward(stack.context, gradients.target_RD, kept.decoder_norm);
  decoder_.Backward(stack, gradients.target_RD, kept.decoder, work.decoder);
  if (target_embedding_) {
    target_embedding_->Backward(stack.context, gradients.target_RD, kept.target_mask);
  }
}

void Chunk::BackwardSource(const MicrobatchPass& pass, const at::Tensor& dsource_RD,
                           ChunkWorkspace& work, Kept& kept) const {
  const StackPass stack{.context = Context(pass, pass.source), .work = &work.source};
  if (encoder_norm_) encoder_norm_->Backward(stack.context, dsource_RD, kept.encoder_norm);
  encoder_.Backward(stack, dsource_RD, kept.encoder, work.encoder);
  if (source_embedding_) source_embedding_->Backward(stack.context, dsource_RD, kept.source_mask);
}

void Chunk::Refresh() {
  encoder_.Refresh();
  decoder_.Refresh();
  if (output_) output_->Refresh(ops_);
}

ChunkWorkspace MakeChunkWorkspace(const ModelSpec& spec, const MicrobatchSpec& capacity,
                                  const Ops& ops, const std::vector<Chunk>& chunks) {
  const int64_t s = capacity.source_tokens(), t = capacity.target_tokens();
  const auto any = [&](const auto& has) { return std::any_of(chunks.begin(), chunks.end(), has); };
  const bool decodes = any([](const Chunk& chunk) { return chunk.decoder().size() > 0; });
  const bool encodes = any([](const Chunk& chunk) { return chunk.encoder().size() > 0; });
  // Decoder layers work on the rows of the memory too, which are the source's.
  ChunkWorkspace work{.source = Workspace(spec, ops, encodes || decodes ? s : 0,
                                          HighestLevel(chunks, /*decoder_only=*/false)),
                      .target = Workspace(spec, ops, decodes ? t : 0, HighestLevel(chunks, true))};
  if (!SameTypes(ops)) {
    work.source_operand_RD = at::zeros({s, spec.width()}, ops.Operand());
    if (any([](const Chunk& chunk) { return chunk.has_target(); }))
      work.target_operand_RD = at::zeros({t, spec.width()}, ops.Operand());
  }
  for (const Chunk& chunk : chunks) {
    chunk.encoder().Prepare(work.encoder);
    chunk.decoder().Prepare(work.decoder);
  }
  return work;
}

}  // namespace deepnet

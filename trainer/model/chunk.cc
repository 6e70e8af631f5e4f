#include "trainer/model/chunk.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "parallel/base/check.h"
#include "trainer/model/architecture.h"

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
      reads_encoder_output_(IsEncoderDecoder(spec) &&
                            Has(whole, chunk.layers, LayerKind::kDecoder)),
      ops_(ops),
      source_(MakeSide(spec, capacity, whole, parameters, /*source=*/true)),
      target_(MakeSide(spec, capacity, whole, parameters, /*source=*/false)) {
  DEEPNET_CHECK(chunk.layers.NumLayers() > 0);
  if (Has(whole, chunk.layers, LayerKind::kOutput)) output_.emplace(spec, ops, parameters);
}

Chunk::SideLayers Chunk::MakeSide(const ModelSpec& spec, const MicrobatchSpec& capacity,
                                  const Inventory& whole, const Parameters& parameters,
                                  bool source) const {
  const int stack = source ? 0 : LabelledStack(spec);
  const LayerKind use = source ? LayerKind::kSourceEmbedding : LayerKind::kTargetEmbedding;
  const Part embedding = PartOf(whole, spec_.layers, use);
  const Part layers =
      PartOf(whole, spec_.layers, source ? LayerKind::kEncoder : LayerKind::kDecoder);
  SideLayers side{.capacity = source ? capacity.max_source_tokens() : capacity.max_target_tokens(),
                  .embedding_at = embedding.layer,
                  .first_layer = layers.layer,
                  .layers = LayerStack(spec, capacity, spec_.recompute, ops_, parameters, stack,
                                       layers.first, layers.count)};
  if (embedding.count > 0) {
    side.embedding.emplace(spec, ops_, parameters, use);
    if (HasEmbeddingNorm(spec))
      side.norm.emplace(spec, parameters, StackName(stack) + kEmbeddingNorm);
  }
  if (EndOf(spec) != StackEnd::kNothing && (source ? ends_encoder_ : ends_decoder_)) {
    side.end.emplace(spec, parameters, stack);
  }
  return side;
}

ResidualStream Chunk::Stream(const at::Tensor& value_RD, const SideWorkspace& work) const {
  return {value_RD, SameTypes(ops_) ? value_RD : work.operand_RD};
}

StackPass Chunk::Context(const MicrobatchPass& pass, const PackedRows& rows, const SideLayers& side,
                         Workspace& work) const {
  return {
      .context = {.ops = &ops_, .rows = &rows, .microbatch = &pass, .second_RD = work.second_RD},
      .work = &work,
      .first_layer = side.first_layer};
}

void Chunk::Forward(const MicrobatchPass& pass, const BoundaryActivations& values,
                    ChunkWorkspace& work, Kept& kept, const LossOptions& loss,
                    const at::Tensor& dhidden_RD, const LossResults& results) const {
  if (has_source_) Encode(pass, values, work, kept);
  if (!has_target_) return;
  const EncoderOutput encoder_output{.rows = &pass.rows.source,
                                     .value_RD = values.encoder_output_RD};
  StackPass stack = Context(pass, pass.rows.target, target_, work.target.layers);
  stack.context.encoder_output = &encoder_output;
  const ResidualStream stream = Stream(values.target_RD, work.target);
  ForwardSide(target_, stack, stream, work.target, kept.target);
  if (!output_) return;
  if (pass.layer_begins != nullptr) (*pass.layer_begins)(spec_.layers.end - 1);
  output_->Loss(stack.context, stream.operand_RD, pass.rows.labels, loss, dhidden_RD, results);
}

void Chunk::Encode(const MicrobatchPass& pass, const BoundaryActivations& values,
                   ChunkWorkspace& work, Kept& kept) const {
  const ResidualStream stream = Stream(values.source_RD, work.source);
  ForwardSide(source_, Context(pass, pass.rows.source, source_, work.source.layers), stream,
              work.source, kept.source);
  if (ends_encoder_) ops_.Copy(pass.rows.source.count, stream.operand_RD, values.encoder_output_RD);
}

void Chunk::Enter(const SideLayers& side, const PassContext& pass, const ResidualStream& stream,
                  Kept::SideState& kept) const {
  if (!side.embedding) return FillOperand(pass, stream);
  side.embedding->Forward(pass, stream, kept.mask);
  if (side.norm) side.norm->ForwardStream(pass, stream, kept.norm);
}

void Chunk::ForwardSide(const SideLayers& side, const StackPass& pass, const ResidualStream& stream,
                        SideWorkspace& work, Kept::SideState& kept) const {
  const LayerBegins* const begins = pass.context.microbatch->layer_begins;
  if (side.embedding && begins != nullptr) (*begins)(side.embedding_at);
  Enter(side, pass.context, stream, kept);
  side.layers.Forward(pass, stream, kept.layers, work.segment);
  if (side.end) side.end->Forward(pass.context, stream, kept.end);
}

void Chunk::Backward(const MicrobatchPass& pass, BoundaryActivations& gradients,
                     const at::Tensor& encoder_output_RD, ChunkWorkspace& work, Kept& kept) const {
  if (ends_decoder_ && reads_encoder_output_) ops_.Zero(gradients.encoder_output_RD);
  if (has_target_) {
    const EncoderOutput encoder_output{.rows = &pass.rows.source,
                                       .value_RD = encoder_output_RD,
                                       .gradient_RD = gradients.encoder_output_RD,
                                       .work = &work.source.layers};
    StackPass stack = Context(pass, pass.rows.target, target_, work.target.layers);
    stack.context.encoder_output = &encoder_output;
    BackwardSide(target_, stack, gradients.target_RD, work.target, kept.target);
  }
  if (ends_encoder_) gradients.source_RD = gradients.encoder_output_RD;
  if (!has_source_) return;
  BackwardSide(source_, Context(pass, pass.rows.source, source_, work.source.layers),
               gradients.source_RD, work.source, kept.source);
}

void Chunk::BackwardSide(const SideLayers& side, const StackPass& pass,
                         const at::Tensor& dstream_RD, SideWorkspace& work,
                         Kept::SideState& kept) const {
  if (side.end) side.end->Backward(pass.context, dstream_RD, kept.end);
  side.layers.Backward(pass, dstream_RD, kept.layers, work.segment);
  if (!side.embedding) return;
  if (side.norm) side.norm->BackwardInPlace(pass.context, dstream_RD, kept.norm);
  side.embedding->Backward(pass.context, dstream_RD, kept.mask);
  const LayerDone* const done = pass.context.microbatch->layer_done;
  if (done != nullptr) (*done)(side.embedding_at);
}

void Chunk::Refresh() {
  source_.layers.Refresh();
  target_.layers.Refresh();
  if (output_) output_->Refresh(ops_);
}

Chunk::Kept Chunk::MakeKept(ChunkPools& pools, const ChunkWorkspace& work) const {
  Kept kept;
  TakeLayers(pools, work, kept);
  const auto add = [&](const SideLayers& side, Kept::SideState& of_side) {
    if (side.embedding) of_side.mask = side.embedding->MakeMask(ops_, side.capacity);
    if (side.norm) of_side.norm = side.norm->MakeState(ops_, side.capacity);
    if (side.end) of_side.end = side.end->MakeState(ops_, side.capacity);
  };
  add(source_, kept.source);
  add(target_, kept.target);
  return kept;
}

void Chunk::GiveLayers(ChunkPools& pools, Kept& kept) const {
  source_.layers.GiveKept(pools.source, kept.source.layers);
  target_.layers.GiveKept(pools.target, kept.target.layers);
}

void Chunk::TakeLayers(ChunkPools& pools, const ChunkWorkspace& work, Kept& kept) const {
  const Workspace& source_work = work.source.layers;
  kept.source.layers = source_.layers.TakeKept(pools.source, source_work, source_work);
  kept.target.layers = target_.layers.TakeKept(pools.target, work.target.layers, source_work);
}

Chunk::Kept Chunk::MakeKeptForInference() const {
  return {.source = {.layers = source_.layers.MakeKeptForInference()},
          .target = {.layers = target_.layers.MakeKeptForInference()}};
}

ChunkWorkspace MakeChunkWorkspace(const ModelSpec& spec, const MicrobatchSpec& capacity,
                                  const Ops& ops, const std::vector<Chunk>& chunks) {
  const int64_t s = capacity.max_source_tokens(), t = capacity.max_target_tokens();
  const auto any = [&](const auto& has) { return std::any_of(chunks.begin(), chunks.end(), has); };
  const bool decodes = any([](const Chunk& chunk) { return chunk.decoder().size() > 0; });
  const bool encodes = any([](const Chunk& chunk) { return chunk.encoder().size() > 0; });
  // Decoder layers work on the rows of the encoder's output too, which are the source's.
  ChunkWorkspace work{
      .source = {.layers = Workspace(spec, ops, encodes || decodes ? s : 0,
                                     HighestLevel(chunks, /*decoder_only=*/false))},
      .target = {.layers = Workspace(spec, ops, decodes ? t : 0, HighestLevel(chunks, true))}};
  if (!SameTypes(ops)) {
    work.source.operand_RD = at::zeros({s, spec.d_model()}, ops.OperandOptions());
    if (any([](const Chunk& chunk) { return chunk.has_target(); }))
      work.target.operand_RD = at::zeros({t, spec.d_model()}, ops.OperandOptions());
  }
  for (const Chunk& chunk : chunks) {
    chunk.encoder().Prepare(work.source.segment);
    chunk.decoder().Prepare(work.target.segment);
  }
  return work;
}

// --- incremental decoding ---

void Chunk::FillCrossCaches(const PackedRows& source, const at::Tensor& encoder_output_RD,
                            std::span<const at::Tensor> kv_R2D) const {
  const EncoderOutput encoder_output{.rows = &source, .value_RD = encoder_output_RD};
  const MicrobatchPass decoding{};
  const PassContext pass{
      .ops = &ops_, .rows = &source, .encoder_output = &encoder_output, .microbatch = &decoding};
  for (int i = 0; i < decoder().size(); ++i) decoder().layers()[i].FillCache(pass, kv_R2D[i]);
}

void Chunk::DecodeStep(const PackedRows& rows, int64_t step, const BoundaryActivations& values,
                       const DecodeCaches& caches, ChunkWorkspace& work, Kept& kept,
                       const at::Tensor& logits_RV) const {
  Workspace& buffers = work.target.layers;
  const MicrobatchPass decoding{.step = step};
  const PassContext pass{
      .ops = &ops_, .rows = &rows, .microbatch = &decoding, .second_RD = buffers.second_RD};
  const ResidualStream stream = Stream(values.target_RD, work.target);
  LayerStack::Kept& layers = kept.target.layers;
  Enter(target_, pass, stream, kept.target);
  for (int i = 0; i < decoder().size(); ++i) {
    decoder().BeforeLayer(pass, i, stream, layers);
    decoder().layers()[i].Step(pass, stream, buffers, layers.saved[i % layers.saved.size()],
                               {caches.self[i], caches.self_index, caches.first_row},
                               {caches.cross[i], caches.cross_index});
    decoder().AfterLayer(pass, i, stream, layers);
  }
  if (target_.end) target_.end->Forward(pass, stream, kept.target.end);
  if (output_ && logits_RV.defined()) output_->Logits(pass, stream.operand_RD, logits_RV);
}

}  // namespace deepnet

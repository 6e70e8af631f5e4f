#include "trainer/model/chunk.h"

#include <algorithm>

#include "parallel/base/check.h"
#include "trainer/kernels/aten.h"
#include "trainer/model/architecture.h"

namespace deepnet {
namespace {

// Returns the layers of one kind in a chunk.
LayerRun RunOf(const Inventory& whole, const LayerSpan& span, LayerKind kind) {
  LayerRun run;
  for (int l = span.first; l < span.end; ++l) {
    if (whole.layers[l].kind != kind) continue;
    if (run.count++ == 0) run = {.first = whole.layers[l].index, .count = 1, .position = l};
  }
  return run;
}

bool Has(const Inventory& whole, const LayerSpan& span, LayerKind kind) {
  return RunOf(whole, span, kind).count > 0;
}

// Returns whether the last layer of `kind` is in `span`. The output layer comes after all of them.
bool Ends(const Inventory& whole, const LayerSpan& span, LayerKind kind) {
  const LayerRun run = RunOf(whole, span, kind);
  return run.count > 0 && whole.layers[run.position + run.count].kind != kind;
}

// Returns the highest level of recomputation that uses a Workspace; FULL has buffers of its own.
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

Chunk::Chunk(const BuildContext& build, const Inventory& whole, const ChunkSpec& chunk)
    : spec_(chunk),
      inputs_(BoundaryBefore(whole, chunk.layers.first)),
      outputs_(BoundaryBefore(whole, chunk.layers.end)),
      has_source_(whole.layers[chunk.layers.first].kind < LayerKind::kTargetEmbedding),
      has_target_(whole.layers[chunk.layers.end - 1].kind >= LayerKind::kTargetEmbedding),
      ends_encoder_(Ends(whole, chunk.layers, LayerKind::kEncoder)),
      ends_decoder_(Ends(whole, chunk.layers, LayerKind::kDecoder)),
      reads_encoder_output_(IsEncoderDecoder(build.spec) &&
                            Has(whole, chunk.layers, LayerKind::kDecoder)),
      ops_(build.ops),
      source_(MakeSide(build, whole, /*source=*/true)),
      target_(MakeSide(build, whole, /*source=*/false)) {
  DEEPNET_CHECK(chunk.layers.NumLayers() > 0);
  if (Has(whole, chunk.layers, LayerKind::kOutput)) output_.emplace(build);
}

Chunk::SideLayers Chunk::MakeSide(const BuildContext& build, const Inventory& whole,
                                  bool source) const {
  const LayerKind use = source ? LayerKind::kSourceEmbedding : LayerKind::kTargetEmbedding;
  const LayerRun embedding = RunOf(whole, spec_.layers, use);
  LayerRun run = RunOf(whole, spec_.layers, source ? LayerKind::kEncoder : LayerKind::kDecoder);
  run.stack = source ? 0 : LabelledStack(build.spec);
  const MicrobatchSpec& capacity = build.capacity;
  SideLayers side{.capacity = source ? capacity.max_source_tokens() : capacity.max_target_tokens(),
                  .embedding_at = embedding.position,
                  .layers = LayerStack(build, spec_.recompute, run)};
  if (embedding.count > 0) {
    side.embedding.emplace(build, use);
    if (HasEmbeddingNorm(build.spec)) {
      side.norm.emplace(build, StackName(run.stack) + kEmbeddingNorm);
    }
  }
  if (EndOf(build.spec) != StackEnd::kNothing && (source ? ends_encoder_ : ends_decoder_)) {
    side.end.emplace(build, run.stack);
  }
  return side;
}

ResidualStream Chunk::Stream(const at::Tensor& value_RD, const SideWorkspace& work) const {
  return {value_RD, SameTypes(ops_) ? value_RD : work.operand_RD};
}

PassContext Chunk::Context(const MicrobatchPass& pass, const PackedRows& rows,
                           Workspace& work) const {
  return {
      .ops = &ops_, .rows = &rows, .microbatch = &pass, .work = &work, .second_RD = work.second_RD};
}

void Chunk::Forward(const MicrobatchPass& pass, const BoundaryActivations& values,
                    ChunkWorkspace& work, Kept& kept, const LossArgs& loss) const {
  if (has_source_) Encode(pass, values, work, kept);
  if (!has_target_) return;
  const EncoderOutput encoder_output{.rows = &pass.rows.source,
                                     .value_RD = values.encoder_output_RD};
  PassContext context = Context(pass, pass.rows.target, work.target.layers);
  context.encoder_output = &encoder_output;
  const ResidualStream stream = Stream(values.target_RD, work.target);
  ForwardSide(target_, context, stream, work.target, kept.target);
  if (!output_) return;
  if (pass.layer_begins != nullptr) (*pass.layer_begins)(spec_.layers.end - 1);
  output_->Loss(context, stream.operand_RD, loss);
}

void Chunk::Encode(const MicrobatchPass& pass, const BoundaryActivations& values,
                   ChunkWorkspace& work, Kept& kept) const {
  const ResidualStream stream = Stream(values.source_RD, work.source);
  ForwardSide(source_, Context(pass, pass.rows.source, work.source.layers), stream, work.source,
              kept.source);
  if (ends_encoder_) ops_.Copy(pass.rows.source.count, stream.operand_RD, values.encoder_output_RD);
}

void Chunk::Enter(const SideLayers& side, const PassContext& pass, const ResidualStream& stream,
                  Kept::SideState& kept) const {
  if (!side.embedding) return FillOperand(pass, stream);
  side.embedding->Forward(pass, stream, kept.mask);
  if (side.norm) side.norm->ForwardStream(pass, stream, kept.norm);
}

void Chunk::ForwardSide(const SideLayers& side, const PassContext& pass,
                        const ResidualStream& stream, SideWorkspace& work,
                        Kept::SideState& kept) const {
  const LayerBegins* const begins = pass.microbatch->layer_begins;
  if (side.embedding && begins != nullptr) (*begins)(side.embedding_at);
  Enter(side, pass, stream, kept);
  side.layers.Forward(pass, stream, kept.layers, work.segment);
  if (side.end) side.end->Forward(pass, stream, kept.end);
}

void Chunk::Backward(const MicrobatchPass& pass, BoundaryActivations& gradients,
                     const at::Tensor& encoder_output_RD, ChunkWorkspace& work, Kept& kept) const {
  if (ends_decoder_ && reads_encoder_output_) ops_.Zero(gradients.encoder_output_RD);
  if (has_target_) {
    const EncoderOutput encoder_output{.rows = &pass.rows.source,
                                       .value_RD = encoder_output_RD,
                                       .gradient_RD = gradients.encoder_output_RD,
                                       .work = &work.source.layers};
    PassContext context = Context(pass, pass.rows.target, work.target.layers);
    context.encoder_output = &encoder_output;
    BackwardSide(target_, context, gradients.target_RD, work.target, kept.target);
  }
  if (ends_encoder_) gradients.source_RD = gradients.encoder_output_RD;
  if (!has_source_) return;
  BackwardSide(source_, Context(pass, pass.rows.source, work.source.layers), gradients.source_RD,
               work.source, kept.source);
}

void Chunk::BackwardSide(const SideLayers& side, const PassContext& pass,
                         const at::Tensor& dstream_RD, SideWorkspace& work,
                         Kept::SideState& kept) const {
  if (side.end) side.end->Backward(pass, dstream_RD, kept.end);
  side.layers.Backward(pass, dstream_RD, kept.layers, work.segment);
  if (!side.embedding) return;
  if (side.norm) side.norm->BackwardInPlace(pass, dstream_RD, kept.norm);
  side.embedding->Backward(pass, dstream_RD, kept.mask);
  const LayerDone* const done = pass.microbatch->layer_done;
  if (done != nullptr) (*done)(side.embedding_at);
}

Chunk::Kept Chunk::MakeKept(ChunkPools& pools, const ChunkWorkspace& work) const {
  Kept kept;
  TakeLayers(pools, work, kept);
  const auto add = [&](const SideLayers& side, Kept::SideState& of_side) {
    if (side.embedding) of_side.mask = side.embedding->MaskFor(ops_, side.capacity);
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

ChunkWorkspace MakeChunkWorkspace(const BuildContext& build, const std::vector<Chunk>& chunks) {
  const auto& [spec, capacity, ops, parameters] = build;
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

void Chunk::DecodeStep(const DecodeStepArgs& step, const BoundaryActivations& values,
                       ChunkWorkspace& work, Kept& kept) const {
  const MicrobatchPass decoding{.step = step.step};
  const PassContext pass = Context(decoding, step.rows, work.target.layers);
  const ResidualStream stream = Stream(values.target_RD, work.target);
  LayerStack::Kept& layers = kept.target.layers;
  Enter(target_, pass, stream, kept.target);
  for (int i = 0; i < decoder().size(); ++i) {
    decoder().BeforeLayer(pass, i, stream, layers);
    decoder().layers()[i].Step(pass, stream, layers.saved[i % layers.saved.size()],
                               {step.self[i], step.self_index, step.first_row},
                               {step.cross[i], step.cross_index});
    decoder().AfterLayer(pass, i, stream, layers);
  }
  if (target_.end) target_.end->Forward(pass, stream, kept.target.end);
  if (output_ && step.logits_RV.defined()) output_->Logits(pass, stream.operand_RD, step.logits_RV);
}

}  // namespace deepnet

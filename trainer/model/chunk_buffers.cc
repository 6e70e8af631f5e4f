// What a chunk keeps of a microbatch, and what the chunks of a rank work in.
#include <algorithm>

#include <ATen/ATen.h>

#include "trainer/model/chunk.h"

namespace deepnet {
namespace {

bool SameTypes(const Ops& ops) { return ops.Operand().dtype() == ops.Stream().dtype(); }

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

#include "trainer/model/transformer.h"

#include <utility>

#include "parallel/base/check.h"
#include "trainer/kernels/aten.h"
#include "trainer/model/architecture.h"
#include "trainer/model/describe.h"

namespace deepnet {
namespace {

std::vector<ChunkSpec> OneChunk(const ModelSpec& spec) {
  const int ends = IsEncoderDecoder(spec) ? 3 : 2;  // embeddings and the output layer
  return {{.layers = {0, ends + spec.encoder_layers() + spec.decoder_layers()}}};
}

std::vector<LayerSpan> SpansOf(const std::vector<ChunkSpec>& chunks) {
  std::vector<LayerSpan> spans;
  for (const ChunkSpec& chunk : chunks) spans.push_back(chunk.layers);
  return spans;
}

// A layer of each kind, from whichever chunks have one.
Chunk::Kept KeptForInference(const std::vector<Chunk>& chunks) {
  Chunk::Kept kept;
  for (const Chunk& chunk : chunks) {
    Chunk::Kept own = chunk.MakeKeptForInference();
    if (kept.source.layers.saved.empty()) kept.source = std::move(own.source);
    if (kept.target.layers.saved.empty()) kept.target = std::move(own.target);
  }
  return kept;
}

}  // namespace

Transformer::Transformer(const ModelSpec& spec, const MicrobatchSpec& capacity, Ops& ops,
                         bool trainable)
    : Transformer(spec, capacity, ops, trainable, OneChunk(spec)) {}

Transformer::Transformer(const ModelSpec& spec, const MicrobatchSpec& capacity, Ops& ops,
                         bool trainable, const std::vector<ChunkSpec>& chunks)
    : spec_(spec),
      capacity_(capacity),
      ops_(ops),
      whole_(Describe(spec, capacity)),
      parameters_(Select(whole_, SpansOf(chunks)), ops, trainable),
      chunks_(MakeChunks(chunks)),
      work_(MakeChunkWorkspace(Build(), chunks_)) {}

std::vector<Chunk> Transformer::MakeChunks(const std::vector<ChunkSpec>& specs) {
  std::vector<Chunk> chunks;
  for (const ChunkSpec& spec : specs) chunks.emplace_back(Build(), whole_, spec);
  return chunks;
}

std::unique_ptr<Activations> Transformer::MakeActivations(bool shared) const {
  const std::vector<int64_t> source = {capacity_.max_source_tokens(), spec_.d_model()};
  const std::vector<int64_t> target = {capacity_.max_target_tokens(), spec_.d_model()};
  auto kept = std::make_unique<Activations>();
  if (shared) {
    kept->kept = KeptForInference(chunks_);
  } else {
    DEEPNET_CHECK_EQ(chunks_[0].spec().layers.NumLayers(), OneChunk(spec_)[0].layers.NumLayers());
    ChunkPools empty;
    kept->kept = chunks_[0].MakeKept(empty, work_);
  }
  kept->values = {at::zeros(source, ops_.ResidualOptions()),
                  at::zeros(source, ops_.OperandOptions()),
                  at::zeros(target, ops_.ResidualOptions())};
  if (shared) return kept;
  kept->gradients.encoder_output_RD = at::zeros(source, ops_.ResidualOptions());
  kept->gradients.target_RD = at::zeros(target, ops_.ResidualOptions());
  return kept;
}

}  // namespace deepnet

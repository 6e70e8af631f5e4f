#include "trainer/decode/pipeline_route.h"

#include <set>

#include "parallel/base/check.h"

namespace deepnet {
namespace {

std::vector<int> Without(std::set<int> ranks, int rank) {
  ranks.erase(rank);
  return {ranks.begin(), ranks.end()};
}

}  // namespace

PipelineRoute MakePipelineRoute(const Inventory& whole, std::span<const int> chunk_ends,
                                const Placement& placement, int rank) {
  DEEPNET_CHECK_EQ(static_cast<int>(chunk_ends.size()), placement.NumChunks());
  PipelineRoute route{.rank = rank, .chunks = {}, .rank_of_chunk = placement.rank_of_chunk};
  route.driver = placement.rank_of_chunk.back();
  std::set<int> all, decoders, behind_encoder;
  for (int c = 0, layer = 0; c < placement.NumChunks(); ++c) {
    const int owner = placement.rank_of_chunk[c];
    all.insert(owner);
    if (owner == rank) route.chunks.push_back(c);
    for (; layer < chunk_ends[c]; ++layer) {
      const LayerKind kind = whole.layers[layer].kind;
      if (kind == LayerKind::kEncoder) route.encoder_end = owner;
      if (kind == LayerKind::kDecoder && ReadsMemory(whole.layers[layer])) decoders.insert(owner);
      if (kind >= LayerKind::kTargetEmbedding) behind_encoder.insert(owner);
    }
  }
  route.memory_to = Without(decoders, route.encoder_end);
  route.steppers = Without(behind_encoder, route.driver);
  route.followers = Without(all, route.driver);
  return route;
}

}  // namespace deepnet

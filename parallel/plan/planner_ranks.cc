#include "parallel/plan/planner_ranks.h"

#include <algorithm>
#include <utility>

#include "parallel/plan/dealing.h"

namespace deepnet {
namespace {

constexpr RecomputeChoice kCheapestFirst[] = {{NONE, 1}, {FFN, 1}, {GEMM, 1}};
constexpr int kSegments[] = {1, 2, 4, 8, 16};

bool UsesParameter(const Layer& layer, int parameter) {
  return std::find(layer.parameters.begin(), layer.parameters.end(), parameter) !=
         layer.parameters.end();
}

bool IsInside(int layer, const RankUse& rank) {
  return std::any_of(rank.chunks.begin(), rank.chunks.end(), [&](const ChunkUse& chunk) {
    return layer >= chunk.layers.first && layer < chunk.layers.end;
  });
}

// Embedding matrices are the only tied ones, and only layers that are not blocks use them.
bool IsBlock(const Layer& layer) {
  return layer.kind == LayerKind::kEncoder || layer.kind == LayerKind::kDecoder;
}

std::vector<int> LayersOfTables(const Inventory& inventory) {
  std::vector<int> layers;
  for (int l = 0; l < static_cast<int>(inventory.layers.size()); ++l) {
    if (!IsBlock(inventory.layers[l])) layers.push_back(l);
  }
  return layers;
}

// Bytes of the uses that layers elsewhere have of this rank's embeddings.
int64_t ForeignBytes(const Inventory& inventory, const std::vector<int>& tables,
                     const RankUse& rank) {
  int64_t bytes = 0;
  std::vector<int> counted;
  for (const int here : tables) {
    if (!IsInside(here, rank)) continue;
    for (const int p : inventory.layers[here].parameters) {
      if (std::find(counted.begin(), counted.end(), p) != counted.end()) continue;
      counted.push_back(p);
      const auto elsewhere = std::count_if(tables.begin(), tables.end(), [&](int l) {
        return !IsInside(l, rank) && UsesParameter(inventory.layers[l], p);
      });
      bytes += elsewhere * 4 * inventory.parameters[p].NumElements();
    }
  }
  return bytes;
}

// Buffers of the tree over `folds` virtual replicas on one rank, besides the gradient itself
// (trainer/optim/replica_tree.h): log2 of them.
int PartialSums(int folds) {
  int buffers = 0;
  for (; folds > 1; folds /= 2) ++buffers;
  return buffers;
}

}  // namespace

Cuts MakeCuts(const Request& request, Placement placement, std::vector<int> ends) {
  const std::string type = request.rules.operand_bytes == 2 ? "bfloat16" : "float32";
  Cuts cuts{.placement = std::move(placement), .ends = std::move(ends)};
  cuts.crossings = MakeCrossings(*request.inventory, cuts.ends, cuts.placement, type);
  const int chunks = cuts.placement.NumChunks();
  const auto bytes = [&](int chunk) {
    if (chunk >= chunks) return int64_t{0};
    const Crossing& crossing = cuts.crossings[chunk];
    return BytesOf(crossing.forward) + BytesOf(crossing.backward);
  };
  for (int c = 0, first = 0; c < chunks; first = cuts.ends[c++]) {
    cuts.message_bytes.push_back(bytes(c) + bytes(c + 1));
    cuts.pending.push_back(
        MakePendingMatrices(*request.inventory, {first, cuts.ends[c]}, request.rules));
  }
  return cuts;
}

std::vector<RankUse> MakeRankUses(const Request& request, const Cuts& cuts,
                                  const InFlight& in_flight, int replicas) {
  const int folds = LocalVirtualReplicas(request.virtual_replicas, replicas);
  const std::vector<int> tables = LayersOfTables(*request.inventory);
  std::vector<RankUse> ranks(cuts.placement.NumRanks());
  for (int c = 0, first = 0; c < cuts.placement.NumChunks(); first = cuts.ends[c++]) {
    ranks[cuts.placement.rank_of_chunk[c]].chunks.push_back(
        {.layers = {first, cuts.ends[c]},
         .slots = in_flight.slots[c],
         .message_bytes = cuts.message_bytes[c]});
  }
  for (size_t r = 0; r < ranks.size(); ++r) {
    RankUse& rank = ranks[r];
    rank.deferred_bytes = in_flight.deferred_bytes[r];
    if (!in_flight.moments.empty()) rank.moments = in_flight.moments[r];
    rank.partial_sums = request.one_sum_per_rank ? 0 : PartialSums(folds);
    rank.num_replicas = replicas;
    rank.foreign_bytes = ForeignBytes(*request.inventory, tables, rank);
  }
  return ranks;
}

RecomputeChoice CheapestThatFits(const Request& request, RankUse rank) {
  if (request.recompute.has_value()) return *request.recompute;
  MemoryEstimate memory = EstimateMemory(*request.inventory, rank, request.rules);
  const auto needs = [&](const RecomputeChoice& choice) {
    rank.recompute = choice;
    UpdateRecompute(*request.inventory, rank, request.rules, memory);
    return memory.total();
  };
  for (const RecomputeChoice& choice : kCheapestFirst) {
    if (static_cast<double>(needs(choice)) <= request.memory_bytes) return choice;
  }
  RecomputeChoice least{LAYER, kSegments[0]};
  int64_t least_bytes = needs(least);
  for (const int segment : kSegments) {
    const int64_t bytes = needs({LAYER, segment});
    if (bytes < least_bytes) {
      least = {LAYER, segment};
      least_bytes = bytes;
    }
  }
  // Where few microbatches are in flight GEMM may need less than whole segments do.
  return needs({GEMM, 1}) < least_bytes ? RecomputeChoice{GEMM, 1} : least;
}

}  // namespace deepnet

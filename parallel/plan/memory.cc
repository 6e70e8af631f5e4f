#include "parallel/plan/memory.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "parallel/plan/memory_layers.h"
#include "parallel/plan/memory_library.h"

namespace deepnet {
namespace {

constexpr int64_t kMomentBytes = 8;  // two float32

int64_t StreamBytes(const LayerSizes& s) { return s.rows * s.width * kFloatBytes; }

template <typename Visit>
void ForEachLayer(const Inventory& inventory, const RankUse& rank, const Visit& visit) {
  for (const ChunkUse& chunk : rank.chunks) {
    for (int l = chunk.layers.first; l < chunk.layers.end; ++l) visit(inventory.layers[l]);
  }
}

// The first layer of the whole chain that uses `parameter`: its stage saves it.
int FirstUse(const Inventory& inventory, int parameter) {
  int first = 0;
  for (const Layer& layer : inventory.layers) {
    const std::vector<int>& used = layer.parameters;
    if (std::find(used.begin(), used.end(), parameter) != used.end()) break;
    ++first;
  }
  return first;
}

bool Holds(const RankUse& rank, int layer) {
  return std::any_of(rank.chunks.begin(), rank.chunks.end(), [&](const ChunkUse& chunk) {
    return layer >= chunk.layers.first && layer < chunk.layers.end;
  });
}

// Parameters of the layers: each once for weights and moments, each use for gradients. Only
// embedding matrices have several uses.
void AddParameters(const Inventory& inventory, const RankUse& rank, const MemoryRules& rules,
                   MemoryEstimate& memory) {
  int64_t elements = 0, uses = 0, packed = 0, saved_elsewhere = 0;
  std::vector<int> counted;
  ForEachLayer(inventory, rank, [&](const Layer& layer) {
    for (const int i : layer.parameters) {
      const Parameter& parameter = inventory.parameters[i];
      const int64_t size = parameter.NumElements();
      uses += size;
      if (parameter.shape.size() == 2 && !LooksUp(layer)) packed += size;
      if (parameter.role == Role::kEmbedding) {
        if (std::find(counted.begin(), counted.end(), i) != counted.end()) continue;
        counted.push_back(i);
        if (!Holds(rank, FirstUse(inventory, i))) saved_elsewhere += size;
      }
      elements += size;
    }
  });
  memory.set_weights(elements * kFloatBytes);
  memory.set_working_copies(packed * rules.operand_bytes * rules.num_packed_copies);
  memory.set_gradients(uses * kFloatBytes);
  memory.set_partial_sums(uses * kFloatBytes * rank.partial_sums);
  const int64_t updated = (elements + rank.num_replicas - 1) / rank.num_replicas;
  memory.set_moments(updated * kMomentBytes);
  const int64_t saved = updated - saved_elsewhere / rank.num_replicas;
  if (rules.snapshot) memory.set_snapshot(saved * (kFloatBytes + kMomentBytes));
  if (rules.instruments) memory.set_instruments(saved * kFloatBytes);
  const int64_t received = std::min(kPiecesInFlight * kPieceBytes, uses * kFloatBytes);
  memory.set_communication(received / rank.num_replicas * (rank.num_replicas - 1) +
                           std::min(2 * kPieceBytes, rank.foreign_bytes) / rank.num_replicas);
}

// Each kind of layers has buffers for the moment at which it holds most; what is a chunk's own is
// never lent.
int64_t ActivationBytes(const Inventory& inventory, const RankUse& rank, const MemoryRules& rules) {
  std::vector<KeptByKind> kept;
  int64_t others = 0, all_slots = 0;
  for (const ChunkUse& chunk : rank.chunks) {
    kept.push_back(KeptOf(inventory, chunk.layers, rank.recompute, rules));
    others += chunk.slots * kept.back().others;
    all_slots += chunk.slots * (kept.back().encoder + kept.back().decoder);
  }
  if (rank.moments.empty()) return rank.deferred_bytes + others + all_slots;
  int64_t most_encoder = 0, most_decoder = 0;
  for (const std::vector<int>& moment : rank.moments) {
    int64_t encoder = 0, decoder = 0;
    for (size_t c = 0; c < kept.size(); ++c) {
      encoder += moment[c] * kept[c].encoder;
      decoder += moment[c] * kept[c].decoder;
    }
    most_encoder = std::max(most_encoder, encoder);
    most_decoder = std::max(most_decoder, decoder);
  }
  return rank.deferred_bytes + others + most_encoder + most_decoder;
}

// Rows and widths of the two stacks as a rank has them; without rows where it has no layer.
struct Stacks {
  LayerSizes source, target;
  int memory_slots = 0;  // most microbatches of a chunk that takes the encoder memory
};

// Whether chunk c ends with the encoder and a later chunk of the rank reads what it made.
bool MakesMemoryForLater(const Inventory& inventory, const RankUse& rank, size_t c) {
  const auto decodes = [&](const ChunkUse& chunk) {
    return inventory.layers[chunk.layers.end - 1].kind >= LayerKind::kTargetEmbedding;
  };
  const auto later = rank.chunks.begin() + static_cast<int64_t>(c) + 1;
  const int end = rank.chunks[c].layers.end;
  const bool made = end < static_cast<int>(inventory.layers.size()) &&
                    inventory.layers[end].kind == LayerKind::kTargetEmbedding;
  return made && std::any_of(later, rank.chunks.end(), decodes);
}

// The source's rows are also those of the memory, which decoder layers work on.
Stacks StacksOf(const Inventory& inventory, const RankUse& rank) {
  Stacks stacks;
  for (size_t c = 0; c < rank.chunks.size(); ++c) {
    const ChunkUse& chunk = rank.chunks[c];
    if (MakesMemoryForLater(inventory, rank, c)) {
      stacks.memory_slots = std::max(stacks.memory_slots, chunk.slots);
    }
    for (int l = chunk.layers.first; l < chunk.layers.end; ++l) {
      const Layer& layer = inventory.layers[l];
      if (layer.kind == LayerKind::kEncoder && stacks.source.rows == 0) {
        stacks.source = SizesOf(inventory, layer);
      }
      if (layer.kind != LayerKind::kDecoder) continue;
      stacks.memory_slots = std::max(stacks.memory_slots, chunk.slots);
      if (stacks.target.rows != 0) continue;
      stacks.target = stacks.source = SizesOf(inventory, layer);
      stacks.source.rows = stacks.target.memory_rows;
    }
  }
  return stacks;
}

int64_t BoundaryBytes(const RankUse& rank, const Stacks& stacks, const MemoryRules& rules) {
  if (rank.flow_bytes >= 0) return rank.flow_bytes;
  int64_t message = 0;
  for (const ChunkUse& chunk : rank.chunks) message = std::max(message, chunk.message_bytes);
  const int64_t streams = StreamBytes(stacks.source) + StreamBytes(stacks.target);
  const int64_t memory = stacks.source.rows * stacks.source.width * rules.operand_bytes;
  return kMessageSlots * message + streams + stacks.memory_slots * memory;
}

// What one set of buffers for a stack's sub-layers takes: three operands of the width and three
// more for dq, dk, dv, one of the inner width, two streams; with other operands, those of the
// stream.
int64_t WorkspaceOf(const LayerSizes& s, const MemoryRules& rules) {
  const int64_t operands = (6 + (rules.operand_bytes == kFloatBytes ? 0 : 1)) * s.width + s.inner;
  return s.rows * (operands * rules.operand_bytes + 2 * s.width * kFloatBytes);
}

// Beside the sets of buffers: a stream is every stack's own, kernels have one buffer of a kind.
int64_t ExtraBytes(const StackExtras& extras, const Stacks& stacks, const MemoryRules& rules) {
  const int64_t streams = StreamBytes(stacks.source) + StreamBytes(stacks.target);
  const int64_t bytes = extras.streams * streams;
  if (!rules.native) return bytes;
  const int64_t converted = rules.operand_bytes == kFloatBytes ? 0 : extras.converted;
  const int64_t most_rows = std::max(stacks.source.rows, stacks.target.rows);
  return bytes + most_rows * (converted + extras.over_rows) * kFloatBytes;
}

// The input of the widest weight gradient, packed.
int64_t PackedOperand(const LayerSizes& s, const MemoryRules& rules) {
  if (!rules.native) return 0;
  const int64_t rows = (s.rows + kPackedRows - 1) / kPackedRows * kPackedRows;
  return rows * std::max(s.inner, s.width) * rules.operand_bytes;
}

int64_t ConstantBytes(const Inventory& inventory, const RankUse& rank) {
  int64_t bytes = 0;
  ForEachLayer(inventory, rank, [&](const Layer& layer) { bytes += layer.constant_bytes; });
  return bytes;
}

// What an operation uses only inside, which is never there at the same time as the logits.
int64_t TemporaryBytes(const Inventory& inventory, const RankUse& rank, const Stacks& stacks,
                       const MemoryRules& rules, const MemoryEstimate& memory) {
  if (rules.native) return 0;
  const int64_t most =
      std::max({LibraryLayerBytes(stacks.source, rules), LibraryLayerBytes(stacks.target, rules),
                LibraryInnerDropoutBytes(inventory, rank, rules),
                LibraryUpdateBytes(memory.moments() / kMomentBytes),
                LibraryRefreshBytes(inventory, rank, rules)});
  return std::max<int64_t>(0, most - memory.logits());
}

int64_t WorkspaceBytes(const Inventory& inventory, const RankUse& rank, const Stacks& stacks,
                       const MemoryRules& rules) {
  return WorkspaceOf(stacks.source, rules) + WorkspaceOf(stacks.target, rules) +
         ExtraBytes(inventory.extras, stacks, rules) +
         std::max(PackedOperand(stacks.source, rules), PackedOperand(stacks.target, rules)) +
         ConstantBytes(inventory, rank);
}

int64_t LogitBytes(const Inventory& inventory, const RankUse& rank, const MemoryRules& rules) {
  for (const ChunkUse& chunk : rank.chunks) {
    const Layer& layer = inventory.layers[chunk.layers.end - 1];
    if (layer.kind != LayerKind::kOutput) continue;
    const std::vector<int64_t>& table = inventory.parameters[layer.parameters.front()].shape;
    const int64_t rows = std::min(kLogitRows, layer.inputs.front().shape.front());
    if (!rules.native) return LibraryLogitBytes(rows, table[0], table[1], rules);
    const bool in_place = rules.operand_bytes == kFloatBytes;
    return rows * table[0] * (kFloatBytes + (in_place ? 0 : rules.operand_bytes));
  }
  return 0;
}

bool IsCpu(const ComputeSpec& compute) {
  return compute.device().empty() || compute.device() == "cpu";
}

}  // namespace

MemoryRules MakeMemoryRules(const ComputeSpec& compute) {
  MemoryRules rules;
  rules.operand_bytes = compute.dtype() == BFLOAT16 ? 2 : 4;
  const bool library =
      compute.matmul() == LIBRARY || (compute.matmul() == MATMUL_UNSPECIFIED && !IsCpu(compute));
  if (library) rules.num_packed_copies = rules.operand_bytes == 2 ? 1 : 0;
  rules.native = !library;
  return rules;
}

MemoryRules MakeMemoryRules(const ComputeSpec& compute, const ParallelSpec& parallel,
                            const InstrumentsSpec& instruments) {
  MemoryRules rules = MakeMemoryRules(compute);
  rules.snapshot = IsCpu(compute) && !parallel.blocking_saves();
  rules.instruments = instruments.every_steps() > 0;
  return rules;
}

void UpdateRecompute(const Inventory& inventory, const RankUse& rank, const MemoryRules& rules,
                     MemoryEstimate& memory) {
  const Stacks stacks = StacksOf(inventory, rank);
  memory.set_activations(ActivationBytes(inventory, rank, rules));
  memory.set_recompute(RecomputedBytes(inventory, rank, LayerKind::kEncoder, stacks.source, rules) +
                       RecomputedBytes(inventory, rank, LayerKind::kDecoder, stacks.target, rules));
  memory.set_total(memory.weights() + memory.working_copies() + memory.gradients() +
                   memory.partial_sums() + memory.moments() + memory.activations() +
                   memory.boundary() + memory.recompute() + memory.workspace() + memory.logits() +
                   memory.communication() + memory.snapshot() + memory.instruments());
}

MemoryEstimate EstimateMemory(const Inventory& inventory, const RankUse& rank,
                              const MemoryRules& rules) {
  MemoryEstimate memory;
  const Stacks stacks = StacksOf(inventory, rank);
  AddParameters(inventory, rank, rules, memory);
  memory.set_boundary(BoundaryBytes(rank, stacks, rules));
  memory.set_logits(LogitBytes(inventory, rank, rules));
  memory.set_workspace(WorkspaceBytes(inventory, rank, stacks, rules) +
                       TemporaryBytes(inventory, rank, stacks, rules, memory));
  UpdateRecompute(inventory, rank, rules, memory);
  return memory;
}

}  // namespace deepnet

#include "parallel/plan/memory.h"

#include <algorithm>
#include <deque>
#include <numeric>

#include "absl/algorithm/container.h"

namespace deepnet {
namespace {

constexpr int64_t kMomentBytes = 8;                    // two float32
constexpr int64_t kUpdateElements = int64_t{1} << 22;  // that LIBRARY's update takes at once

template <typename Visit>
void ForEachLayer(const Inventory& inventory, const RankUse& rank, const Visit& visit) {
  for (const ChunkUse& chunk : rank.chunks) {
    for (int l = chunk.layers.first; l < chunk.layers.end; ++l) visit(inventory.layers[l]);
  }
}

bool Uses(const Layer& layer, int parameter) {
  return absl::c_linear_search(layer.parameters, parameter);
}

bool Holds(const RankUse& rank, int layer) {
  return absl::c_any_of(rank.chunks, [&](const ChunkUse& chunk) {
    return layer >= chunk.layers.first && layer < chunk.layers.end;
  });
}

// Returns the bytes of moments and average that belong to an updated weight.
int64_t StateBytes(const MemoryRules& rules) {
  return kMomentBytes + (rules.average ? kFloatBytes : 0);
}

// Counts each parameter once for weights and moments, each use for gradients.
void AddParameters(const Inventory& inventory, const RankUse& rank, const MemoryRules& rules,
                   MemoryEstimate& memory) {
  int64_t elements = 0, uses = 0, packed = 0, saved_elsewhere = 0;
  std::vector<int> counted;  // of layers outside of stacks, which alone may be tied
  ForEachLayer(inventory, rank, [&](const Layer& layer) {
    for (const int i : layer.parameters) {
      const Parameter& parameter = inventory.parameters[i];
      const int64_t size = parameter.NumElements();
      uses += size;
      if (parameter.shape.size() == 2 && !layer.looks_up) packed += size;
      if (layer.stack < 0) {
        if (absl::c_linear_search(counted, i)) continue;
        counted.push_back(i);
        // The stage of its first use in the chain saves it.
        const auto uses_it = [&](const Layer& other) { return Uses(other, i); };
        const auto saved_by = absl::c_find_if(inventory.layers, uses_it) - inventory.layers.begin();
        if (!Holds(rank, static_cast<int>(saved_by))) saved_elsewhere += size;
      }
      elements += size;
    }
  });
  memory.set_weights(elements * kFloatBytes);
  memory.set_working_copies((rules.gpu ? elements : packed) * rules.packed_bytes *
                            rules.num_packed_copies);
  memory.set_gradients(uses * kFloatBytes);
  memory.set_partial_sums(uses * kFloatBytes * rank.partial_sums);
  const int64_t updated = (elements + rank.num_replicas - 1) / rank.num_replicas;
  const int64_t state_bytes = StateBytes(rules);
  memory.set_moments(updated * state_bytes);
  const int64_t saved = updated - saved_elsewhere / rank.num_replicas;
  if (rules.snapshot) memory.set_snapshot(saved * (kFloatBytes + state_bytes));
  if (rules.instruments) memory.set_instruments(saved * kFloatBytes);
  const int64_t received = std::min(kPiecesInFlight * kPieceBytes, uses * kFloatBytes);
  memory.set_communication(received / rank.num_replicas * (rank.num_replicas - 1) +
                           std::min(2 * kPieceBytes, ForeignBytes(inventory, rank)) /
                               rank.num_replicas);
}

// Bytes that layers keep of one microbatch, by the stack whose buffers they share.
struct KeptByStack {
  std::vector<int64_t> in_stack;
  int64_t others = 0;  // a chunk's own, never lent
};

KeptByStack KeptOf(const Inventory& inventory, LayerSpan span, const RecomputeChoice& recompute,
                   const MemoryRules& rules) {
  const bool by_segment = recompute.level == FULL;
  KeptByStack kept{.in_stack = std::vector<int64_t>(inventory.stacks.size(), 0)};
  int in_stack = 0;  // layers of the same stack so far
  for (int l = span.first; l < span.end; ++l) {
    const Layer& layer = inventory.layers[l];
    if (l > span.first && layer.stack != inventory.layers[l - 1].stack) in_stack = 0;
    if (layer.stack < 0) {
      kept.others += layer.kept[NONE].Total(rules.operand_bytes);
      continue;
    }
    int64_t& bytes = kept.in_stack[layer.stack];
    bytes += layer.kept[recompute.level].Total(rules.operand_bytes);
    if (by_segment ? in_stack % recompute.segment == 0 : in_stack == 0) {
      bytes += inventory.stacks[layer.stack].stream_elements *
               (by_segment ? kFloatBytes : rules.operand_bytes);
    }
    ++in_stack;
  }
  return kept;
}

// Each stack has buffers for the peak at which it holds most.
int64_t KeptInFlight(const Inventory& inventory, const RankUse& rank, const MemoryRules& rules) {
  std::vector<KeptByStack> kept;
  std::vector<int> slots;
  int64_t bytes = rank.deferred_bytes;
  for (const ChunkUse& chunk : rank.chunks) {
    kept.push_back(KeptOf(inventory, chunk.layers, rank.recompute, rules));
    slots.push_back(chunk.slots);
    bytes += chunk.slots * kept.back().others;
  }
  std::vector<std::vector<int>> peaks = rank.peaks;
  if (peaks.empty()) peaks.push_back(slots);
  for (size_t s = 0; s < inventory.stacks.size(); ++s) {
    int64_t most = 0;
    for (const std::vector<int>& peak : peaks) {
      int64_t now = 0;
      for (size_t c = 0; c < kept.size(); ++c) now += peak[c] * kept[c].in_stack[s];
      most = std::max(most, now);
    }
    bytes += most;
  }
  return bytes;
}

struct StackUse {
  const Layer* first = nullptr;  // of its layers on this rank
  int longest = 0;               // layers that one chunk has of it
  bool rows = false;             // some layer works on its rows
};

std::vector<StackUse> StacksOf(const Inventory& inventory, const RankUse& rank) {
  std::vector<StackUse> stacks(inventory.stacks.size());
  std::vector<int> count(stacks.size());
  for (const ChunkUse& chunk : rank.chunks) {
    std::fill(count.begin(), count.end(), 0);
    for (int l = chunk.layers.first; l < chunk.layers.end; ++l) {
      const Layer& layer = inventory.layers[l];
      if (layer.stack < 0) continue;
      StackUse& own = stacks[layer.stack];
      if (own.first == nullptr) own.first = &layer;
      own.longest = std::max(own.longest, ++count[layer.stack]);
      for (const BoundaryTensor& input : layer.inputs) stacks[input.stack].rows = true;
    }
  }
  return stacks;
}

int64_t RecomputedBytes(const Inventory& inventory, const RankUse& rank, const MemoryRules& rules) {
  const auto& [level, segment] = rank.recompute;
  const std::vector<StackUse> uses = StacksOf(inventory, rank);
  int64_t bytes = 0;
  for (size_t s = 0; s < uses.size(); ++s) {
    const StackUse& use = uses[s];
    if (level == FULL ? use.first == nullptr : !use.rows) continue;
    bytes += inventory.stacks[s].recomputed[level].Total(rules.operand_bytes);
    if (level != FULL) continue;
    bytes += std::min(segment, use.longest) * (use.first->kept[NONE].Total(rules.operand_bytes) -
                                               use.first->kept[FULL].Total(rules.operand_bytes));
  }
  return bytes;
}

int64_t Largest(std::span<const ActivationBytes> buffers, const MemoryRules& rules) {
  int64_t most = 0;
  for (const ActivationBytes& buffer : buffers) {
    most = std::max(most, buffer.Total(rules.operand_bytes));
  }
  return most;
}

// Returns what LIBRARY takes to make the rank's working copies anew: one is there twice.
int64_t RefreshBytes(const Inventory& inventory, const RankUse& rank, const MemoryRules& rules) {
  if (rules.operand_bytes == kFloatBytes) return 0;
  int64_t most = 0;
  ForEachLayer(inventory, rank, [&](const Layer& layer) {
    if (layer.looks_up) return;
    for (const int i : layer.parameters) {
      const Parameter& parameter = inventory.parameters[i];
      if (parameter.shape.size() == 2) most = std::max(most, parameter.NumElements());
    }
  });
  return most * rules.operand_bytes;
}

int64_t WorkspaceBytes(const Inventory& inventory, const RankUse& rank, const MemoryRules& rules,
                       const MemoryEstimate& memory) {
  const std::vector<StackUse> uses = StacksOf(inventory, rank);
  int64_t bytes = 0, kernels = 0, scratch = 0, temporaries = 0;
  ForEachLayer(inventory, rank, [&](const Layer& layer) { bytes += layer.constant_bytes; });
  for (size_t s = 0; s < uses.size(); ++s) {
    const Stack& stack = inventory.stacks[s];
    if (!uses[s].rows) continue;
    bytes += stack.workspace.Total(rules.operand_bytes);
    kernels = std::max(kernels, stack.kernel_buffers.Total(rules.operand_bytes));
    scratch = std::max(scratch, stack.device_scratch.Total(rules.operand_bytes));
    const bool own = uses[s].first != nullptr;
    temporaries =
        std::max(temporaries, Largest(own ? stack.temporaries : stack.reader_temporaries, rules));
  }
  const int64_t held = memory.moments() / StateBytes(rules);
  if (rules.average) bytes += kFloatBytes * std::min(kAverageElements, held);
  if (rules.gpu) return bytes + scratch;
  if (rules.native) return bytes + kernels;
  // The update has the scaled gradient and its square, then root and quotient.
  const int64_t updated = std::min(kUpdateElements, held);
  temporaries =
      std::max({temporaries, 2 * kFloatBytes * updated, RefreshBytes(inventory, rank, rules)});
  return bytes + std::max<int64_t>(0, temporaries - memory.logits());
}

int64_t LogitBytes(const Inventory& inventory, const RankUse& rank, const MemoryRules& rules) {
  for (const ChunkUse& chunk : rank.chunks) {
    const Layer& layer = inventory.layers[chunk.layers.end - 1];
    if (!layer.computes_loss) continue;
    const auto& library = rules.gpu ? layer.device_loss : layer.library_loss;
    return Largest(rules.native ? layer.native_loss : library, rules);
  }
  return 0;
}

// Bytes of the side inputs of all microbatches in flight: of chunks whose layers read them, and of
// one that makes them for a later chunk of the rank.
int64_t SideInputBytes(const Inventory& inventory, const RankUse& rank, const MemoryRules& rules) {
  int64_t slots = 0, elements = 0;
  const auto add = [&](const BoundaryTensor& side, const ChunkUse& chunk) {
    slots = std::max<int64_t>(slots, chunk.slots);
    elements = ElementsOf(side.shape);
  };
  for (const ChunkUse& chunk : rank.chunks) {
    const int end = chunk.layers.end;
    if (&chunk != &rank.chunks.back() && SideInput(inventory.layers[end - 1]) == nullptr) {
      const BoundaryTensor* made = SideInput(inventory.layers[end]);
      if (made != nullptr) add(*made, chunk);
    }
    for (int l = chunk.layers.first; l < end; ++l) {
      const Layer& layer = inventory.layers[l];
      const BoundaryTensor* side = layer.stack < 0 ? nullptr : SideInput(layer);
      if (side != nullptr) add(*side, chunk);
    }
  }
  return slots * elements * rules.operand_bytes;
}

int64_t BoundaryBytes(const Inventory& inventory, const RankUse& rank, const MemoryRules& rules) {
  if (rank.boundary_bytes >= 0) return rank.boundary_bytes;
  int64_t message = 0, streams = 0;
  for (const ChunkUse& chunk : rank.chunks) message = std::max(message, chunk.message_bytes);
  const std::vector<StackUse> uses = StacksOf(inventory, rank);
  for (size_t s = 0; s < uses.size(); ++s) {
    if (uses[s].rows) streams += inventory.stacks[s].stream_elements * kFloatBytes;
  }
  return kMessageSlots * message + streams + SideInputBytes(inventory, rank, rules);
}

// Adds `now` unless some peak has as much of everything; drops those that it has as much as.
void AddPeak(const std::vector<int>& now, std::vector<std::vector<int>>& peaks) {
  const auto covers = [](const std::vector<int>& x, const std::vector<int>& y) {
    return absl::c_equal(x, y, std::greater_equal<int>());
  };
  if (absl::c_any_of(peaks, [&](const auto& peak) { return covers(peak, now); })) return;
  std::erase_if(peaks, [&](const auto& peak) { return covers(now, peak); });
  peaks.push_back(now);
}

// Returns what is in flight on a rank at its peaks, by its chunks in chain order; sets `slots` of
// these chunks.
std::vector<std::vector<int>> InFlightPeaks(const std::vector<Action>& actions,
                                            std::vector<int>& slots) {
  std::map<int, size_t> place;  // of a chunk among the rank's
  for (const Action& action : actions) place[action.chunk] = 0;
  size_t next = 0;
  for (auto& [chunk, index] : place) index = next++;
  std::vector<int> now(place.size(), 0);
  std::vector<std::vector<int>> peaks;
  for (const Action& action : actions) {
    int& alive = now[place[action.chunk]];
    if (IsInputPass(action.op)) --alive;
    if (action.op != Op::kForward) continue;
    slots[action.chunk] = std::max(slots[action.chunk], ++alive);
    AddPeak(now, peaks);
  }
  return peaks;
}

// Returns the bytes of the buffers of one rank's deferred weight gradients: a pool for each shape,
// which never shrinks.
int64_t DeferredBytes(const std::vector<Action>& actions, std::span<const PendingMatrices> pending,
                      int per_sum) {
  struct Pool {
    int64_t now = 0, most = 0;  // bytes
  };
  std::map<std::pair<int64_t, int64_t>, Pool> pools;  // by rows and columns
  const auto change = [&](int chunk, int microbatches) {
    for (const auto& [shape, bytes] : pending[chunk]) {
      Pool& pool = pools[shape];
      pool.now += microbatches * bytes;
      pool.most = std::max(pool.most, pool.now);
    }
  };
  std::map<int, std::deque<int>> waiting_by_chunk;  // microbatches
  for (const auto& [op, chunk, microbatch] : actions) {
    std::deque<int>& waiting = waiting_by_chunk[chunk];
    if (IsInputPass(op)) {
      const int first = microbatch / per_sum * per_sum;  // of its virtual replica
      for (; !waiting.empty() && waiting.front() < first; waiting.pop_front()) change(chunk, -1);
    }
    if (op == Op::kBackwardInput) {
      waiting.push_back(microbatch);
      change(chunk, 1);
    }
    if (op == Op::kBackwardWeight && std::erase(waiting, microbatch) > 0) change(chunk, -1);
  }
  int64_t bytes = 0;
  for (const auto& [shape, pool] : pools) bytes += pool.most;
  return bytes;
}

int64_t TotalOf(const MemoryEstimate& m) {
  return m.weights() + m.working_copies() + m.gradients() + m.partial_sums() + m.moments() +
         m.activations() + m.boundary() + m.recompute() + m.workspace() + m.logits() +
         m.communication() + m.snapshot() + m.instruments();
}

// Figures that come back to the host: of losses, and a sum of squares of each kSumElements weights.
// The room for them doubles as it grows.
int64_t ResultBytes(const MemoryEstimate& memory) {
  constexpr int64_t kFirst = int64_t{1} << 20, kSumElements = 4096, kSumBytes = 16;
  return 3 * (kFirst + memory.weights() / kFloatBytes / kSumElements * kSumBytes);
}

// Graphs of the passes of a chunk: one set for each microbatch that may be in flight.
int64_t GraphBytes(const Inventory& inventory, const RankUse& rank) {
  int64_t launches = 0;
  for (const ChunkUse& chunk : rank.chunks) {
    for (int l = chunk.layers.first; l < chunk.layers.end; ++l) {
      const int index = inventory.layers[l].work;
      if (index < 0) continue;
      const LayerWork& work = inventory.work[index];
      for (const auto* kernels : {&work.forward, &work.backward_input, &work.backward_weight,
                                  &work.recompute[rank.recompute.level]}) {
        for (const KernelWork& kernel : *kernels) launches += chunk.slots * kernel.launches;
      }
    }
  }
  return launches * kGraphNodeBytes;
}

void AddGpu(const Inventory& inventory, const RankUse& rank, bool graphs, MemoryEstimate& memory) {
  GpuMemory& gpu = *memory.mutable_gpu();
  gpu.set_context(kContextBytes);
  gpu.set_messages(rank.lanes * kLaneBytes + ReplicasBytes(rank.num_replicas));
  gpu.set_products(kProductsBytes);
  gpu.set_uploads(rank.microbatches * inventory.batch_bytes + ResultBytes(memory));
  if (graphs) gpu.set_graphs(GraphBytes(inventory, rank));
}

void SetTotal(MemoryEstimate& memory) {
  int64_t total = TotalOf(memory);
  if (memory.has_gpu()) {
    GpuMemory& gpu = *memory.mutable_gpu();
    total += gpu.uploads();
    gpu.set_fragmentation(kSmallBlockBytes + total / kFragmentedShare);
    total += gpu.fragmentation() + gpu.context() + gpu.messages() + gpu.products() + gpu.graphs();
  }
  memory.set_total(total);
}

}  // namespace

MemoryRules MakeMemoryRules(const ComputeSpec& compute) {
  MemoryRules rules;
  rules.gpu = !compute.device().empty() && compute.device() != "cpu";
  rules.graphs = rules.gpu && compute.cuda_graphs();
  rules.operand_bytes = compute.dtype() == BFLOAT16 || compute.dtype() == FLOAT16 ? 2 : 4;
  rules.native =
      compute.matmul() == NATIVE || (compute.matmul() == MATMUL_UNSPECIFIED && !rules.gpu);
  if (!rules.native) rules.num_packed_copies = rules.operand_bytes == 2 ? 1 : 0;
  // Native kernels widen bfloat16 weights to float32 where the CPU has no bfloat16 products.
  const bool widened = rules.native && compute.isa() != AVX512_BF16;
  rules.packed_bytes = widened ? kFloatBytes : rules.operand_bytes;
  return rules;
}

int64_t KeptBytes(const Inventory& inventory, LayerSpan span, const RecomputeChoice& recompute,
                  const MemoryRules& rules) {
  const KeptByStack kept = KeptOf(inventory, span, recompute, rules);
  return std::accumulate(kept.in_stack.begin(), kept.in_stack.end(), kept.others);
}

PendingMatrices MakePendingMatrices(const Inventory& inventory, LayerSpan span,
                                    const MemoryRules& rules) {
  PendingMatrices pending;
  bool has_shared = false;
  for (int l = span.first; l < span.end; ++l) {
    const std::vector<PendingOperand>& operands = inventory.layers[l].pending;
    bool shares = false;
    for (const PendingOperand& operand : operands) {
      shares |= operand.shared;
      if (operand.shared && has_shared) continue;
      pending[{operand.rows, operand.columns}] +=
          operand.count * operand.rows * operand.columns * rules.operand_bytes;
    }
    has_shared |= shares;
  }
  return pending;
}

int64_t PendingBytes(const PendingMatrices& pending) {
  int64_t sum = 0;
  for (const auto& [shape, bytes] : pending) sum += bytes;
  return sum;
}

int64_t ForeignBytes(const Inventory& inventory, const RankUse& rank) {
  int64_t bytes = 0;
  std::vector<int> counted;
  ForEachLayer(inventory, rank, [&](const Layer& here) {
    if (here.stack >= 0) return;  // its parameters are not tied
    for (const int p : here.parameters) {
      if (absl::c_linear_search(counted, p)) continue;
      counted.push_back(p);
      for (int l = 0; l < static_cast<int>(inventory.layers.size()); ++l) {
        if (Holds(rank, l) || !Uses(inventory.layers[l], p)) continue;
        bytes += kFloatBytes * inventory.parameters[p].NumElements();
      }
    }
  });
  return bytes;
}

PeakInFlight CountInFlight(const Schedule& schedule, std::span<const PendingMatrices> pending,
                           int per_sum) {
  PeakInFlight most{std::vector<int>(pending.size(), 0), {}, {}};
  for (const std::vector<Action>& actions : schedule.actions) {
    most.deferred_bytes.push_back(DeferredBytes(actions, pending, per_sum));
    most.peaks.push_back(InFlightPeaks(actions, most.slots));
  }
  return most;
}

int64_t ArenaBytes(const MemoryEstimate& memory) {
  if (!memory.has_gpu()) return 0;
  const GpuMemory& gpu = memory.gpu();
  return memory.total() - gpu.context() - gpu.messages() - gpu.products() - gpu.graphs();
}

int64_t TensorBytes(const MemoryEstimate& memory) {
  if (!memory.has_gpu()) return memory.total();
  return ArenaBytes(memory) + memory.gpu().products() - memory.gpu().fragmentation();
}

void UpdateRecompute(const Inventory& inventory, const RankUse& rank, const MemoryRules& rules,
                     MemoryEstimate& memory) {
  memory.set_activations(KeptInFlight(inventory, rank, rules));
  memory.set_recompute(RecomputedBytes(inventory, rank, rules));
  SetTotal(memory);
}

MemoryEstimate EstimateMemory(const Inventory& inventory, const RankUse& rank,
                              const MemoryRules& rules) {
  MemoryEstimate memory;
  AddParameters(inventory, rank, rules, memory);
  memory.set_boundary(BoundaryBytes(inventory, rank, rules));
  memory.set_logits(LogitBytes(inventory, rank, rules));
  memory.set_workspace(WorkspaceBytes(inventory, rank, rules, memory));
  if (rules.gpu) AddGpu(inventory, rank, rules.graphs, memory);
  UpdateRecompute(inventory, rank, rules, memory);
  return memory;
}

}  // namespace deepnet

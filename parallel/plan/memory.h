// Bytes that a rank needs for its part of a model, by what they hold. Everything is counted as the
// program allocates it: buffers have the microbatch's capacities, not its contents.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel/plan/inventory.h"
#include "parallel/plan/recompute_choice.h"
#include "proto/instruments.pb.h"
#include "proto/plan.pb.h"

namespace deepnet {

// What of the run, besides the layers, decides memory.
struct MemoryRules {
  int64_t operand_bytes = 4;  // of one element of a product's operand: 4 or 2
  int num_packed_copies = 2;  // of every multiplied matrix: forward and backward layout
  // This project's kernels: float32 logits become their gradient in place, and the input of a
  // weight gradient is packed, kPackedRows rows at a time, before it is multiplied. LibTorch's
  // operations have temporaries instead (memory_library.h).
  bool native = true;
  bool snapshot = false;     // a copy of what the rank saves is in the memory that is planned
  bool instruments = false;  // and another of the weights it updates (docs/design/instruments.md)
};

// Rules of `compute`, without a snapshot and instruments. What is still left to the program is
// taken at its larger form.
MemoryRules MakeMemoryRules(const ComputeSpec& compute);
// The same with the snapshot that a CPU's memory holds (docs/design/saving.md) and what
// instruments do.
MemoryRules MakeMemoryRules(const ComputeSpec& compute, const ParallelSpec& parallel,
                            const InstrumentsSpec& instruments);

// Bytes that layers `span` keep of one microbatch from F to B or I: what each layer keeps and the
// first input of each stack, or at LAYER the stream that enters each segment.
int64_t KeptBytes(const Inventory& inventory, LayerSpan span, const RecomputeChoice& recompute,
                  const MemoryRules& rules);

// Matrices of one shape that wait with deferred weight gradients.
struct PendingMatrices {
  int64_t rows = 0, columns = 0;
  int64_t bytes = 0;  // of all of them together
};

// What deferred weight gradients of `span` hold of one microbatch from I to W: both operands of
// every product. Each shape once.
std::vector<PendingMatrices> MakePendingMatrices(const Inventory& inventory, LayerSpan span,
                                                 const MemoryRules& rules);
// All their bytes.
int64_t PendingBytes(const Inventory& inventory, LayerSpan span, const MemoryRules& rules);

// Operations of `layer`'s forward pass that its backward pass repeats at `level`.
double RecomputeFlops(const Inventory& inventory, const Layer& layer, Recompute level);

// A chunk as memory sees it.
struct ChunkUse {
  LayerSpan layers;
  int slots = 1;              // most microbatches between F and the end of B or I
  int64_t message_bytes = 0;  // of one microbatch, all that crosses its two cuts
};

// A rank as memory sees it.
struct RankUse {
  std::vector<ChunkUse> chunks;
  // [..][chunk]: what is in flight at moments when no other moment has as much of every chunk.
  // Chunks lend each other buffers, so this may be less than all `slots` together. Empty: it is
  // not.
  std::vector<std::vector<int>> moments;
  RecomputeChoice recompute;
  int64_t deferred_bytes = 0;  // of buffers for deferred weight gradients of all chunks
  int partial_sums = 0;        // gradients of virtual replicas that wait for their sum
  int num_replicas = 1;        // that share moments (ZeRO-1)
  int64_t foreign_bytes = 0;   // of uses that other ranks have of its tied tensors
  int64_t flow_bytes = -1;     // BoundaryBufferBytes; < 0: no schedule is known yet
};

//   weights         4 bytes per parameter; a tied one once per rank
//   working_copies  packed copies of every matrix that is multiplied (embeddings that are only
//                   looked up have none)
//   gradients       4 bytes per parameter and use: each use of a tied one has its own
//   partial_sums    as many again for each sum that waits
//   moments         8 bytes per parameter, divided by the replicas
//   activations     what each layer keeps, for as many microbatches as are in flight at once, and
//                   what deferred weight gradients hold; layers of one kind share buffers
//   boundary        the streams and gradients that run through chunks and cross cuts, and the
//                   encoder memory of every microbatch in flight, as boundary_buffers.h counts
//                   them. Without a schedule: a stream for each stack, the memories, kMessageSlots
//                   of what crosses the cuts of a chunk
//   recompute       what one layer or segment computes again
//   workspace       what is only used inside one sub-layer, a set for each stack's rows; operands
//                   packed for weight gradients; constants; temporaries of LibTorch's operations,
//                   as far as they are more than those of the logits
//   logits          logits, their gradient and temporaries, at most kLogitRows rows
//   communication   other replicas' parts of this rank's share, of kPiecesInFlight pieces; other
//                   stages' uses of a piece of a tied tensor (docs/design/sharding.md)
//   snapshot        12 bytes for each element that the rank saves, with rules.snapshot: those that
//                   it updates, but for tied ones that an earlier stage has too
//   instruments     4 bytes for each of these, with rules.instruments
MemoryEstimate EstimateMemory(const Inventory& inventory, const RankUse& rank,
                              const MemoryRules& rules);

// `memory`, which is EstimateMemory of `rank` under another rank.recompute, brought up to date.
void UpdateRecompute(const Inventory& inventory, const RankUse& rank, const MemoryRules& rules,
                     MemoryEstimate& memory);

// Rows of logits that exist at once.
inline constexpr int64_t kLogitRows = 512;
// Rows that are packed together for a weight gradient.
inline constexpr int64_t kPackedRows = 256;
// Taken before there is a schedule: a message that is filled or read and one that is on its way.
inline constexpr int64_t kMessageSlots = 2;
inline constexpr int64_t kPieceBytes = int64_t{64} << 20;
inline constexpr int64_t kPiecesInFlight = 4;

}  // namespace deepnet

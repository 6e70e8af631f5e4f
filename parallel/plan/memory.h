// Bytes that a rank needs for its part of a model, by what they hold. Everything is counted as the
// program allocates it: buffers have the microbatch's capacities, not its contents. What a layer
// keeps and uses is in the Inventory; here it is added up.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "parallel/plan/inventory.h"
#include "parallel/plan/schedule.h"
#include "proto/plan.pb.h"

namespace deepnet {

// The properties of a run, besides its layers, that decide memory.
struct MemoryRules {
  int64_t operand_bytes = 4;  // of one element of a product's operand: 4 or 2
  int num_packed_copies = 2;  // of every multiplied matrix: forward and backward layout
  int64_t packed_bytes = 4;   // of one element of those copies: 4 or 2
  bool native = true;         // products are NATIVE's, else LIBRARY's
  bool gpu = false;           // operations are CudaOps'
  bool graphs = false;        // compute.cuda_graphs
  bool snapshot = false;      // a copy of what the rank saves is there (docs/design/saving.md)
  bool average = false;       // of the weights is kept (optim.ema_decay)
  bool instruments = false;   // and another of the weights it updates (docs/design/instruments.md)

  // The type of operands, as BoundaryTensor names it: "bfloat16" stands for both of 16 bits.
  std::string_view OperandType() const { return operand_bytes == 2 ? "bfloat16" : "float32"; }
};

// Returns the rules of `compute`; the caller adds what else a run holds. What is still left to the
// program is taken at its larger form.
MemoryRules MakeMemoryRules(const ComputeSpec& compute);

// Bytes that layers `span` keep of one microbatch from F to B or I: what each layer keeps and the
// first input of each stack, or at FULL the stream that enters each segment.
int64_t KeptBytes(const Inventory& inventory, LayerSpan span, const RecomputeChoice& recompute,
                  const MemoryRules& rules);

// Bytes of the matrices that wait with deferred weight gradients, by rows and columns.
using PendingMatrices = std::map<std::pair<int64_t, int64_t>, int64_t>;

// Returns what deferred weight gradients of `span` hold of one microbatch from I to W.
PendingMatrices MakePendingMatrices(const Inventory& inventory, LayerSpan span,
                                    const MemoryRules& rules);
int64_t PendingBytes(const PendingMatrices& pending);

// The microbatches and bytes that a schedule keeps in flight on each rank.
struct PeakInFlight {
  std::vector<int> slots;               // [chunk] most microbatches between F and the end of B or I
  std::vector<int64_t> deferred_bytes;  // [rank] buffers of what waits from I to W
  std::vector<std::vector<std::vector<int>>> peaks;  // [rank] RankUse::peaks; empty: not known
};

// Counts `schedule`, which has passed CheckSchedule, with pending[c] of one microbatch of chunk c.
// A chunk computes deferred weight gradients of a virtual replica, of `per_sum` microbatches,
// before its first backward pass of the next one, wherever the schedule has them. Their buffers are
// lent to all chunks of a rank, but only for matrices of the same shape: each shape counts at its
// own peak.
PeakInFlight CountInFlight(const Schedule& schedule, std::span<const PendingMatrices> pending,
                           int per_sum);

struct ChunkUse {
  LayerSpan layers;
  int slots = 1;              // most microbatches between F and the end of B or I
  int64_t message_bytes = 0;  // of one microbatch, all that crosses its two cuts
};

struct RankUse {
  std::vector<ChunkUse> chunks;  // in the order of the chain
  // [..][chunk]: microbatches in flight at the peaks, moments when no other has as much of every
  // chunk. Chunks lend each other buffers. Empty: all `slots` count together.
  std::vector<std::vector<int>> peaks;
  RecomputeChoice recompute;
  int64_t deferred_bytes = 0;   // buffers for deferred weight gradients of all chunks
  int partial_sums = 0;         // gradients of virtual replicas that wait for their sum
  int num_replicas = 1;         // that share moments (ZeRO-1)
  int microbatches = 1;         // of a step, which a GPU holds all
  int lanes = 0;                // of NCCL, each for the messages from one rank to another
  int64_t boundary_bytes = -1;  // CountBoundaryBytes(); < 0: no schedule is known yet
};

// Returns the bytes of the uses that layers of other ranks have of this rank's tied parameters.
int64_t ForeignBytes(const Inventory& inventory, const RankUse& rank);

// Counts the fields of MemoryEstimate (proto/plan.proto), among them
//
//   working_copies  of every matrix that is multiplied, on a GPU of all weights; float32 where
//                   native kernels run, or may run, without bfloat16 products
//   moments         8 bytes per parameter, with rules.average 12, divided by the replicas
//   activations     what each layer keeps, for as many microbatches as are in flight at once, and
//                   what deferred weight gradients hold; layers of one stack share buffers
//   boundary        as boundary_bytes.h counts it. Without a schedule: a stream for each stack, the
//                   side inputs in flight, kMessageSlots of what crosses the cuts of a chunk
//   workspace       buffers that layers use in turn, a set for each stack's rows; constants; with
//                   rules.average a piece of the weights; on a GPU scratch of kernels, else
//                   temporaries of LIBRARY's operations beyond those of the logits
//   communication   other replicas' parts of this rank's share, of kPiecesInFlight pieces; other
//                   stages' uses of a piece of a tied tensor (docs/design/sharding.md)
//   snapshot        moments and weights of each element that the rank saves, with rules.snapshot:
//                   those that it updates, but for tied ones that an earlier stage has too
//   instruments     4 bytes for each of these, with rules.instruments
MemoryEstimate EstimateMemory(const Inventory& inventory, const RankUse& rank,
                              const MemoryRules& rules);

// Brings `memory`, which is EstimateMemory of `rank` under another rank.recompute, up to date.
void UpdateRecompute(const Inventory& inventory, const RankUse& rank, const MemoryRules& rules,
                     MemoryEstimate& memory);

// Returns the bytes that DeviceSession::Reserve takes of a GPU for a rank of that plan: all but
// what CUDA, NCCL and products hold; 0 on a CPU.
int64_t ArenaBytes(const MemoryEstimate& memory);
// Returns the bytes that tensors hold at once by that plan, and what Ops counts as its own.
int64_t TensorBytes(const MemoryEstimate& memory);

// CUDA and NCCL do not say what they take; it can only be measured. These are upper ends of what is
// usual with all kernels loaded at the start; the context is measured where the limit is.
inline constexpr int64_t kContextBytes = int64_t{3} << 29;    // 1.5 GiB
inline constexpr int64_t kLaneBytes = int64_t{32} << 20;      // two thread blocks, two directions
inline constexpr int64_t kProductsBytes = int64_t{32} << 20;  // cuda::kMatmulWorkspaceBytes
// A group of replicas has rings in nodes and between them, and messages to at most 7 of a node.
inline int64_t ReplicasBytes(int replicas) {
  return replicas > 1 ? (int64_t{352} + 96 * (replicas < 8 ? replicas - 1 : 7)) << 20 : 0;
}
inline constexpr int64_t kSmallBlockBytes = int64_t{32} << 20;  // of blocks up to 1 MiB
inline constexpr int64_t kGraphNodeBytes = 1 << 10;  // of a launch in a CUDA graph; a guess
inline constexpr int64_t kFragmentedShare = 32;      // one part in so many is lost between blocks

// Messages counted before there is a schedule: one that is filled or read, one on its way.
inline constexpr int64_t kMessageSlots = 2;
inline constexpr int64_t kPieceBytes = int64_t{64} << 20;
inline constexpr int64_t kPiecesInFlight = 4;
// Elements of the weights' average that are updated together.
inline constexpr int64_t kAverageElements = int64_t{1} << 20;

}  // namespace deepnet

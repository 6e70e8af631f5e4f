// Decides which replica adds up and updates which weights: a rank's gradient is cut into pieces
// that are exchanged at once, and each piece into one contiguous share per replica
// (docs/design/sharding.md). A layout decides who computes, never what: the bits of a step do not
// depend on it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "parallel/plan/inventory.h"

namespace deepnet {

inline constexpr int64_t kSumBlock = 4096;  // elements

// A range of a rank's gradient buffer that is complete at one moment of a schedule.
struct GradientBucket {
  int64_t begin = 0, count = 0;       // elements; at borders of layers
  int chunk = 0;                      // of the rank; the layers it belongs to
  int first_layer = 0;                // in the chain: the last that a backward pass completes
  bool completes_in_forward = false;  // the output layer's: with the last forward pass of a replica
};

// One layer's use of one parameter, where a rank holds it. A rank's gradient buffer is the
// concatenation, over its layers, of all their uses.
struct GradientUse {
  int layer = 0;               // in the chain of the whole model
  int parameter = 0;           // in the whole Inventory
  int64_t gradient = 0;        // first element in the rank's gradient buffer
  int64_t weight = 0;          // first element in the rank's weights
  int64_t whole = 0;           // first element in the flat order of the whole Inventory
  int64_t count = 0;           // elements
  bool tied = false;           // several layers of the whole model use the parameter
  bool first_here = true;      // the first use on this rank: where the sum over all uses ends
  bool first_in_chain = true;  // the first use of all: its rank counts it in the norm
};

// Adjacent elements of one kind that are exchanged at once.
struct GradientPiece {
  GradientUse of;             // a run of untied uses, or a part of one tied use
  std::vector<int64_t> cuts;  // [num_replicas + 1], from 0 to of.count, at borders of blocks: the
                              // replica in place r adds up and updates cuts[r] .. cuts[r + 1]
};

// Adjacent elements that one replica updates.
struct Extent {
  int64_t gradient = 0, weight = 0, whole = 0;  // first elements, as in GradientUse
  int64_t state = 0;                            // first element in the replica's moments
  int64_t count = 0;
  bool first_in_chain = true;

  friend bool operator==(const Extent&, const Extent&) = default;
};

// A tied tensor of which this rank has a use.
struct TiedTensor {
  struct Use {
    int stage = 0;          // pipeline rank that has it
    int64_t gradient = -1;  // first element in this rank's gradient buffer; -1: another stage's
  };
  struct Share {
    int64_t begin = 0, count = 0;  // elements of the tensor

    friend bool operator==(const Share&, const Share&) = default;
  };

  int parameter = 0;          // in the whole Inventory
  std::vector<Use> uses;      // all there are, in the order of the chain
  std::vector<Share> shares;  // what this replica adds up; the same on every stage
};

struct ShardOptions {
  int num_replicas = 1;
  int replica = 0;
  int replicas_per_node = 0;  // adjacent ones, which exchange first; 0: all exchange at once
  int64_t piece_elements = int64_t{16} << 20;  // 64 MiB of float32; at least one block is taken
  std::vector<int> stage_of_layer;  // pipeline rank of each layer of the chain; empty: one
};

struct ShardLayout {
  int num_replicas = 1;
  int replica = 0;
  int place = 0;                                   // of the replica's shares among those of a piece
  std::vector<GradientUse> uses;                   // in the order of the gradient buffer
  std::vector<GradientBucket> buckets;             // as given
  std::vector<std::vector<GradientPiece>> pieces;  // of each bucket
  std::vector<Extent> extents;                     // of this replica, rising weight and state
  std::vector<TiedTensor> tied;                    // in the Inventory's order

  int64_t StateElements() const;  // of each moment on this replica
};

// Borders of the blocks in which squares are added up and at which shares end, in the flat order of
// `whole`: block b is [borders[b], borders[b + 1]). They have kSumBlock elements and start anew at
// every layer and at both ends of a tied tensor, so that one before such a place may be shorter.
std::vector<int64_t> SumBlockBorders(const Inventory& whole);

// `held`: the layers of `whole` on this rank, in order, with their parameters; DEEPNET_CHECKed.
// `buckets` cover the rank's gradient buffer without overlap. Shares are as even as borders of
// blocks allow: a replica that had less of one piece gets more of the next.
ShardLayout MakeShardLayout(const Inventory& whole, const Inventory& held,
                            std::span<const GradientBucket> buckets, const ShardOptions& options);

// Most float32 gradient of a group, 25 MiB: what DistributedDataParallel found to fill a network
// without holding much back (Li et al., 2020, arXiv:2006.15704, section 4.2).
inline constexpr int64_t kGroupElements = int64_t{25} << 18;
// Smaller models have at least about so many groups, so that they overlap too.
inline constexpr int64_t kLeastGroups = 16;

// Ends of the groups of `whole`, in layers of the chain; the last is their number. A group is
// filled from its first layer on, up to the smaller of kGroupElements and 1 / kLeastGroups of the
// gradient; a larger layer is a group alone. The layout may cut groups, and does not change them.
std::vector<int> LayerGroupEnds(const Inventory& whole);

// Microbatches [first, end) of a step.
struct MicrobatchRange {
  int first = 0, end = 0;

  int Count() const { return end - first; }
};

// Adjacent ones, as evenly as can be: where `microbatches` are no multiple of `replicas`, the first
// replicas have one more. So replica 0 has as many as any.
MicrobatchRange MicrobatchesOf(int microbatches, int replicas, int replica);

// Virtual replicas that a rank adds up by itself: virtual_replicas / replicas, with sums that have
// the bits of any other such number of replicas; or, where that is no whole number, one.
int LocalVirtualReplicas(int virtual_replicas, int replicas);

// virtual_replicas where the user left them open: the largest power of two that divides the
// microbatches, at most 8, or the `replicas` that the user asked for (0: none) if those are more.
// The ranks of the job do not enter, so that they do not change the weights.
int DefaultVirtualReplicas(int microbatches, int replicas);

}  // namespace deepnet

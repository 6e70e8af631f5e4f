// The process groups that a step's sums run over.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include <ATen/core/Tensor.h>

#include "parallel/comm/communicator.h"
#include "parallel/plan/shard.h"
#include "trainer/kernels/ops.h"

namespace deepnet {

// Communicators, not owned. Null, or a group of one, means that there is nothing to exchange. Only
// the thread that runs the schedule uses them.
struct Groups {
  Communicator* world = nullptr;     // every rank of the job
  Communicator* replicas = nullptr;  // the ranks that hold the same layers, by dp_rank
  // Set both or neither. The first has the replicas on this node, which are consecutive; the second
  // has the replicas with the same place on every node. Exchanges then go over the first group and
  // next over the second.
  Communicator* node_replicas = nullptr;
  Communicator* across_nodes = nullptr;
  // The stages of one replica, by pp_rank. This is not the group that carries the schedule's
  // messages, since a peer may still be busy with those.
  Communicator* stages = nullptr;
  absl::Duration limit = absl::InfiniteDuration();  // of one exchange; beyond it: ExitCode::kHang
};

// Groups of a job in which every rank has one (pp_rank, dp_rank).
struct OwnedGroups {
  std::unique_ptr<Communicator> replicas, node_replicas, across_nodes, stages;
  Groups all;  // with `world` as it was given
};

// Returns the number of replicas of a stage on a node if exchanges can go inside nodes first, else
// 0 (exchanges have one level). nodes[rank] is the name of a rank's node; rank = dp_rank * stages +
// pp_rank. Two levels need more than one node, and on every stage equally many replicas a node,
// more than one and adjacent; and that number must be the same for all stages, because they cut
// tied matrices alike.
int ReplicasPerNode(std::span<const std::string> nodes, int stages);

// Splits `world`, which must outlive the result, into its groups. `replicas_per_node` divides the
// replicas; 0: one level of exchanges. The caller sets all.limit. Collective over `world`.
absl::StatusOr<OwnedGroups> SplitGroups(Communicator& world, int pp_rank, int dp_rank,
                                        int replicas_per_node = 0);

// Returns `status` of an exchange with `what` in front of its text, and with ExitCode::kHang if it
// ran out of time. Payloads are kept.
absl::Status Named(absl::Status status, std::string_view what);

// Returns the memory of a contiguous tensor, in the order of the default stream on an accelerator.
Buffer BufferOf(const Ops& ops, const at::Tensor& tensor);

// Returns the groups that replicas exchange gradients and weights over, from the innermost
// outwards: {replicas}, or {node_replicas, across_nodes}, so that little leaves a node; empty for
// one replica.
std::vector<Communicator*> ExchangeLevels(const Groups& groups);

// Returns the borders of the shares of `piece` for the ranks of levels[level]: rank r has elements
// borders[r] .. borders[r + 1] of the piece. Together they are this rank's share at the level
// before.
std::vector<int64_t> LevelBorders(const GradientPiece& piece,
                                  const std::vector<Communicator*>& levels, size_t level);

}  // namespace deepnet

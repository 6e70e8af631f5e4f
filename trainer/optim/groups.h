// The groups of ranks that a step's sums run over.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include <ATen/core/Tensor.h>

#include "parallel/comm/communicator.h"

namespace deepnet {

// Communicators that somebody else owns; null, or a group of one: nothing to exchange. One thread
// uses them, the one that runs the schedule.
struct Groups {
  Communicator* world = nullptr;     // every rank of the job
  Communicator* replicas = nullptr;  // ranks that hold the same layers; rank there: the replica
  // Both or none: those of `replicas` on this node, which are consecutive, and those that are their
  // node's same one; exchanges then go over the first and then over the second.
  Communicator* node_replicas = nullptr;
  Communicator* across_nodes = nullptr;
  // The stages of one replica; rank there: the stage. Not the group that carries the schedule's
  // messages: a peer may still be at those.
  Communicator* stages = nullptr;
  absl::Duration limit = absl::InfiniteDuration();  // for one exchange; then ExitCode::kHang
};

// Groups of a job in which every rank has one (stage, replica).
struct OwnedGroups {
  std::unique_ptr<Communicator> replicas, node_replicas, across_nodes, stages;
  Groups all;  // with `world` as it was given
};

// How many replicas of a stage a node has, where exchanges go inside nodes first: nodes[rank] is
// the name of a rank's node, rank = replica * stages + stage. Needs that on every stage, nodes have
// equally many replicas, more than one, and those adjacent; that this number is the same for all
// stages, because they cut tied matrices alike; and that there is more than one node. Otherwise 0:
// exchanges have one level.
int ReplicasPerNode(std::span<const std::string> nodes, int stages);

// Collective over `world`, which must outlive the result. `replicas_per_node` divides the replicas;
// 0: one level of exchanges. The caller sets all.limit.
absl::StatusOr<OwnedGroups> SplitGroups(Communicator& world, int stage, int replica,
                                        int replicas_per_node = 0);

// `status` of an exchange with `what` in front of its text, and with ExitCode::kHang if it was out
// of time; payloads are kept.
absl::Status Named(absl::Status status, std::string_view what);

// The memory of a contiguous tensor; on an accelerator in the order of its default queue.
Buffer BufferOf(const at::Tensor& tensor);

}  // namespace deepnet

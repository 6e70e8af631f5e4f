// The groups of ranks that a step's sums run over.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include <ATen/core/Tensor.h>

#include "parallel/comm/communicator.h"

namespace deepnet {

// Communicators that somebody else owns; null, or a group of one: nothing to exchange. One thread
// uses them, the one that runs the schedule.
struct Groups {
  Communicator* world = nullptr;     // every rank of the job
  Communicator* replicas = nullptr;  // ranks that hold the same layers; rank there: the replica
  // The stages of one replica; rank there: the stage. Not the group that carries the schedule's
  // messages: a peer may still be at those.
  Communicator* stages = nullptr;
};

// Groups of a job in which every rank has one (stage, replica).
struct OwnedGroups {
  std::unique_ptr<Communicator> replicas, stages;
  Groups all;  // with `world` as it was given
};

// Collective over `world`, which must outlive the result.
absl::StatusOr<OwnedGroups> SplitGroups(Communicator& world, int stage, int replica);

// The memory of a contiguous tensor; on an accelerator in the order of its default queue.
Buffer BufferOf(const at::Tensor& tensor);

}  // namespace deepnet

// Sums a step's gradient from the accumulators of microbatches up to the whole step, in the orders
// of docs/design/determinism.md: over virtual replicas, over ranks, over the uses of tied tensors.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include <ATen/core/Tensor.h>

#include "parallel/comm/communicator.h"
#include "parallel/exec/trace.h"
#include "parallel/plan/shard.h"
#include "proto/plan.pb.h"
#include "trainer/kernels/ops.h"
#include "trainer/model/parameters.h"
#include "trainer/optim/groups.h"

namespace deepnet {

// Sums gradients over virtual replicas as a fixed binary tree.
//
// Replicas arrive in order 0, 1, .. R - 1. Like a binary counter, two finished subtrees of equal
// height are added at once, so log2(R) buffers are enough. For R a power of two the tree,
// ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)), is the same wherever the replicas were computed.
class ReplicaTree {
 public:
  // Adds a copy of the next replica's `gradient`. Call PushLast for the last one.
  void Push(Ops& ops, const at::Tensor& gradient);
  // Adds the last replica's `gradient`, which becomes the sum. If R is no power of two, subtrees
  // are added from the last to the first.
  void PushLast(Ops& ops, const at::Tensor& gradient);
  // Forgets what was pushed.
  void Reset();

 private:
  struct Subtree {
    int height = 0;
    at::Tensor sum;
  };
  std::vector<Subtree> pending_;  // falling height
  std::vector<at::Tensor> free_;  // buffers to use again
};

// Sums `parts` into parts[home] and overwrites the others. STRICT (or unspecified) adds along a
// binary tree, ((0 + 1) + (2 + 3)) + ..., where an odd part at the end of a level waits for the
// next level. FAST adds from the first to the last.
void AddParts(Ops& ops, const std::vector<at::Tensor>& parts, int home, GradientSum order);

// Returns whether the communicator adds `gradient` over the replicas: FAST on a GPU. Otherwise the
// replicas exchange parts and add them in a fixed order.
bool SumsOnTheWay(GradientSum order, const at::Tensor& gradient);

// The most elements of exchanges that may be received and not yet added before the next one waits:
// 256 MiB of float32.
inline constexpr int64_t kMaxWaiting = int64_t{64} << 20;

class HierarchicalReduceScatter;

struct GradientSumsOptions {
  int local_replicas = 1;      // virtual replicas of this rank, which computes them in order
  GradientSum order = STRICT;  // FAST: the replicas of a rank share the accumulators
};

// Called by one thread. The gradient is the same on every rank that has it. With STRICT it has the
// same bits for every number of ranks that divides the virtual replicas.
class GradientSums {
 public:
  // `layout` is that of parameters.gradient(); the moments become those of the layout's extents.
  // Ranks of groups.replicas host consecutive virtual replicas, equally many.
  GradientSums(Ops& ops, Parameters& parameters, ShardLayout layout, Groups groups,
               GradientSumsOptions options);
  ~GradientSums();

  // From the next BeginStep on, sums are events of `trace`, which outlives this; null: of none.
  void TraceTo(RankTrace* trace) { trace_ = trace; }

  // Clears the accumulators, and whatever a step left that ended with an error.
  void BeginStep();

  // Tells that the accumulators of layout.buckets[bucket] hold the whole gradient of this rank's
  // next virtual replica; each bucket counts its own. They are cleared for the replica after it.
  // After the last one the sum over ranks begins in the background, and nobody may touch the bucket
  // until Finish. Collective over groups.replicas: exchanges start from the last bucket to the
  // first, whatever order each rank has them ready in; one that is early waits for those behind it.
  absl::Status ReplicaDone(int bucket);

  // After the schedule: waits until the layout's extents of parameters.gradient() hold the gradient
  // of the step, with tied tensors in the place of their first use here. Every bucket must have had
  // all its replicas. Collective over groups.replicas and groups.stages.
  absl::Status Finish();

 private:
  absl::Status FoldTied(const TiedTensor& tensor, const TiedTensor::Share& share);
  absl::Status ExchangeUses(const TiedTensor& tensor, std::span<const at::Tensor> uses);

  Ops& ops_;
  Parameters& parameters_;
  ShardLayout layout_;
  GradientSumsOptions options_;
  std::vector<ReplicaTree> trees_;  // [bucket]
  std::vector<int> done_;           // [bucket], virtual replicas
  int started_ = 0;                 // the exchanges of buckets from here on have been started
  std::unique_ptr<HierarchicalReduceScatter> exchange_;  // null: one replica
  Communicator* stages_;                                 // null: one stage
  absl::Duration limit_;
  RankTrace* trace_ = nullptr;
};

}  // namespace deepnet

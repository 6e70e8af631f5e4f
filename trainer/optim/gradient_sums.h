// A step's gradient from the accumulators of microbatches to the sum over everything, in the orders
// of docs/design/sums.md: over virtual replicas, over ranks, over the uses of tied tensors.
//
// Example:
//   sums.BeginStep();
//   ... after the last weight gradient of a virtual replica that bucket b collects:
//   RETURN_IF_ERROR(sums.ReplicaDone(b));
//   ... after the schedule:
//   RETURN_IF_ERROR(sums.Finish());
#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include <ATen/core/Tensor.h>

#include "parallel/plan/shard.h"
#include "proto/plan.pb.h"
#include "trainer/kernels/ops.h"
#include "trainer/model/parameters.h"
#include "trainer/optim/gradient_exchange.h"
#include "trainer/optim/groups.h"
#include "trainer/optim/replica_tree.h"
#include "trainer/optim/tied_sums.h"

namespace deepnet {

struct GradientSumsOptions {
  int local_replicas = 1;      // virtual replicas of this rank, which computes them in order
  GradientSum order = STRICT;  // FAST: the replicas of a rank share the accumulators
};

// Called by one thread. The gradient is the same on every rank that has it, and the same bits for
// every number of ranks that divides the virtual replicas, if the order is STRICT.
class GradientSums {
 public:
  // `layout` is that of parameters.gradient(), whose moments become those of the layout's extents.
  // Ranks of groups.replicas host consecutive virtual replicas, equally many.
  GradientSums(Ops& ops, Parameters& parameters, ShardLayout layout, Groups groups,
               GradientSumsOptions options);

  // Clears the accumulators, and forgets a step that an error ended.
  void BeginStep();

  // The accumulators of layout.buckets[bucket] hold the whole gradient of the next virtual replica
  // of this rank; each bucket counts its own. They are cleared for the one after it. After the
  // last, the sum over ranks begins, beside whatever the caller does next: nobody may touch the
  // bucket until Finish. Collective over groups.replicas, where exchanges start from the last
  // bucket to the first in whatever order each rank has them ready: one that comes early waits for
  // those behind it.
  absl::Status ReplicaDone(int bucket);

  // Waits. Then the layout's extents of parameters.gradient() hold the gradient of the step, tied
  // tensors in the place of their first use here. Every bucket has had all its replicas. Collective
  // over groups.replicas and groups.stages.
  absl::Status Finish();

 private:
  at::Tensor BucketGradient(int bucket) const;
  absl::Status StartComplete();
  void ClearZeroRows();

  Ops& ops_;
  Parameters& parameters_;
  ShardLayout layout_;
  GradientSumsOptions options_;
  std::vector<ReplicaTree> trees_;              // of each bucket
  std::vector<int> done_;                       // virtual replicas, of each bucket
  int started_ = 0;                             // buckets from here on are being exchanged
  std::unique_ptr<GradientExchange> exchange_;  // null: one replica
  TiedSums tied_;
};

}  // namespace deepnet

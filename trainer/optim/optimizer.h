// From a step's gradient to new weights: norm, clipping, the decision to skip, Adam; on many ranks
// each replica updates its share and sends it to the others (ZeRO-1).
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

#include "parallel/plan/shard.h"
#include "proto/optim.pb.h"
#include "trainer/kernels/ops.h"
#include "trainer/model/parameters.h"
#include "trainer/optim/gradient_norm.h"
#include "trainer/optim/groups.h"
#include "trainer/optim/replica_check.h"

namespace deepnet {

// Updates between two comparisons of what ranks hold in common (replica_check.h).
inline constexpr int64_t kUpdatesPerReplicaCheck = 100;

struct UpdateResult {
  double gradient_norm = 0.0;  // before clipping, of the whole model (gradient_norm.h)
  double rate = 0.0;           // learning rate used
  bool skipped = false;        // loss or gradient was not finite: weights and moments are untouched
};

class OptimizerStep {
 public:
  // One rank with the whole model.
  OptimizerStep(const OptimSpec& optim, const Inventory& inventory);
  // A rank of many. `layout`: what this one holds of `whole`; its moments are those of the layout's
  // extents, layout.StateElements() each.
  OptimizerStep(const OptimSpec& optim, const Inventory& whole, ShardLayout layout, Groups groups);

  // Update number `update` >= 1 from the layout's extents of parameters.gradient(), as
  // GradientSums::Finish or Parameters::FoldTied left them. `loss` is the whole step's and only
  // looked at for being finite. All weights of the rank are new afterwards; working copies of them
  // are stale (Transformer::Refresh). Collective over the groups; every rank gets the same result.
  // Fails with ExitCode::kReplicasDisagree if ranks turn out to differ.
  absl::StatusOr<UpdateResult> Apply(Ops& ops, Parameters& parameters, int64_t update,
                                     double loss) const;

 private:
  struct Range {
    int64_t gradient = 0, weight = 0, state = 0;  // first elements, as in Extent
    int64_t count = 0;
    bool decayed = false;
  };

  void AddRange(const Range& range);
  void Update(Ops& ops, Parameters& parameters, int64_t update, double rate, double scale) const;
  absl::Status GatherWeights(const at::Tensor& weights) const;

  OptimSpec optim_;
  ShardLayout layout_;
  Groups groups_;
  GradientNorm norm_;
  ReplicaCheck replica_check_;
  std::vector<Range> ranges_;  // of equal weight decay, covering the extents in order
};

}  // namespace deepnet

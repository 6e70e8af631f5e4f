// Turns a step's gradient into new weights: norm, clipping, the decision to skip, Adam, and the
// weights' exponential moving average. With several replicas each one updates its share and sends
// it to the others (ZeRO-1).
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

#include "parallel/exec/trace.h"
#include "parallel/plan/shard.h"
#include "proto/optim.pb.h"
#include "trainer/kernels/ops.h"
#include "trainer/model/parameters.h"
#include "trainer/optim/groups.h"
#include "trainer/optim/replica_check.h"
#include "trainer/optim/step_totals.h"

namespace deepnet {

// Updates between two checks that ranks hold the same weights (replica_check.h).
inline constexpr int64_t kUpdatesPerReplicaCheck = 100;

// The figures of a step on which its update depends.
struct StepFigures {
  int64_t update = 1;          // the update's number, >= 1
  double gradient_norm = 0.0;  // OptimizerStep::Norm() times `unit`
  double loss = 0.0;           // of the whole step; like the norm, checked for being finite
  double unit = 1.0;           // undoes what the loss was scaled by
};

struct UpdateResult {
  double gradient_norm = 0.0;  // before clipping, of the whole model (step_totals.h)
  double rate = 0.0;           // learning rate used
  bool skipped = false;        // loss or gradient was not finite, or the update was withheld;
                               // weights and moments are untouched
};

class OptimizerStep {
 public:
  // `layout` says which elements of `whole` this rank holds; its moments are those of the layout's
  // extents, layout.StateElements() each.
  OptimizerStep(const OptimSpec& optim, const Inventory& whole, ShardLayout layout, Groups groups);

  // Returns the norm of the gradient that GradientSums::Finish left. Collective over the groups;
  // every rank gets the same. Waits as DeviceSession::ReadBack does.
  absl::StatusOr<double> Norm(Ops& ops, const Parameters& parameters) const {
    return norm_.Compute(ops, parameters.gradient(), groups_);
  }

  // Updates weights from the layout's extents of parameters.gradient(). Afterwards all weights of
  // the rank are new and their working copies are stale (Transformer::Refresh). Collective over the
  // groups; every rank gets the same result. Fails with ExitCode::kReplicasDisagree if ranks turn
  // out to differ. `trace`, which may be null, is told how long the new weights are gathered.
  absl::StatusOr<UpdateResult> Apply(Ops& ops, Parameters& parameters, const StepFigures& step,
                                     RankTrace* trace = nullptr) const;

  // Makes the average of parameters.average() that of the weights as they are, before the first
  // update and where a checkpoint has none; does nothing if none is kept.
  void BeginAverage(Parameters& parameters) const;

  // Returns the result of update number `update` >= 1 where it is not made.
  UpdateResult Withhold(int64_t update, double gradient_norm) const;

 private:
  struct Range {
    int64_t gradient = 0, weight = 0, state = 0;  // first elements, as in Extent
    int64_t count = 0;
    bool decayed = false;
  };

  void AddRange(const Range& range);
  void Update(Ops& ops, Parameters& parameters, int64_t update, double rate, double scale) const;
  void Average(Ops& ops, Parameters& parameters) const;
  absl::Status GatherWeights(const Ops& ops, const at::Tensor& weights) const;

  OptimSpec optim_;
  ShardLayout layout_;
  Groups groups_;
  GradientNorm norm_;
  ReplicaCheck replica_check_;
  std::vector<Range> ranges_;  // of equal weight decay, covering the extents in order
};

}  // namespace deepnet

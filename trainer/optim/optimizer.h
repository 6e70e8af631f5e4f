// Turns a step's gradient into new weights: norm, clipping, the decision to skip, Adam, and the
// weights' exponential moving average. With several replicas each one updates its share and sends
// it to the others (ZeRO-1).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include <ATen/core/Tensor.h>

#include "parallel/exec/trace.h"
#include "parallel/plan/shard.h"
#include "proto/optim.pb.h"
#include "trainer/kernels/ops.h"
#include "trainer/model/parameters.h"
#include "trainer/optim/groups.h"
#include "trainer/optim/step_totals.h"

namespace deepnet {

// Checks that ranks which should hold the same weights do so.
class ReplicaCheck {
 public:
  // `layout` says which elements of `whole` this rank holds. Neither is kept.
  ReplicaCheck(const Inventory& whole, const ShardLayout& layout);

  // Compares a CRC-32C of every tensor of `weights` over the replicas, and of every tied tensor
  // over the stages that hold it. Fails with ExitCode::kReplicasDisagree on every rank that sees a
  // difference; the text names the tensor and each rank's (of the world) checksum. Collective over
  // all groups; null groups are left out.
  absl::Status Run(const at::Tensor& weights, const Groups& groups) const;

 private:
  // A tensor that this rank holds, or that other stages may hold too.
  struct Compared {
    std::string name;
    bool here = false;
    bool tied = false;
    int64_t weight = 0, count = 0;  // elements of `weights`, if here
  };
  std::vector<Compared> compared_;  // in the order of the whole model
};

// Updates between two such checks.
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

  // Returns the norm of the whole gradient, of which GradientSums::Finish left the layout's
  // extents; not finite if an element is not. Collective over the groups; every rank gets the same.
  // Waits as DeviceSession::ReadBack does.
  absl::StatusOr<double> Norm(Ops& ops, const Parameters& parameters) const;

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

  void Update(Ops& ops, Parameters& parameters, int64_t update, double rate, double scale) const;
  void Average(Ops& ops, Parameters& parameters) const;
  absl::Status GatherWeights(const Ops& ops, const at::Tensor& weights) const;

  OptimSpec optim_;
  ShardLayout layout_;
  Groups groups_;
  size_t num_blocks_;  // of the whole model
  std::vector<BlockRun> block_runs_;
  ReplicaCheck replica_check_;
  std::vector<Range> ranges_;  // of equal weight decay, covering the extents in order
};

}  // namespace deepnet

// From a step's gradient to new weights: norm, clipping, the decision to skip, Adam.
#pragma once

#include <cstdint>
#include <vector>

#include "proto/optim.pb.h"
#include "trainer/kernels/ops.h"
#include "trainer/model/parameters.h"

namespace deepnet {

struct UpdateResult {
  double gradient_norm = 0.0;  // before clipping; sum over blocks of 4096 in the Inventory's order
  double rate = 0.0;           // learning rate used
  bool skipped = false;        // loss or gradient was not finite: weights and moments are untouched
};

class OptimizerStep {
 public:
  OptimizerStep(const OptimSpec& optim, const Inventory& inventory);

  // Update number `update` >= 1 from parameters.FoldedGradient(). `loss` is only looked at for
  // being finite. Working copies of the weights are stale afterwards (Transformer::Refresh).
  UpdateResult Apply(Ops& ops, Parameters& parameters, int64_t update, double loss) const;

 private:
  struct Range {
    int64_t begin = 0, count = 0;
    bool decayed = false;
  };

  OptimSpec optim_;
  std::vector<Range> ranges_;  // of equal weight decay, covering the flat buffer in order
};

}  // namespace deepnet

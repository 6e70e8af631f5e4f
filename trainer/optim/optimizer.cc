#include "trainer/optim/optimizer.h"

#include <cmath>

#include <ATen/ATen.h>

#include "trainer/optim/learning_rate.h"

namespace deepnet {

OptimizerStep::OptimizerStep(const OptimSpec& optim, const Inventory& inventory) : optim_(optim) {
  for (const Parameter& p : inventory.parameters) {
    const bool decayed = optim.weight_decay() != 0.0 && p.shape.size() == 2;
    if (ranges_.empty() || ranges_.back().decayed != decayed) {
      ranges_.push_back({p.offset, 0, decayed});
    }
    ranges_.back().count += p.NumElements();
  }
}

UpdateResult OptimizerStep::Apply(Ops& ops, Parameters& parameters, int64_t update,
                                  double loss) const {
  const at::Tensor gradient = parameters.FoldedGradient();
  UpdateResult result{.gradient_norm = std::sqrt(ops.SumSquares(gradient)),
                      .rate = LearningRate(optim_, update)};
  if (!std::isfinite(result.gradient_norm) || !std::isfinite(loss)) {
    result.skipped = true;
    return result;
  }
  double scale = 1.0;
  if (optim_.clip_norm() > 0 && result.gradient_norm > optim_.clip_norm()) {
    scale = optim_.clip_norm() / result.gradient_norm;
  }
  for (const Range& range : ranges_) {
    const auto slice = [&](const at::Tensor& x) { return x.narrow(0, range.begin, range.count); };
    ops.Adam({.weights = slice(parameters.weights()),
              .gradient = slice(gradient),
              .moment1 = slice(parameters.moment1()),
              .moment2 = slice(parameters.moment2()),
              .rate = result.rate,
              .beta1 = optim_.beta1(),
              .beta2 = optim_.beta2(),
              .epsilon = optim_.epsilon(),
              .weight_decay = range.decayed ? optim_.weight_decay() : 0.0,
              .gradient_scale = scale,
              .step = update,
              .fairseq_epsilon = optim_.optimizer() == ADAM});
  }
  return result;
}

}  // namespace deepnet

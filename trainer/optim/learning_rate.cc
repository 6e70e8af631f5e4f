#include "trainer/optim/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace deepnet {

double LearningRate(const OptimSpec& optim, int64_t update) {
  const double warmup = static_cast<double>(optim.warmup_steps());
  const double u = static_cast<double>(update);
  if (optim.schedule() == SHIFTED_INVERSE_SQRT) {
    const double shift = std::max(warmup, 1.0);
    return optim.learning_rate() * std::sqrt(shift / (shift + u));
  }
  if (u < warmup) {
    return optim.initial_learning_rate() +
           (optim.learning_rate() - optim.initial_learning_rate()) * u / warmup;
  }
  switch (optim.schedule()) {
    case INVERSE_SQRT:
      return optim.learning_rate() * std::sqrt(std::max(warmup, 1.0) / u);
    case COSINE: {
      const double span = std::max(1.0, static_cast<double>(optim.decay_steps()) - warmup);
      const double done = std::clamp((u - warmup) / span, 0.0, 1.0);
      const double share = 0.5 * (1.0 + std::cos(std::numbers::pi * done));
      return optim.final_learning_rate() +
             (optim.learning_rate() - optim.final_learning_rate()) * share;
    }
    case WSD: {
      const double span = static_cast<double>(optim.wsd_decay_steps());
      const double left = std::max(0.0, static_cast<double>(optim.decay_steps()) - u);
      if (left >= span) return optim.learning_rate();
      const double share = left / span;
      return optim.final_learning_rate() +
             (optim.learning_rate() - optim.final_learning_rate()) * share;
    }
    default:
      return optim.learning_rate();
  }
}

}  // namespace deepnet

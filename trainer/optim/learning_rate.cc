#include "trainer/optim/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "absl/strings/str_format.h"

namespace deepnet {
namespace {

int64_t StepTokens(const DataSpec& data) {
  return int64_t{data.global_microbatches()} * data.microbatch().max_target_tokens();
}

double RateFactor(const OptimSpec& optim, double k) {
  return optim.rate_scaling() == SQUARE_ROOT ? std::sqrt(k) : k;
}

}  // namespace

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
  const auto decayed = [&](double share) {
    return optim.final_learning_rate() +
           (optim.learning_rate() - optim.final_learning_rate()) * share;
  };
  switch (optim.schedule()) {
    case INVERSE_SQRT:
      return optim.learning_rate() * std::sqrt(std::max(warmup, 1.0) / u);
    case COSINE: {
      const double span = std::max(1.0, static_cast<double>(optim.decay_steps()) - warmup);
      const double done = std::clamp((u - warmup) / span, 0.0, 1.0);
      return decayed(0.5 * (1.0 + std::cos(std::numbers::pi * done)));
    }
    case WSD: {
      const double span = static_cast<double>(optim.wsd_decay_steps());
      const double left = std::max(0.0, static_cast<double>(optim.decay_steps()) - u);
      return left >= span ? optim.learning_rate() : decayed(left / span);
    }
    default:
      return optim.learning_rate();
  }
}

double BatchScale(const OptimSpec& optim, const DataSpec& data) {
  if (optim.reference_batch_tokens() == 0) return 1.0;
  return static_cast<double>(StepTokens(data)) /
         static_cast<double>(optim.reference_batch_tokens());
}

OptimSpec ScaledToBatch(OptimSpec optim, const DataSpec& data) {
  if (optim.reference_batch_tokens() == 0) return optim;
  const double k = BatchScale(optim, data);
  const double factor = RateFactor(optim, k);
  optim.set_learning_rate(optim.learning_rate() * factor);
  optim.set_initial_learning_rate(optim.initial_learning_rate() * factor);
  optim.set_final_learning_rate(optim.final_learning_rate() * factor);
  if (optim.warmup_steps() > 0) {
    const double steps = static_cast<double>(optim.warmup_steps()) / k;
    optim.set_warmup_steps(std::max<int64_t>(1, std::llround(steps)));
  }
  optim.clear_reference_batch_tokens();
  optim.clear_rate_scaling();
  return optim;
}

std::string BatchScaleText(const OptimSpec& optim, const DataSpec& data) {
  if (optim.reference_batch_tokens() == 0) return "";
  const double k = BatchScale(optim, data);
  return absl::StrFormat(
      "a step has up to %d target tokens, k = %.4g times optim.reference_batch_tokens: rates times "
      "%.4g (%s), warm-up of %d steps",
      StepTokens(data), k, RateFactor(optim, k), RateScaling_Name(optim.rate_scaling()),
      ScaledToBatch(optim, data).warmup_steps());
}

}  // namespace deepnet

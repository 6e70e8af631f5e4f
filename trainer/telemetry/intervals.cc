#include "trainer/telemetry/intervals.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace deepnet {

Interval CheckpointInterval(const TrainSpec& train) {
  return {.steps = train.checkpoint_every_steps(),
          .tokens = train.checkpoint_every_tokens(),
          .epochs = train.checkpoint_every_epochs(),
          .minutes = train.checkpoint_every_minutes()};
}

Interval ValidationInterval(const TrainSpec& train) {
  return {.steps = train.validate_every_steps(),
          .tokens = train.validate_every_tokens(),
          .epochs = train.validate_every_epochs(),
          .minutes = train.validate_every_minutes()};
}

bool IntervalClock::IsDue(int64_t step_tokens) const {
  if (interval_.steps > 0 && state_.step() % interval_.steps == 0) return true;
  if (interval_.tokens > 0) {
    const int64_t before = state_.target_tokens() - step_tokens;
    if (state_.target_tokens() / interval_.tokens > before / interval_.tokens) return true;
  }
  if (interval_.epochs > 0 && state_.step() > 0) {
    const double steps = interval_.epochs * steps_per_epoch_;
    const double now = static_cast<double>(state_.step());
    if (std::floor(now / steps) > std::floor((now - 1) / steps)) return true;
  }
  return interval_.minutes > 0 && seconds() >= 60 * interval_.minutes;
}

double IntervalClock::SecondsUntilDue(const Pace& pace) const {
  if (pace.seconds_per_step <= 0) return -1.0;
  double steps = std::numeric_limits<double>::infinity();
  const auto wait = [&steps](double more) {
    steps = std::min(steps, std::max(1.0, std::ceil(more)));
  };
  if (interval_.steps > 0) {
    wait(static_cast<double>(interval_.steps - state_.step() % interval_.steps));
  }
  if (interval_.tokens > 0 && pace.tokens_per_step > 0) {
    const int64_t missing = interval_.tokens - state_.target_tokens() % interval_.tokens;
    wait(static_cast<double>(missing) / pace.tokens_per_step);
  }
  if (interval_.epochs > 0) {
    const double length = interval_.epochs * steps_per_epoch_;
    const auto now = static_cast<double>(state_.step());
    wait((std::floor(now / length) + 1) * length - now);
  }
  if (interval_.minutes > 0) {
    wait((60 * interval_.minutes - seconds()) / pace.seconds_per_step);
  }
  return std::isinf(steps) ? -1.0 : steps * pace.seconds_per_step;
}

}  // namespace deepnet

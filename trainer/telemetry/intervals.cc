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

bool IsDue(const Interval& interval, const RunPosition& position) {
  if (interval.steps > 0 && position.step % interval.steps == 0) return true;
  if (interval.tokens > 0) {
    const int64_t before = position.target_tokens - position.step_tokens;
    if (position.target_tokens / interval.tokens > before / interval.tokens) return true;
  }
  if (interval.epochs > 0 && position.step > 0) {
    const double steps = interval.epochs * position.steps_per_epoch;
    const double now = static_cast<double>(position.step);
    if (std::floor(now / steps) > std::floor((now - 1) / steps)) return true;
  }
  return interval.minutes > 0 && position.seconds >= 60 * interval.minutes;
}

double SecondsUntilDue(const Interval& interval, const RunPosition& position, const Pace& pace) {
  if (pace.seconds_per_step <= 0) return -1.0;
  double steps = std::numeric_limits<double>::infinity();
  const auto wait = [&steps](double more) {
    steps = std::min(steps, std::max(1.0, std::ceil(more)));
  };
  if (interval.steps > 0) {
    wait(static_cast<double>(interval.steps - position.step % interval.steps));
  }
  if (interval.tokens > 0 && pace.tokens_per_step > 0) {
    const int64_t missing = interval.tokens - position.target_tokens % interval.tokens;
    wait(static_cast<double>(missing) / pace.tokens_per_step);
  }
  if (interval.epochs > 0) {
    const double length = interval.epochs * position.steps_per_epoch;
    const auto now = static_cast<double>(position.step);
    wait((std::floor(now / length) + 1) * length - now);
  }
  if (interval.minutes > 0) {
    wait((60 * interval.minutes - position.seconds) / pace.seconds_per_step);
  }
  return std::isinf(steps) ? -1.0 : steps * pace.seconds_per_step;
}

RunPosition IntervalClock::Position(int64_t step_tokens) const {
  return {.step = state_.step(),
          .target_tokens = state_.target_tokens(),
          .step_tokens = step_tokens,
          .steps_per_epoch = steps_per_epoch_,
          .seconds = state_.train_seconds() - started_seconds_};
}

bool IntervalClock::IsDue(int64_t step_tokens) const {
  return deepnet::IsDue(interval_, Position(step_tokens));
}

double IntervalClock::SecondsUntilDue(const Pace& pace) const {
  return deepnet::SecondsUntilDue(interval_, Position(/*step_tokens=*/0), pace);
}

}  // namespace deepnet

#include "trainer/intervals.h"

#include <cmath>

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

}  // namespace deepnet

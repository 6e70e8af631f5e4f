// When a run saves and validates: every so many steps, target tokens, epochs or minutes, whichever
// comes first.
#pragma once

#include <cstdint>

#include "proto/checkpoint.pb.h"
#include "proto/run.pb.h"

namespace deepnet {

// 0, or a negative number: not by this.
struct Interval {
  int64_t steps = 0;
  int64_t tokens = 0;    // target tokens with a label
  double epochs = 0.0;   // an epoch draws as many pairs as the run's directions have
  double minutes = 0.0;  // of training
};

Interval CheckpointInterval(const TrainSpec& train);
Interval ValidationInterval(const TrainSpec& train);

// Where a run is after a step.
struct RunPosition {
  int64_t step = 0;           // steps done
  int64_t target_tokens = 0;  // of the whole run
  int64_t step_tokens = 0;    // of the last step; 0: it was not trained on, or none was taken
  double steps_per_epoch = 0.0;
  double seconds = 0.0;  // of training since the last time
};

// Returns whether the last step reached a multiple of the interval's steps, reached or passed one
// of its tokens or epochs, or its minutes have passed. But for the minutes this is a function of
// the step, so it is the same on every layout and after every resume.
bool IsDue(const Interval& interval, const RunPosition& position);

// How fast a run trains. 0: not known.
struct Pace {
  double seconds_per_step = 0.0;
  double tokens_per_step = 0.0;  // target tokens
};

// Returns the seconds of training after which IsDue will next be true, if the run keeps its pace;
// negative: never, or not known. `position` is after a step whose own due is past.
double SecondsUntilDue(const Interval& interval, const RunPosition& position, const Pace& pace);

// Tells when a run is saved, or validated.
class IntervalClock {
 public:
  // `state` is kept current by the run and outlives this. Minutes count from now on.
  IntervalClock(const Interval& interval, const Manifest& state, double steps_per_epoch)
      : interval_(interval), state_(state), steps_per_epoch_(steps_per_epoch) {
    Restart();
  }

  // Counts minutes from now on.
  void Restart() { started_seconds_ = state_.train_seconds(); }

  // `step_tokens` are the target tokens of the last step.
  bool IsDue(int64_t step_tokens) const;
  double SecondsUntilDue(const Pace& pace) const;

 private:
  RunPosition Position(int64_t step_tokens) const;

  const Interval interval_;
  const Manifest& state_;
  const double steps_per_epoch_;
  double started_seconds_ = 0.0;  // of training
};

// Seconds of training until the next save and validation, as far as expected; negative: none before
// the run's end, or not known.
struct NextTimes {
  double save = -1.0, validation = -1.0;
};

}  // namespace deepnet

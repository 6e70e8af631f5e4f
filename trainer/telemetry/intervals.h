// Says when a run saves and validates: every so many steps, target tokens, epochs or minutes,
// whichever comes first.
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

// How fast a run trains. 0: not known.
struct Pace {
  double seconds_per_step = 0.0;
  double tokens_per_step = 0.0;  // target tokens
};

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

  // Returns whether the last step, of `step_tokens` target tokens (0: it was not trained on),
  // reached a multiple of the interval's steps, reached or passed one of its tokens or epochs, or
  // its minutes have passed. All but the minutes is the same on every layout and after a resume.
  bool IsDue(int64_t step_tokens) const;

  // Returns the seconds of training after which IsDue will next be true, if the run keeps its pace;
  // negative: never, or not known. Call it after a step whose own due is past.
  double SecondsUntilDue(const Pace& pace) const;

 private:
  double seconds() const { return state_.train_seconds() - started_seconds_; }

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

// Decides when a run validates, and what follows from the scores.
#pragma once

#include <cstdint>
#include <string>

#include "parallel/base/logging.h"
#include "proto/checkpoint.pb.h"
#include "proto/report.pb.h"
#include "proto/run.pb.h"
#include "trainer/telemetry/intervals.h"

namespace deepnet {

// The direction in which a metric improves.
enum class Better { kGreater, kSmaller };

// Records `value` of `metric` at state.step() if it beats the best so far or is the first; returns
// whether it did. A tie keeps the earlier step. Not-a-number is never the best; any number beats
// it.
bool UpdateBest(Manifest& state, const std::string& metric, double value, Better better);

struct ValidationOutcome {
  bool changed = false;  // the run's state
  bool is_best = false;  // one of the scores
};

class ValidationPolicy {
 public:
  // All arguments outlive this. The run keeps `state` current.
  ValidationPolicy(const TrainSpec& train, Manifest& state, double steps_per_epoch, Logger& log);

  // Returns whether a validation is due after a step of so many target tokens.
  bool IsDue(int64_t step_tokens) const { return clock_.IsDue(step_tokens); }
  // See intervals.h.
  double SecondsUntilDue(const Pace& pace) const { return clock_.SecondsUntilDue(pace); }

  // Returns whether the current step has been validated.
  bool IsDone() const { return validated_step_ == state_.step(); }

  // Tells that the current step has been validated.
  void Done();

  // The same, with the scores; without BLEU and nll they count for nothing.
  ValidationOutcome Count(const EvalRecord& record);

  // Returns whether train.patience validations in a row had no better score.
  bool IsOutOfPatience() const;

  // Forgets validations of later steps than the current one, to which the run went back.
  void GoBack();

 private:
  const TrainSpec& train_;
  Manifest& state_;
  IntervalClock clock_;
  Logger& log_;
  int64_t validated_step_ = -1;  // the last one; -1: none
};

}  // namespace deepnet

#include "trainer/validation_policy.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace deepnet {

bool UpdateBest(Manifest& state, const std::string& metric, double value, Better better) {
  if (std::isnan(value)) return false;
  BestScore* best = nullptr;
  for (BestScore& known : *state.mutable_best()) {
    if (known.metric() == metric) best = &known;
  }
  if (best == nullptr) {
    best = state.add_best();
    best->set_metric(metric);
  } else if (better == Better::kGreater ? value <= best->value() : value >= best->value()) {
    return false;  // a stored NaN compares false: any number beats it
  }
  best->set_value(value);
  best->set_step(state.step());
  return true;
}

ValidationPolicy::ValidationPolicy(const TrainSpec& train, Manifest& state, double steps_per_epoch,
                                   Logger& log)
    : train_(train),
      state_(state),
      clock_(ValidationInterval(train), state, steps_per_epoch),
      log_(log) {}

void ValidationPolicy::Done() {
  validated_step_ = state_.step();
  clock_.Restart();
}

ValidationOutcome ValidationPolicy::Count(const EvalRecord& record) {
  Done();
  if (!record.has_bleu() && !record.has_nll()) return {};
  const bool better_bleu =
      record.has_bleu() && UpdateBest(state_, "bleu", record.bleu(), Better::kGreater);
  const bool better_nll =
      record.has_nll() && UpdateBest(state_, "nll", record.nll(), Better::kSmaller);
  const bool is_best = better_bleu || better_nll;
  const bool counts = train_.patience() > 0;
  state_.set_validations_without_best(counts && !is_best ? state_.validations_without_best() + 1
                                                         : 0);
  if (IsOutOfPatience()) {
    log_.Info(absl::StrCat("train.patience: no better BLEU or nll in ",
                           state_.validations_without_best(),
                           " validations in a row; training ends"));
  }
  return {.changed = is_best || counts, .is_best = is_best};
}

bool ValidationPolicy::IsOutOfPatience() const {
  return train_.patience() > 0 && state_.validations_without_best() >= train_.patience();
}

void ValidationPolicy::GoBack() {
  if (validated_step_ > state_.step()) validated_step_ = -1;
}

}  // namespace deepnet

#include "trainer/optim/loss_scale.h"

#include <algorithm>

#include "parallel/base/exit_code.h"

namespace deepnet {
namespace {

constexpr double kFactor = 2.0;
constexpr double kInitScale = 128.0;
constexpr double kMinScale = 1e-4;
constexpr int64_t kWindow = 1 << 14;  // microbatches

}  // namespace

DynamicLossScale::DynamicLossScale(const OptimSpec& optim, int microbatches, const LossScale& state)
    : window_(optim.fp16_scale_window()),
      tolerance_(optim.fp16_scale_tolerance()),
      min_scale_(optim.min_loss_scale() > 0 ? optim.min_loss_scale() : kMinScale),
      threshold_(optim.threshold_loss_scale()),
      state_(state) {
  if (window_ == 0) window_ = std::max<int64_t>(1, kWindow / std::max(1, microbatches));
  if (state_.scale() > 0) return;
  state_.set_scale(optim.fp16_init_scale() > 0 ? optim.fp16_init_scale() : kInitScale);
  state_.set_last_overflow(-1);
  state_.set_last_change(-1);
}

absl::Status DynamicLossScale::Update(bool overflow) {
  if (overflow) return Overflow();
  if ((state_.steps() - state_.last_overflow()) % window_ == 0) {
    state_.set_scale(state_.scale() * kFactor);
    state_.set_last_change(state_.steps());
  }
  state_.set_steps(state_.steps() + 1);
  return absl::OkStatus();
}

absl::Status DynamicLossScale::Overflow() {
  const double before = state_.scale();
  state_.set_last_overflow(state_.steps());
  state_.set_overflows(state_.overflows() + 1);
  const auto since_change = static_cast<double>(state_.steps() - state_.last_change());
  if (static_cast<double>(state_.overflows()) / since_change >= tolerance_) {
    state_.set_scale(std::max(before / kFactor, threshold_));
    state_.set_last_change(state_.steps());
    state_.set_overflows(0);
  }
  state_.set_steps(state_.steps() + 1);
  if (state_.scale() > min_scale_) return absl::OkStatus();
  state_.set_scale(before);
  return DivergedError("minimum loss scale reached (optim.min_loss_scale: ", min_scale_,
                       "): the loss is probably exploding; try a smaller optim.learning_rate, "
                       "optim.clip_norm, or larger steps");
}

}  // namespace deepnet

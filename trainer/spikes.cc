#include "trainer/spikes.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "parallel/base/logging.h"

namespace deepnet {
namespace {

constexpr double kDeviationsOfMad = 1.4826;
constexpr double kLeastDeviation = 0.01;  // of the median

// Returns the middle of `values`, of an even number the upper one.
double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::span<const double> SpanOf(const google::protobuf::RepeatedField<double>& values) {
  return {values.data(), static_cast<size_t>(values.size())};
}

void DropOldest(int64_t most, google::protobuf::RepeatedField<double>& values) {
  const int old = values.size() - static_cast<int>(most);
  if (old > 0) values.erase(values.begin(), values.begin() + old);
}

}  // namespace

double BandLimit(std::span<const double> values, double deviations) {
  const double median = Median({values.begin(), values.end()});
  std::vector<double> distances;
  for (const double value : values) distances.push_back(std::abs(value - median));
  const double deviation =
      std::max(kDeviationsOfMad * Median(std::move(distances)), kLeastDeviation * std::abs(median));
  return median + deviations * deviation;
}

std::optional<SpikeRecord> FindSpike(const SpikeSpec& spec, const SpikeWindow& window, int64_t step,
                                     double loss, double gradient_norm) {
  if (!std::isfinite(loss) || !std::isfinite(gradient_norm)) return std::nullopt;
  if (2 * window.losses_size() < spec.window_steps()) return std::nullopt;
  SpikeRecord spike;
  spike.set_loss_limit(BandLimit(SpanOf(window.losses()), spec.deviations()));
  spike.set_gradient_norm_limit(BandLimit(SpanOf(window.gradient_norms()), spec.deviations()));
  if (loss <= spike.loss_limit() && gradient_norm <= spike.gradient_norm_limit()) {
    return std::nullopt;
  }
  spike.set_kind("spike");
  spike.set_step(step);
  spike.set_spike_step(step);
  spike.set_action(SpikeSpec::Action_Name(spec.action()));
  spike.set_loss(loss);
  spike.set_gradient_norm(gradient_norm);
  return spike;
}

void RememberStep(const SpikeSpec& spec, double loss, double gradient_norm, SpikeWindow& window) {
  if (!std::isfinite(loss) || !std::isfinite(gradient_norm)) return;
  window.add_losses(loss);
  window.add_gradient_norms(gradient_norm);
  DropOldest(spec.window_steps(), *window.mutable_losses());
  DropOldest(spec.window_steps(), *window.mutable_gradient_norms());
}

void LeaveOutAround(const SpikeSpec& spec, SpikeRecord& spike) {
  spike.set_first_left_out(std::max<int64_t>(1, spike.spike_step() - spec.steps_before()));
  spike.set_last_left_out(spike.spike_step() + spec.steps_after());
}

bool IsLeftOut(const Manifest& state, int64_t step) {
  return std::any_of(state.spikes().begin(), state.spikes().end(), [step](const SpikeRecord& s) {
    return s.first_left_out() <= step && step <= s.last_left_out();
  });
}

int64_t NumRollBacks(const Manifest& state) {
  return std::count_if(state.spikes().begin(), state.spikes().end(),
                       [](const SpikeRecord& spike) { return spike.last_left_out() > 0; });
}

std::string SpikeFigures(const SpikeRecord& spike) {
  return absl::StrFormat(
      "spike in step %s: loss %.3f (at most %.3f expected), gradient norm %.3g (at most %.3g "
      "expected)",
      WithCommas(spike.spike_step()), spike.loss(), spike.loss_limit(), spike.gradient_norm(),
      spike.gradient_norm_limit());
}

std::string SpikeLine(const SpikeRecord& spike) {
  const bool trained_on = spike.action() == SpikeSpec::Action_Name(SpikeSpec::WARN);
  if (spike.last_left_out() == 0) {
    return absl::StrCat(SpikeFigures(spike), trained_on ? "; trained on" : "; skipped");
  }
  return absl::StrCat(SpikeFigures(spike), "; went back to step ", WithCommas(spike.step()),
                      ", steps ", WithCommas(spike.first_left_out()), " to ",
                      WithCommas(spike.last_left_out()), " are left out");
}

}  // namespace deepnet

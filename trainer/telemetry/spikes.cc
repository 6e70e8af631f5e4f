#include "trainer/telemetry/spikes.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "parallel/base/logging.h"
#include "parallel/base/statistics.h"

namespace deepnet {
namespace {

constexpr double kDeviationsOfMad = 1.4826;
constexpr double kLeastLossDeviation = 0.01;  // of the median
constexpr double kLeastNormDeviation = 0.05;  // of a logarithm: 5 % of a norm

// Returns the logarithm to nine decimals: in the last bits, hosts with other instructions differ.
double LogOf(double norm) {
  constexpr double kDecimals = 1e9;
  return std::nearbyint(kDecimals * std::log(std::max(norm, 1e-30))) / kDecimals;
}

void DropOldest(int64_t most, google::protobuf::RepeatedField<double>& values) {
  const int old = values.size() - static_cast<int>(most);
  if (old > 0) values.erase(values.begin(), values.begin() + old);
}

}  // namespace

double BandLimit(std::span<const double> values, double deviations, double least_deviation) {
  std::vector<double> slopes = {0.0};  // of a single value
  for (size_t i = 0; i < values.size(); ++i) {
    for (size_t j = i + 1; j < values.size(); ++j) {
      slopes.push_back((values[j] - values[i]) / static_cast<double>(j - i));
    }
  }
  const double slope = Median(std::move(slopes));
  std::vector<double> levels;  // of each value, taken back to the first
  for (size_t i = 0; i < values.size(); ++i) {
    levels.push_back(values[i] - slope * static_cast<double>(i));
  }
  const double level = Median(levels);
  for (double& distance : levels) distance = std::abs(distance - level);
  const double deviation = std::max(kDeviationsOfMad * Median(std::move(levels)), least_deviation);
  const double expected = level + slope * static_cast<double>(values.size());
  return std::max(expected, Median({values.begin(), values.end()})) + deviations * deviation;
}

std::optional<SpikeRecord> FindSpike(const SpikeSpec& spec, const SpikeWindow& window, int64_t step,
                                     double loss, double gradient_norm) {
  if (!std::isfinite(loss) || !std::isfinite(gradient_norm)) return std::nullopt;
  if (2 * window.losses_size() < spec.window_steps()) return std::nullopt;
  const std::vector<double> losses(window.losses().begin(), window.losses().end());
  std::vector<double> logs;
  for (const double norm : window.gradient_norms()) logs.push_back(LogOf(norm));
  const double loss_limit =
      BandLimit(losses, spec.deviations(), kLeastLossDeviation * std::abs(Median(losses)));
  const double log_limit = BandLimit(logs, spec.deviations(), kLeastNormDeviation);
  if (loss <= loss_limit && LogOf(gradient_norm) <= log_limit) return std::nullopt;
  SpikeRecord spike;
  spike.set_loss_limit(loss_limit);
  spike.set_gradient_norm_limit(std::exp(log_limit));
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
  return absl::c_any_of(state.spikes(), [step](const SpikeRecord& spike) {
    return spike.first_left_out() <= step && step <= spike.last_left_out();
  });
}

int64_t NumRollBacks(const Manifest& state) {
  return absl::c_count_if(state.spikes(),
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

#include "trainer/telemetry/stragglers.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"

#include "parallel/base/statistics.h"

namespace deepnet {

std::optional<double> StragglerWatch::Add(double compute_seconds) {
  sum_seconds_ += compute_seconds;
  if (++num_steps_ < kStragglerSteps) return std::nullopt;
  return std::exchange(sum_seconds_, 0.0) / static_cast<double>(std::exchange(num_steps_, 0));
}

std::vector<double> StragglerWatch::Expected(std::span<const double> seconds) const {
  const auto stages = static_cast<size_t>(stages_);
  // Lower medians, so that the slower of two ranks can be found.
  std::vector<double> expected;
  if (seconds.size() > stages) {
    for (size_t rank = 0; rank < seconds.size(); ++rank) {
      std::vector<double> same_work;
      for (size_t i = rank % stages; i < seconds.size(); i += stages) {
        same_work.push_back(seconds[i]);
      }
      expected.push_back(LowerMedian(std::move(same_work)));
    }
    return expected;
  }
  if (shortest_.empty()) return expected;
  std::vector<double> paces;
  for (size_t rank = 0; rank < seconds.size(); ++rank) {
    paces.push_back(seconds[rank] / shortest_[rank]);
  }
  const double pace = std::max(1.0, LowerMedian(std::move(paces)));
  for (const double shortest : shortest_) expected.push_back(pace * shortest);
  return expected;
}

std::vector<Straggler> StragglerWatch::Look(std::span<const double> seconds) {
  std::vector<Straggler> stragglers;
  const std::set<size_t> before = std::exchange(stragglers_, {});
  const auto is_known = [](double figure) { return figure > 0; };
  if (seconds.size() < 2 || !std::all_of(seconds.begin(), seconds.end(), is_known)) {
    return stragglers;
  }
  const std::vector<double> expected = Expected(seconds);
  for (size_t rank = 0; rank < expected.size(); ++rank) {
    if (seconds[rank] <= kStragglerRatio * expected[rank]) continue;
    stragglers_.insert(rank);
    StragglerRecord& record =
        stragglers.emplace_back(Straggler{.is_new = !before.contains(rank)}).record;
    record.set_kind("straggler");
    record.set_rank(static_cast<int>(rank));
    record.set_compute_seconds(seconds[rank]);
    record.set_expected_seconds(expected[rank]);
  }
  if (shortest_.empty()) shortest_.assign(seconds.begin(), seconds.end());
  for (size_t rank = 0; rank < seconds.size(); ++rank) {
    shortest_[rank] = std::min(shortest_[rank], seconds[rank]);
  }
  return stragglers;
}

std::string StragglerLine(const StragglerRecord& record) {
  return absl::StrFormat(
      "straggler: rank %d on %s computes %.3f s a step, %.2f times as long as expected",
      record.rank(), record.host(), record.compute_seconds(),
      record.compute_seconds() / record.expected_seconds());
}

}  // namespace deepnet

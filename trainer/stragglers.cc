#include "trainer/stragglers.h"

#include <algorithm>

#include "absl/strings/str_format.h"

namespace deepnet {

std::vector<StragglerRecord> FindStragglers(std::span<const double> seconds,
                                            std::span<const double> work) {
  const auto is_known = [](double figure) { return figure > 0; };
  if (seconds.size() < 2 || !std::all_of(seconds.begin(), seconds.end(), is_known) ||
      !std::all_of(work.begin(), work.end(), is_known)) {
    return {};
  }
  std::vector<double> paces;  // seconds for a unit of work
  for (size_t rank = 0; rank < seconds.size(); ++rank) paces.push_back(seconds[rank] / work[rank]);
  // An even number has the lower middle here, so that the slower of two ranks can be found.
  const auto middle = paces.begin() + static_cast<std::ptrdiff_t>((paces.size() - 1) / 2);
  std::nth_element(paces.begin(), middle, paces.end());
  std::vector<StragglerRecord> stragglers;
  for (size_t rank = 0; rank < seconds.size(); ++rank) {
    const double expected = *middle * work[rank];
    if (seconds[rank] <= kStragglerRatio * expected) continue;
    StragglerRecord& record = stragglers.emplace_back();
    record.set_kind("straggler");
    record.set_rank(static_cast<int>(rank));
    record.set_compute_seconds(seconds[rank]);
    record.set_median_seconds(expected);
  }
  return stragglers;
}

std::string StragglerLine(const StragglerRecord& record) {
  return absl::StrFormat(
      "straggler: rank %d on %s computes %.3f s a step, %.2f times as long as the median rank "
      "would",
      record.rank(), record.host(), record.compute_seconds(),
      record.compute_seconds() / record.median_seconds());
}

}  // namespace deepnet

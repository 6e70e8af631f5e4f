// Binary search over the bottleneck: a limit is feasible if filling parts from the left needs no
// more than num_parts of them. The search runs over double's own numbers until two neighbours are
// left, so the result is exact for the sums as they are added here.

#include "parallel/plan/partition.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "parallel/base/check.h"

namespace deepnet {
namespace {

// Ends of parts filled from the left up to `limit`, each later part left at least one item; the
// last part takes the rest, whatever it costs.
std::vector<int> FillFromLeft(std::span<const double> costs, int num_parts, double limit) {
  const int num_items = static_cast<int>(costs.size());
  std::vector<int> ends;
  int item = 0;
  for (int part = 0; part + 1 < num_parts; ++part) {
    const int latest_end = num_items - (num_parts - 1 - part);
    double sum = costs[item++];
    while (item < latest_end && sum + costs[item] <= limit) sum += costs[item++];
    ends.push_back(item);
  }
  ends.push_back(num_items);
  return ends;
}

double CostOfLastPart(std::span<const double> costs, const std::vector<int>& ends) {
  const int begin = ends.size() > 1 ? ends[ends.size() - 2] : 0;
  return std::accumulate(costs.begin() + begin, costs.end(), 0.0);
}

}  // namespace

std::vector<int> PartitionByCost(std::span<const double> costs, int num_parts) {
  DEEPNET_CHECK(num_parts >= 1 && num_parts <= static_cast<int>(costs.size()))
      << num_parts << " parts of " << costs.size() << " items";
  const auto feasible = [&](double limit) {
    return CostOfLastPart(costs, FillFromLeft(costs, num_parts, limit)) <= limit;
  };
  double low = *std::max_element(costs.begin(), costs.end());
  if (feasible(low)) return FillFromLeft(costs, num_parts, low);
  double high = std::accumulate(costs.begin(), costs.end(), 0.0);
  for (double middle = std::midpoint(low, high); middle > low && middle < high;
       middle = std::midpoint(low, high)) {
    (feasible(middle) ? high : low) = middle;
  }
  return FillFromLeft(costs, num_parts, high);
}

}  // namespace deepnet

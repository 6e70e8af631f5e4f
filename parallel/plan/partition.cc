// PartitionByCost: a binary search over the bottleneck. A limit is feasible if filling parts from
// the left needs no more than num_parts of them. The search runs over double's own numbers until
// two neighbours are left, so the result is exact for the sums as they are added here.
//
// PartitionForRanks: every chunk gets a target first, and cuts go where the running sum of targets
// says; then items move. Moving an item from chunk i to chunk j shifts every border between them.

#include "parallel/plan/partition.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <optional>

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

constexpr int kMaxReceivers = 6;  // least loaded ranks that are tried
constexpr int kRoundsPerRank = 8;

// Returns what each chunk should cost: all the same, except that the last chunk costs at least its
// last item, and the other chunks of its rank share what remains of the rank's even share.
std::vector<double> Targets(std::span<const double> costs, const Placement& placement) {
  const int chunks = placement.NumChunks(), ranks = placement.NumRanks();
  const double total = std::accumulate(costs.begin(), costs.end(), 0.0);
  const double even = total / chunks, heavy = costs.back();
  std::vector<double> targets(chunks, even);
  if (heavy <= even) return targets;
  const int owner = placement.rank_of_chunk.back();
  const auto owned =
      std::count(placement.rank_of_chunk.begin(), placement.rank_of_chunk.end(), owner);
  const double rest = std::max(0.0, total / ranks - heavy);
  const double of_owner = owned > 1 ? rest / static_cast<double>(owned - 1) : 0.0;
  const double left = total - heavy - (owned > 1 ? rest : 0.0);
  const double of_others = left / static_cast<double>(std::max<int64_t>(1, chunks - owned));
  for (int c = 0; c + 1 < chunks; ++c) {
    targets[c] = placement.rank_of_chunk[c] == owner ? of_owner : of_others;
  }
  targets.back() = heavy;
  return targets;
}

// Cuts where the running sum comes closest to that of the targets, every chunk at least one item.
std::vector<int> CutByTargets(std::span<const double> costs, const std::vector<double>& targets) {
  const int items = static_cast<int>(costs.size()), chunks = static_cast<int>(targets.size());
  std::vector<int> ends;
  double sum = 0, wanted = 0;
  for (int c = 0, item = 0; c + 1 < chunks; ++c) {
    const int latest = items - (chunks - 1 - c);
    wanted += targets[c];
    sum += costs[item++];
    while (item < latest && std::abs(sum + costs[item] - wanted) <= std::abs(sum - wanted)) {
      sum += costs[item++];
    }
    ends.push_back(item);
  }
  ends.push_back(items);
  return ends;
}

struct Move {
  int from = 0, to = 0;  // chunks
};

class Refiner {
 public:
  Refiner(std::span<const double> costs, const Placement& placement, std::vector<int> ends)
      : costs_(costs), placement_(placement), ends_(std::move(ends)) {
    sums_ = CostOfRanks(costs_, ends_, placement_);
  }

  std::vector<int> Run() {
    const int rounds = kRoundsPerRank * placement_.NumRanks();
    for (int round = 0; round < rounds; ++round) {
      const std::optional<Move> move = BestMove();
      if (!move.has_value()) break;
      sums_ = SumsAfter(*move);
      for (int c = move->from; c < move->to; ++c) --ends_[c];
      for (int c = move->to; c < move->from; ++c) ++ends_[c];
    }
    return ends_;
  }

 private:
  int First(int chunk) const { return chunk == 0 ? 0 : ends_[chunk - 1]; }
  int Rank(int chunk) const { return placement_.rank_of_chunk[chunk]; }

  // Smaller is better: the fullest rank counts first, then how uneven all are.
  static std::array<double, 2> Badness(const std::vector<double>& sums) {
    double squares = 0;
    for (const double sum : sums) squares += sum * sum;
    return {*std::max_element(sums.begin(), sums.end()), squares};
  }

  std::vector<double> SumsAfter(const Move& move) const {
    std::vector<double> sums = sums_;
    const int step = move.to > move.from ? 1 : -1;
    for (int c = move.from; c != move.to; c += step) {
      const double cost = costs_[step > 0 ? ends_[c] - 1 : First(c)];  // leaves c for its neighbour
      sums[Rank(c)] -= cost;
      sums[Rank(c + step)] += cost;
    }
    return sums;
  }

  std::optional<Move> BestMove() const {
    const int ranks = placement_.NumRanks(), chunks = placement_.NumChunks();
    std::vector<int> order(ranks);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return sums_[a] < sums_[b]; });
    const int fullest = order.back();
    order.resize(std::min(kMaxReceivers, ranks - 1));

    std::array<double, 2> best = Badness(sums_);
    std::optional<Move> best_move;
    for (int from = 0; from < chunks; ++from) {
      if (Rank(from) != fullest || ends_[from] - First(from) == 1) continue;  // must keep one
      for (int to = 0; to < chunks; ++to) {
        const Move move{from, to};
        if (std::find(order.begin(), order.end(), Rank(to)) == order.end()) continue;
        const std::array<double, 2> badness = Badness(SumsAfter(move));
        if (badness >= best) continue;
        best = badness;
        best_move = move;
      }
    }
    return best_move;
  }

  std::span<const double> costs_;
  const Placement& placement_;
  std::vector<int> ends_;
  std::vector<double> sums_;  // [rank]
};

}  // namespace

int Placement::NumRanks() const {
  if (rank_of_chunk.empty()) return 0;
  return 1 + *std::max_element(rank_of_chunk.begin(), rank_of_chunk.end());
}

Placement MakeLooped(int ranks, int virtual_pipeline_size) {
  DEEPNET_CHECK(ranks > 0 && virtual_pipeline_size > 0);
  Placement placement;
  for (int c = 0; c < ranks * virtual_pipeline_size; ++c)
    placement.rank_of_chunk.push_back(c % ranks);
  return placement;
}

Placement MakeV(int ranks, int virtual_pipeline_size) {
  DEEPNET_CHECK(ranks > 0 && virtual_pipeline_size > 0);
  Placement placement;
  for (int c = 0; c < ranks * virtual_pipeline_size; ++c) {
    const int step = c % ranks, lap = c / ranks;
    placement.rank_of_chunk.push_back(lap % 2 == 0 ? step : ranks - 1 - step);
  }
  return placement;
}

std::vector<int> PartitionByCost(std::span<const double> costs, int num_parts) {
  DEEPNET_CHECK(num_parts >= 1 && num_parts <= static_cast<int>(costs.size()))
      << num_parts << " parts of " << costs.size() << " items";
  const auto feasible = [&](double limit) {
    const std::vector<int> ends = FillFromLeft(costs, num_parts, limit);
    const int last_part = num_parts > 1 ? ends[num_parts - 2] : 0;
    return std::accumulate(costs.begin() + last_part, costs.end(), 0.0) <= limit;
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

std::vector<double> CostOfRanks(std::span<const double> costs, std::span<const int> ends,
                                const Placement& placement) {
  std::vector<double> sums(placement.NumRanks(), 0.0);
  for (int c = 0, item = 0; c < placement.NumChunks(); ++c) {
    for (; item < ends[c]; ++item) sums[placement.rank_of_chunk[c]] += costs[item];
  }
  return sums;
}

std::vector<int> PartitionForRanks(std::span<const double> costs, const Placement& placement,
                                   bool refine) {
  const int chunks = placement.NumChunks();
  DEEPNET_CHECK(chunks >= 1 && chunks <= static_cast<int>(costs.size()))
      << chunks << " chunks of " << costs.size() << " items";
  if (chunks == placement.NumRanks()) return PartitionByCost(costs, chunks);
  std::vector<int> ends = CutByTargets(costs, Targets(costs, placement));
  return refine ? Refiner(costs, placement, std::move(ends)).Run() : ends;
}

}  // namespace deepnet

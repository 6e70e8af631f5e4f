#include "trainer/data/packing.h"

#include <algorithm>
#include <numeric>

namespace deepnet {
namespace {

struct Load {
  int64_t source = 0;
  int64_t target = 0;
  int64_t sentences = 0;

  bool HasRoom(const PairSize& pair, const Capacity& capacity) const {
    return source + pair.source <= capacity.source && target + pair.target <= capacity.target &&
           sentences < capacity.sentences;
  }
  void Add(const PairSize& pair) {
    source += pair.source;
    target += pair.target;
    sentences += 1;
  }
};

// Order of placement: by the larger relative size, then by index.
std::vector<int> LongestFirst(std::span<const PairSize> pairs, const Capacity& capacity) {
  // Cross-multiplied, so that relative sizes compare as whole numbers.
  const auto size = [&](int i) {
    return std::max(static_cast<int64_t>(pairs[i].source) * capacity.target,
                    static_cast<int64_t>(pairs[i].target) * std::max(1, capacity.source));
  };
  std::vector<int> order(pairs.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return size(a) > size(b); });
  return order;
}

}  // namespace

Packing PackBalanced(std::span<const PairSize> pairs, int num_microbatches,
                     const Capacity& capacity) {
  Packing packing;
  packing.microbatches.resize(num_microbatches);
  std::vector<Load> loads(num_microbatches);
  const double per_source = capacity.source > 0 ? 1.0 / capacity.source : 0.0;
  const double per_target = 1.0 / capacity.target;
  const double per_sentence = 1.0 / capacity.sentences;
  for (const int i : LongestFirst(pairs, capacity)) {
    int best = -1;
    double best_load = 0.0;
    for (int m = 0; m < num_microbatches; ++m) {
      const Load& load = loads[m];
      if (!load.HasRoom(pairs[i], capacity)) continue;
      const double after =
          std::max({static_cast<double>(load.source + pairs[i].source) * per_source,
                    static_cast<double>(load.target + pairs[i].target) * per_target,
                    static_cast<double>(load.sentences + 1) * per_sentence});
      if (best >= 0 && after >= best_load) continue;
      best = m;
      best_load = after;
    }
    if (best < 0) {
      packing.left.push_back(i);
      continue;
    }
    loads[best].Add(pairs[i]);
    packing.microbatches[best].push_back(i);
  }
  std::sort(packing.left.begin(), packing.left.end());
  return packing;
}

std::vector<int> PackFirstFit(std::span<const PairSize> sizes, std::span<const int> more,
                              const Capacity& capacity, Packing* packing) {
  std::vector<Load> loads(packing->microbatches.size());
  for (size_t m = 0; m < loads.size(); ++m) {
    for (const int i : packing->microbatches[m]) loads[m].Add(sizes[i]);
  }
  std::vector<int> left;
  for (const int i : more) {
    const auto room = std::find_if(loads.begin(), loads.end(), [&](const Load& load) {
      return load.HasRoom(sizes[i], capacity);
    });
    if (room == loads.end()) {
      left.push_back(i);
      continue;
    }
    room->Add(sizes[i]);
    packing->microbatches[room - loads.begin()].push_back(i);
  }
  return left;
}

}  // namespace deepnet

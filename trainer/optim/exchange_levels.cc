#include "trainer/optim/exchange_levels.h"

#include "parallel/base/check.h"

namespace deepnet {

std::vector<Communicator*> ExchangeLevels(const Groups& groups) {
  if (groups.replicas == nullptr || groups.replicas->size() == 1) return {};
  if (groups.node_replicas == nullptr) return {groups.replicas};
  DEEPNET_CHECK_EQ(groups.node_replicas->size() * groups.across_nodes->size(),
                   groups.replicas->size());
  return {groups.node_replicas, groups.across_nodes};
}

// Shares stand in the order of (rank at the first level, rank at the second,
// ..).
std::vector<int64_t> LevelBorders(const Piece& piece, const std::vector<Communicator*>& levels,
                                  size_t level) {
  int stride = static_cast<int>(piece.cuts.size()) - 1;
  int first = 0;
  for (size_t k = 0; k <= level; ++k) {
    stride /= levels[k]->size();
    if (k < level) first += levels[k]->rank() * stride;
  }
  std::vector<int64_t> borders;
  for (int r = 0; r <= levels[level]->size(); ++r)
    borders.push_back(piece.cuts[first + r * stride]);
  return borders;
}

}  // namespace deepnet

// The groups that replicas exchange gradients and weights over, from the
// innermost outwards: all at once, or those of a node first and then nodes
// among each other, so that what leaves a node is little.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel/comm/communicator.h"
#include "parallel/plan/shard.h"
#include "trainer/optim/groups.h"

namespace deepnet {

// {replicas}, or {node_replicas, across_nodes}; empty for one replica.
std::vector<Communicator*> ExchangeLevels(const Groups& groups);

// What `piece` is cut into for the ranks of levels[level]: rank r has elements
// borders[r] .. borders[r + 1] of the piece. Together they are what this rank
// has at the level before.
std::vector<int64_t> LevelBorders(const Piece& piece, const std::vector<Communicator*>& levels,
                                  size_t level);

}  // namespace deepnet

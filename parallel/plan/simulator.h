// Computes how long a schedule takes, given what each chunk costs.
//
// Ranks take their actions in order, each as soon as the rank is free and its inputs are there. A
// message starts when its action ends and costs the rank no time. Each ordered pair of ranks is one
// link, which carries one message at a time in the order of production; links are independent.
#pragma once

#include <limits>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

#include "parallel/plan/partition.h"
#include "parallel/plan/schedule.h"

namespace deepnet {

// The cost of one microbatch in one chunk.
struct ChunkCost {
  double forward = 0;          // seconds of F
  double backward_input = 0;   // seconds of I
  double backward_weight = 0;  // seconds of W; B takes backward_input + backward_weight
  double forward_bytes = 0;    // message over the cut before this chunk, if ranks differ there
  double backward_bytes = 0;   // message back over the same cut

  double Total() const { return forward + backward_input + backward_weight; }
  double Seconds(Op op) const;  // `op` computes
};

struct Link {
  double latency_seconds = 0;
  double bytes_per_second = std::numeric_limits<double>::infinity();
};

struct Network {
  Link inside_node, between_nodes;
  int ranks_per_node = std::numeric_limits<int>::max();  // rank r is on node r / ranks_per_node

  const Link& Between(int rank, int other) const {
    return rank / ranks_per_node == other / ranks_per_node ? inside_node : between_nodes;
  }
};

struct TimedAction {
  Action action;
  double start = 0, end = 0;  // seconds from the start of the step
};

struct Simulation {
  double makespan = 0;               // seconds until the last rank is done
  double bubble = 0;                 // 1 - busy / (ranks * makespan); 0 if nothing costs anything
  double exposed_communication = 0;  // part of the makespan that would vanish with free links
  std::vector<double> busy;          // [rank] seconds of computing
  std::vector<std::vector<TimedAction>> timeline;  // [rank], computing only, in order
};

// Transfers in `schedule` are skipped: the same ones are implied. `costs` has one element per chunk
// of the placement. Takes time proportional to the number of actions. InvalidArgument naming the
// rank and the action that waits for ever, or whose owner or chunk is not the placement's.
absl::StatusOr<Simulation> Simulate(const Schedule& schedule, const Placement& placement,
                                    std::span<const ChunkCost> costs, const Network& network = {});

}  // namespace deepnet

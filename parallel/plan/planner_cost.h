// Seconds: what layers, messages and exchanges of gradients take by the cluster's stated speeds.
// One model for the planner, `plan` and `rehearse`.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "parallel/plan/inventory.h"
#include "parallel/plan/memory.h"
#include "parallel/plan/partition.h"
#include "parallel/plan/simulator.h"
#include "proto/plan.pb.h"

namespace deepnet {

struct Speeds {
  double flops_per_second = 1e11;              // in matrix products
  double optimizer_params_per_second = 2.5e8;  // weights that the optimizer updates
  Network network;
};

// `cluster` with the defaults that ClusterSpec states filled in for `compute`.
Speeds MakeSpeeds(const ClusterSpec& cluster, const ComputeSpec& compute);

// Seconds of one full microbatch. Only matrix products take time: F, I and W of a layer are alike,
// but the output layer computes its gradients together with its loss, all in F.
struct LayerSeconds {
  double forward = 0, backward_input = 0, backward_weight = 0;

  double Total() const { return forward + backward_input + backward_weight; }
};
LayerSeconds SecondsOf(const Layer& layer, const Speeds& speeds);

// Total() of every layer: what cuts go by.
std::vector<double> LayerTotals(const Inventory& inventory, const Speeds& speeds);

// The optimizer's update of a rank that shares `weight_bytes` with `replicas` - 1 others: norm,
// Adam on its share, working copies.
double UpdateSeconds(int64_t weight_bytes, int replicas, const Speeds& speeds);

// One element per chunk; choices[r] is how rank r recomputes, which its I pays for.
std::vector<ChunkCost> MakeChunkCosts(const Inventory& inventory, std::span<const int> ends,
                                      const Placement& placement,
                                      std::span<const RecomputeChoice> choices,
                                      const MemoryRules& rules, const Speeds& speeds);

// The seconds that a step needs on one rank besides its pipeline and its update.
struct Exchange {
  double reduce = 0;  // gradients between replicas: hidden behind the last backward passes
  double gather = 0;  // updated weights between replicas
  double tied = 0;    // gradients of tied tensors between stages
};

// Bytes of one rank: of its accumulators, of its weights, and of the uses that other stages have of
// its tied tensors. `stages` ranks lie between two replicas of a stage.
Exchange ExchangeSeconds(int64_t gradient_bytes, int64_t weight_bytes, int64_t foreign_bytes,
                         int stages, int replicas, const Speeds& speeds);

}  // namespace deepnet

// One replica of a Plan as the values that schedules, simulators and executors take, and its
// seconds by the cluster's stated speeds: one model for the planner, `plan` and `rehearse`.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "parallel/plan/inventory.h"
#include "parallel/plan/partition.h"
#include "parallel/plan/schedule.h"
#include "parallel/plan/simulator.h"
#include "proto/data.pb.h"
#include "proto/instruments.pb.h"
#include "proto/optim.pb.h"
#include "proto/plan.pb.h"

namespace deepnet {

// The settings of a run that a plan depends on, all of them borrowed.
struct PlanSettings {
  const DataSpec& data;
  const OptimSpec& optim;
  const ComputeSpec& compute;
  const ClusterSpec& cluster;
  const ParallelSpec& parallel;
  const InstrumentsSpec& instruments = InstrumentsSpec::default_instance();
};

// Holds what a cluster states and, where it is silent, the speeds of a CPU, which are those here,
// or of a GPU's model.
struct Speeds {
  std::optional<DeviceModel> device;           // a GPU; absent on a CPU
  double flops_per_second = 1e11;              // in matrix products
  bool states_flops = false;                   // the cluster states that rate
  bool graphs = false;                         // compute.cuda_graphs
  DataType operands = DATA_TYPE_UNSPECIFIED;   // compute.dtype
  double optimizer_params_per_second = 2.5e8;  // weights of its share that a rank updates
  double refresh_seconds = 0;                  // for each weight of a rank, after an update
  Network network = {.inside_node = {.latency_seconds = 2e-5, .bytes_per_second = 4e9},
                     .between_nodes = {.latency_seconds = 2e-5, .bytes_per_second = 1.25e9}};
};

// Returns `cluster` with ClusterSpec's defaults for `compute` filled in. A device_model that
// FindDeviceModel refuses counts as the default one: planners have refused it before.
Speeds MakeSpeeds(const ClusterSpec& cluster, const ComputeSpec& compute);

// The end of a step on one stage.
struct StageExchange {
  double reduce_seconds = 0;  // gradients between replicas: hidden behind the last backward passes
  double gather_seconds = 0;  // updated weights between replicas
  double tied_seconds = 0;    // gradients of tied tensors between stages
  double update_seconds = 0;  // norm, Adam on the rank's share, working copies
  int64_t gradient_bytes = 0;
  int64_t weight_bytes = 0;
  int64_t foreign_bytes = 0;  // uses that other stages have of its tied tensors
};

// Returns those of a stage that needs `memory`. `stages` ranks lie between two of its `replicas`.
StageExchange MakeStageExchange(const MemoryEstimate& memory, int64_t foreign_bytes, int stages,
                                int replicas, const Speeds& speeds);

PipelineShape PipelineShapeOf(const Plan& plan, int replica = 0);
Placement PlacementOf(const Plan& plan);
std::vector<int> ChunkEnds(const Plan& plan);
std::vector<ChunkCost> ChunkCosts(const Plan& plan);

// Returns the messages over the cut before each chunk, [chunk].
std::vector<StageMessages> StageMessagesOf(const Plan& plan, const Inventory& inventory,
                                           const ComputeSpec& compute);

// Returns what plan.gradient_exchange_seconds and plan.update_seconds are made of, [stage].
// Arguments are those that `plan` was made for.
std::vector<StageExchange> StageExchanges(const Plan& plan, const Inventory& inventory,
                                          const ClusterSpec& cluster, const ComputeSpec& compute);

// Returns the bytes of each chunk's accumulators, [chunk].
std::vector<int64_t> GradientBytes(const Plan& plan, const Inventory& inventory);

// Returns the order of work of one replica's ranks, without transfers. `plan` is MakePlan's.
// Replicas differ at most in their number of microbatches (shard.h): the first has as many as any.
Schedule MakeSchedule(const Plan& plan, int replica = 0);

// The simulated step that plan.step_seconds is from. Arguments as above.
Simulation SimulatePlan(const Plan& plan, const ClusterSpec& cluster, const ComputeSpec& compute);

}  // namespace deepnet

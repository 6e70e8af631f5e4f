#include "parallel/plan/plan_accessors.h"

#include <string>
#include <utility>

#include "parallel/base/check.h"
#include "parallel/plan/device_model.h"
#include "parallel/plan/memory.h"
#include "parallel/plan/schedule_generators.h"
#include "parallel/plan/shard.h"

namespace deepnet {
namespace {

// Bytes that the update of a weight moves on a GPU. In a rank's share Adam reads four and writes
// three float32 numbers, and the norm reads the gradient. For all of its weights the gradient is
// filled with zeros, and an operand of 16 bits is made anew.
constexpr double kShareBytes = 7 * 4 + 4;
constexpr double kZeroBytes = 4, kOperandBytes = 4 + 2;
constexpr double kPeakShare = 0.4;  // that products reach where nobody has said more of a model

// Fields of a spec that are not above 0 leave `value` as it is.
void Set(double stated, double& value) {
  if (stated > 0) value = stated;
}

void Set(const LinkSpec& stated, Link& link) {
  Set(stated.latency_seconds(), link.latency_seconds);
  Set(stated.bytes_per_second(), link.bytes_per_second);
}

Speeds GpuSpeeds(const std::string& name, DataType dtype) {
  absl::StatusOr<DeviceModel> device = FindDeviceModel(name.empty() ? kDefaultDeviceModel : name);
  if (!device.ok()) device = FindDeviceModel(kDefaultDeviceModel);
  const double bytes_per_second = device->memory_bytes_per_second() * device->memory_share();
  Speeds speeds{
      .device = *device,
      .flops_per_second = kPeakShare * PeakFlops(*device, dtype),
      .optimizer_params_per_second = bytes_per_second / kShareBytes,
      .refresh_seconds = (kZeroBytes + (dtype == FLOAT32 ? 0 : kOperandBytes)) / bytes_per_second,
      .network = {}};
  Set(device->inside_node(), speeds.network.inside_node);
  Set(device->between_nodes(), speeds.network.between_nodes);
  return speeds;
}

}  // namespace

Speeds MakeSpeeds(const ClusterSpec& cluster, const ComputeSpec& compute) {
  const bool on_cpu = compute.device().empty() || compute.device() == "cpu";
  Speeds speeds = on_cpu ? Speeds() : GpuSpeeds(cluster.device_model(), compute.dtype());
  speeds.graphs = !on_cpu && compute.cuda_graphs();
  speeds.operands = compute.dtype();
  speeds.states_flops = cluster.flops_per_second() > 0;
  Set(cluster.flops_per_second(), speeds.flops_per_second);
  Set(cluster.optimizer_params_per_second(), speeds.optimizer_params_per_second);
  Set(cluster.inside_node(), speeds.network.inside_node);
  Set(cluster.between_nodes(), speeds.network.between_nodes);
  if (cluster.devices_per_node() > 0) speeds.network.ranks_per_node = cluster.devices_per_node();
  return speeds;
}

StageExchange MakeStageExchange(const MemoryEstimate& memory, int64_t foreign_bytes, int stages,
                                int replicas, const Speeds& speeds) {
  StageExchange exchange{.gradient_bytes = memory.gradients(),
                         .weight_bytes = memory.weights(),
                         .foreign_bytes = foreign_bytes};
  const auto seconds = [&](int64_t ranks, double messages, double bytes) {
    const Link& link = ranks <= speeds.network.ranks_per_node ? speeds.network.inside_node
                                                              : speeds.network.between_nodes;
    return messages * link.latency_seconds + bytes / link.bytes_per_second;
  };
  const auto gradients = static_cast<double>(memory.gradients());
  const auto weights = static_cast<double>(memory.weights());
  if (replicas > 1) {
    const int64_t ranks = int64_t{stages} * replicas;
    const double share = static_cast<double>(replicas - 1) / replicas;
    exchange.reduce_seconds = seconds(ranks, replicas - 1, share * gradients);
    exchange.gather_seconds = seconds(ranks, replicas - 1, share * weights);
  }
  if (foreign_bytes > 0) {
    exchange.tied_seconds = seconds(stages, 1, static_cast<double>(foreign_bytes) / replicas);
  }
  const double count = weights / sizeof(float);
  exchange.update_seconds =
      count / replicas / speeds.optimizer_params_per_second + count * speeds.refresh_seconds;
  return exchange;
}

Placement PlacementOf(const Plan& plan) {
  Placement placement;
  for (const ChunkPlan& chunk : plan.chunks()) placement.rank_of_chunk.push_back(chunk.rank());
  return placement;
}

std::vector<int> ChunkEnds(const Plan& plan) {
  std::vector<int> ends;
  for (const ChunkPlan& chunk : plan.chunks()) ends.push_back(chunk.end_layer());
  return ends;
}

std::vector<ChunkCost> ChunkCosts(const Plan& plan) {
  std::vector<ChunkCost> costs;
  for (const ChunkPlan& chunk : plan.chunks()) {
    costs.push_back({.forward = chunk.forward_seconds(),
                     .backward_input = chunk.backward_input_seconds(),
                     .backward_weight = chunk.backward_weight_seconds(),
                     .forward_bytes = static_cast<double>(chunk.forward_bytes()),
                     .backward_bytes = static_cast<double>(chunk.backward_bytes())});
  }
  return costs;
}

std::vector<StageMessages> StageMessagesOf(const Plan& plan, const Inventory& inventory,
                                           const ComputeSpec& compute) {
  return MakeStageMessages(inventory, ChunkEnds(plan), PlacementOf(plan),
                           MakeMemoryRules(compute).OperandType());
}

std::vector<StageExchange> StageExchanges(const Plan& plan, const Inventory& inventory,
                                          const ClusterSpec& cluster, const ComputeSpec& compute) {
  std::vector<RankUse> ranks(plan.pipeline_parallel_size());
  for (const ChunkPlan& chunk : plan.chunks()) {
    ranks[chunk.rank()].chunks.push_back({.layers = {chunk.first_layer(), chunk.end_layer()}});
  }
  std::vector<StageExchange> exchanges;
  for (int r = 0; r < plan.pipeline_parallel_size(); ++r) {
    exchanges.push_back(MakeStageExchange(
        plan.stages(r).memory(), ForeignBytes(inventory, ranks[r]), plan.pipeline_parallel_size(),
        plan.data_parallel_size(), MakeSpeeds(cluster, compute)));
  }
  return exchanges;
}

std::vector<int64_t> GradientBytes(const Plan& plan, const Inventory& inventory) {
  std::vector<int64_t> bytes;
  for (const ChunkPlan& chunk : plan.chunks()) {
    int64_t elements = 0;
    for (int l = chunk.first_layer(); l < chunk.end_layer(); ++l) {
      elements += GradientElements(inventory, inventory.layers[l]);
    }
    bytes.push_back(kFloatBytes * elements);
  }
  return bytes;
}

PipelineShape PipelineShapeOf(const Plan& plan, int replica) {
  return {
      .num_ranks = plan.pipeline_parallel_size(),
      .num_microbatches =
          MicrobatchesOf(plan.global_microbatches(), plan.data_parallel_size(), replica).Count(),
      .virtual_pipeline_size = plan.virtual_pipeline_size()};
}

Schedule MakeSchedule(const Plan& plan, int replica) {
  absl::StatusOr<Schedule> schedule =
      plan.schedule_text().empty()
          ? MakeNamedSchedule(plan.schedule(), PipelineShapeOf(plan, replica), ChunkCosts(plan))
          : ParseSchedule(plan.schedule_text());
  DEEPNET_CHECK(schedule.ok()) << schedule.status();
  return *std::move(schedule);
}

Simulation SimulatePlan(const Plan& plan, const ClusterSpec& cluster, const ComputeSpec& compute) {
  absl::StatusOr<Simulation> simulation =
      Simulate(MakeSchedule(plan), PlacementOf(plan), ChunkCosts(plan),
               MakeSpeeds(cluster, compute).network);
  DEEPNET_CHECK(simulation.ok()) << simulation.status();
  return *std::move(simulation);
}

}  // namespace deepnet

#include "parallel/plan/planner_cost.h"

#include <algorithm>
#include <string>

#include "parallel/plan/stage_messages.h"

namespace deepnet {
namespace {

constexpr double kLatencySeconds = 2e-5;

Link MakeLink(const LinkSpec& spec, double bytes_per_second) {
  return {
      .latency_seconds = spec.latency_seconds() > 0 ? spec.latency_seconds() : kLatencySeconds,
      .bytes_per_second = spec.bytes_per_second() > 0 ? spec.bytes_per_second() : bytes_per_second};
}

double DefaultFlops(const ComputeSpec& compute, bool on_cpu) {
  if (on_cpu) return 1e11;
  return compute.dtype() == FLOAT32 ? 3e13 : 3e14;
}

}  // namespace

Speeds MakeSpeeds(const ClusterSpec& cluster, const ComputeSpec& compute) {
  const bool on_cpu = compute.device().empty() || compute.device() == "cpu";
  Speeds speeds;
  speeds.flops_per_second =
      cluster.flops_per_second() > 0 ? cluster.flops_per_second() : DefaultFlops(compute, on_cpu);
  speeds.optimizer_params_per_second = cluster.optimizer_params_per_second() > 0
                                           ? cluster.optimizer_params_per_second()
                                       : on_cpu ? 2.5e8
                                                : 2e10;
  speeds.network.inside_node = MakeLink(cluster.inside_node(), on_cpu ? 4e9 : 3e11);
  speeds.network.between_nodes = MakeLink(cluster.between_nodes(), on_cpu ? 1.25e9 : 2.5e10);
  if (cluster.devices_per_node() > 0) speeds.network.ranks_per_node = cluster.devices_per_node();
  return speeds;
}

LayerSeconds SecondsOf(const Layer& layer, const Speeds& speeds) {
  const double seconds = layer.forward_flops / speeds.flops_per_second;
  if (layer.computes_loss) return {.forward = 3 * seconds};
  return {seconds, seconds, seconds};
}

double UpdateSeconds(int64_t weight_bytes, int replicas, const Speeds& speeds) {
  const double weights = static_cast<double>(weight_bytes) / sizeof(float);
  return weights / replicas / speeds.optimizer_params_per_second;
}

std::vector<double> LayerTotals(const Inventory& inventory, const Speeds& speeds) {
  std::vector<double> totals;
  totals.reserve(inventory.layers.size());
  for (const Layer& layer : inventory.layers) totals.push_back(SecondsOf(layer, speeds).Total());
  return totals;
}

std::vector<ChunkCost> MakeChunkCosts(const Inventory& inventory, std::span<const int> ends,
                                      const Placement& placement,
                                      std::span<const RecomputeChoice> choices,
                                      const MemoryRules& rules, const Speeds& speeds) {
  const std::string type = rules.operand_bytes == 2 ? "bfloat16" : "float32";
  const std::vector<StageMessages> messages = MakeStageMessages(inventory, ends, placement, type);
  std::vector<ChunkCost> costs(ends.size());
  for (int c = 0, first = 0; c < placement.NumChunks(); first = ends[c++]) {
    const RecomputeChoice& choice = choices[placement.rank_of_chunk[c]];
    ChunkCost& cost = costs[c];
    for (int l = first; l < ends[c]; ++l) {
      const Layer& layer = inventory.layers[l];
      const LayerSeconds seconds = SecondsOf(layer, speeds);
      cost.forward += seconds.forward;
      cost.backward_input +=
          seconds.backward_input + layer.recompute_flops[choice.level] / speeds.flops_per_second;
      cost.backward_weight += seconds.backward_weight;
    }
    const LayerSpan span{first, ends[c]};
    cost.kept_bytes = static_cast<double>(KeptBytes(inventory, span, choice, rules));
    cost.pending_bytes = static_cast<double>(PendingBytes(inventory, span, rules));
    cost.forward_bytes = static_cast<double>(BytesOf(messages[c].forward));
    cost.backward_bytes = static_cast<double>(BytesOf(messages[c].backward));
  }
  return costs;
}

Exchange ExchangeSeconds(int64_t gradient_bytes, int64_t weight_bytes, int64_t foreign_bytes,
                         int stages, int replicas, const Speeds& speeds) {
  const auto link = [&](int64_t ranks) -> const Link& {
    return ranks <= speeds.network.ranks_per_node ? speeds.network.inside_node
                                                  : speeds.network.between_nodes;
  };
  const auto seconds = [](const Link& link, double messages, double bytes) {
    return messages * link.latency_seconds + bytes / link.bytes_per_second;
  };
  Exchange exchange;
  if (replicas > 1) {
    const Link& wire = link(int64_t{stages} * replicas);
    const double share = static_cast<double>(replicas - 1) / replicas;
    exchange.reduce = seconds(wire, replicas - 1, share * static_cast<double>(gradient_bytes));
    exchange.gather = seconds(wire, replicas - 1, share * static_cast<double>(weight_bytes));
  }
  if (foreign_bytes > 0) {
    exchange.tied = seconds(link(stages), 1, static_cast<double>(foreign_bytes) / replicas);
  }
  return exchange;
}

}  // namespace deepnet

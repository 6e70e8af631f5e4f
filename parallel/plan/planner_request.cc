#include "parallel/plan/planner_request.h"

#include <algorithm>
#include <bit>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"

#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "parallel/base/units.h"
#include "parallel/plan/device_model.h"
#include "parallel/plan/schedule_generators.h"
#include "parallel/plan/shard.h"

namespace deepnet {
namespace {

constexpr double kSentenceBytesPerToken = 24;  // piece, position, pair, label, start, order

absl::Status CheckNumbers(const ParallelSpec& parallel, const ClusterSpec& cluster) {
  const auto fine = [](const LinkSpec& link) {
    return link.latency_seconds() >= 0 && link.bytes_per_second() >= 0;
  };
  struct Rule {
    bool kept;
    const char *field, *mistake = "must not be negative";
  };
  for (const auto& [kept, field, mistake] : {
           Rule{parallel.pipeline_parallel_size() >= 0, "parallel.pipeline_parallel_size"},
           Rule{parallel.data_parallel_size() >= 0, "parallel.data_parallel_size"},
           Rule{parallel.virtual_pipeline_size() >= 0, "parallel.virtual_pipeline_size"},
           Rule{parallel.recompute_segment() >= 0, "parallel.recompute_segment"},
           Rule{parallel.recompute_segment() <= 1 || parallel.recompute() == FULL,
                "parallel.recompute_segment", "only with recompute FULL"},
           Rule{fine(cluster.inside_node()), "cluster.inside_node"},
           Rule{fine(cluster.between_nodes()), "cluster.between_nodes"},
           Rule{cluster.flops_per_second() >= 0, "cluster.flops_per_second"},
           Rule{cluster.optimizer_params_per_second() >= 0, "cluster.optimizer_params_per_second"},
       }) {
    if (!kept) return ConfigError(field, ": ", mistake);
  }
  return absl::OkStatus();
}

// A schedule with a ':' is its text, not a name.
absl::Status ReadSchedule(const std::string& schedule, Request& request) {
  request.schedule = schedule;
  if (schedule.find(':') != std::string::npos) {
    absl::StatusOr<Schedule> parsed = ParseSchedule(schedule);
    if (!parsed.ok()) return ConfigError("parallel.schedule: ", parsed.status().message());
    request.custom = *std::move(parsed);
    return absl::OkStatus();
  }
  if (schedule.empty()) return absl::OkStatus();
  const ScheduleKind* kind = FindScheduleKind(schedule);
  if (kind == nullptr) return ConfigError(UnknownSchedule(schedule), ", or a file");
  request.schedule = kind->name;
  return absl::OkStatus();
}

// A model that no pipeline can cut gets one stage with one chunk; an error if more was asked for.
absl::Status KeepInOnePiece(const Inventory& inventory, Request& request) {
  if (inventory.one_piece.empty()) return absl::OkStatus();
  if (request.stages > 1 || request.virtual_pipeline_size > 1) {
    return ConfigError(request.stages > 1 ? "parallel.pipeline_parallel_size: "
                                          : "parallel.virtual_pipeline_size: ",
                       std::max(request.stages, request.virtual_pipeline_size), ": must be 1 with ",
                       inventory.one_piece);
  }
  request.stages = request.virtual_pipeline_size = 1;
  return absl::OkStatus();
}

// Without parallel.data_parallel_size the planner avoids sizes that give results other bits than
// other sizes do. A user who asks for such a size gets it.
absl::Status CheckReplicas(const Request& request, int replicas) {
  const int microbatches = request.global_microbatches;
  const std::string uneven =
      absl::StrCat(microbatches, " cannot be dealt evenly to data_parallel_size ", replicas);
  const std::string advice = absl::StrCat("; with parallel.data_parallel_size: ", replicas,
                                          " it runs, with other rounding");
  if (microbatches < replicas) {
    return ConfigError("parallel.data_parallel_size: ", replicas, " replicas, but a step has only ",
                       microbatches, " microbatches (data.global_microbatches)");
  }
  if (request.custom.has_value() && microbatches % replicas != 0) {
    return ConfigError("parallel.schedule: is for one number of microbatches, but ", uneven);
  }
  if (request.replicas != 0) return absl::OkStatus();
  if (microbatches % replicas != 0) {
    return ConfigError("data.global_microbatches: ", uneven, advice);
  }
  if (request.virtual_replicas % replicas != 0) {
    return ConfigError("optim.virtual_replicas: ", request.virtual_replicas,
                       " is not a multiple of data_parallel_size ", replicas,
                       std::has_single_bit(static_cast<unsigned>(replicas))
                           ? absl::StrCat("; give it ", replicas, " from the start")
                           : "",
                       advice);
  }
  if (request.virtual_replicas == 0 && !std::has_single_bit(static_cast<unsigned>(replicas))) {
    return ConfigError("parallel.data_parallel_size: ", replicas,
                       " would be optim.virtual_replicas, which is a power of two", advice);
  }
  return absl::OkStatus();
}

// The config of a schedule that a user wrote, for one replica.
absl::StatusOr<ParallelConfig> WrittenConfig(const Request& request) {
  const auto ranks = static_cast<int>(request.custom->actions.size());
  int chunks = 1;
  for (const std::vector<Action>& actions : request.custom->actions) {
    for (const Action& action : actions) chunks = std::max(chunks, action.chunk + 1);
  }
  if (ranks == 0 || chunks % ranks != 0) {
    return ConfigError("parallel.schedule: ", chunks, " chunks cannot be dealt to ", ranks,
                       " ranks evenly");
  }
  if (request.stages != 0 && request.stages != ranks) {
    return ConfigError("parallel.schedule: is for ", ranks,
                       " ranks, parallel.pipeline_parallel_size is ", request.stages);
  }
  return ParallelConfig{
      .stages = ranks, .schedule = "custom", .virtual_pipeline_size = chunks / ranks};
}

// Stages and replicas that the request allows.
std::vector<std::pair<int, int>> ListDegrees(const Request& request) {
  const int ranks = request.num_ranks;
  const auto replicas = [&](int stages) {
    return request.replicas != 0 ? request.replicas : std::max(1, ranks / stages);
  };
  if (request.stages != 0 || ranks == 0) {
    const int stages = std::max(1, request.stages);
    return {{stages, replicas(stages)}};
  }
  std::vector<std::pair<int, int>> degrees;
  for (int stages = 1; stages <= ranks; ++stages) {
    if (ranks % stages == 0) degrees.emplace_back(stages, replicas(stages));
  }
  return degrees;
}

// Worth trying: with more chunks a rank waits less and sends more.
std::vector<int> ChunkCounts(const ScheduleKind& kind) {
  if (kind.min_virtual_pipeline_size == kind.max_virtual_pipeline_size)
    return {kind.min_virtual_pipeline_size};
  return {2, 4, 8};
}

// The configs that are worth trying with named schedules.
std::vector<ParallelConfig> ListNamed(const Request& request, int stages, int replicas) {
  const int asked = request.virtual_pipeline_size;
  std::vector<ParallelConfig> configs;
  const auto add = [&](std::string_view schedule, int chunks) {
    configs.push_back({stages, replicas, std::string(schedule), chunks});
  };
  if (!request.schedule.empty()) {
    const ScheduleKind& kind = *FindScheduleKind(request.schedule);
    if (asked != 0 || stages == 1) {
      add(kind.name, asked != 0 ? asked : kind.min_virtual_pipeline_size);
    } else {
      for (const int chunks : ChunkCounts(kind)) add(kind.name, chunks);
    }
    return configs;
  }
  if (stages == 1 && asked <= 1) {
    add("single_stage", 1);
    return configs;
  }
  for (const ScheduleKind& kind : ScheduleKinds()) {
    if (kind.name == "single_stage" || kind.name == "gpipe") continue;  // never better than 1f1b
    for (const int chunks : ChunkCounts(kind)) {
      if (asked == 0 || chunks == asked) add(kind.name, chunks);
    }
  }
  if (configs.empty()) add("interleaved", asked);
  return configs;
}

}  // namespace

absl::StatusOr<Request> MakeRequest(const Inventory& inventory, const PlanSettings& settings) {
  const auto& [data, optim, compute, cluster, parallel, instruments] = settings;
  RETURN_IF_ERROR(CheckNumbers(parallel, cluster));
  if (const std::string& device = cluster.device_model(); !device.empty()) {
    RETURN_IF_ERROR(FindDeviceModel(device).status());
  }
  Request request{.inventory = &inventory,
                  .rules = MakeMemoryRules(compute),
                  .speeds = MakeSpeeds(cluster, compute),
                  .seconds = {},
                  .global_microbatches = std::max(1, data.global_microbatches()),
                  .virtual_replicas = optim.virtual_replicas(),
                  .one_sum_per_rank = parallel.gradient_sum() == FAST,
                  .stages = parallel.pipeline_parallel_size(),
                  .replicas = parallel.data_parallel_size(),
                  .virtual_pipeline_size = parallel.virtual_pipeline_size(),
                  .placement = parallel.placement()};
  if (request.virtual_replicas == 0) {
    request.virtual_replicas =
        DefaultVirtualReplicas(request.global_microbatches, std::max(0, request.replicas));
  }
  request.rules.snapshot = !request.rules.gpu && !parallel.blocking_saves();
  request.rules.average = optim.ema_decay() > 0;
  request.rules.instruments = instruments.every_steps() > 0;
  request.seconds = MakeLayerSeconds(inventory, request.speeds);
  RETURN_IF_ERROR(ReadSchedule(parallel.schedule(), request));
  RETURN_IF_ERROR(KeepInOnePiece(inventory, request));
  if (parallel.recompute() != RECOMPUTE_UNSPECIFIED) {
    request.recompute = {parallel.recompute(), std::max(1, parallel.recompute_segment())};
  }
  if (cluster.nodes() > 0 || cluster.devices_per_node() > 0) {
    request.num_ranks = std::max(1, cluster.nodes()) * std::max(1, cluster.devices_per_node());
  }
  if (compute.device() != "cuda") {
    const MicrobatchSpec& microbatch = data.microbatch();
    const double tokens = static_cast<double>(microbatch.max_source_tokens()) +
                          static_cast<double>(microbatch.max_target_tokens());
    request.sentence_bytes = 2 * kSentenceBytesPerToken * tokens * request.global_microbatches;
  }
  if (cluster.device_memory_gib() > 0) {
    request.memory_bytes =
        std::max(0.0, cluster.device_memory_gib() * kGib - request.sentence_bytes);
  }
  return request;
}

PipelineShape PipelineShapeOf(const Request& request, const ParallelConfig& config) {
  return {
      .num_ranks = config.stages,
      .num_microbatches = MicrobatchesOf(request.global_microbatches, config.replicas, 0).Count(),
      .virtual_pipeline_size = config.virtual_pipeline_size};
}

absl::StatusOr<Placement> PlacementOf(const Request& request, const ParallelConfig& config) {
  if (!request.custom.has_value()) {
    return MakeNamedPlacement(config.schedule, PipelineShapeOf(request, config));
  }
  Placement owners{std::vector<int>(config.stages * config.virtual_pipeline_size, 0)};
  for (size_t rank = 0; rank < request.custom->actions.size(); ++rank) {
    for (const Action& action : request.custom->actions[rank]) {
      if (action.chunk >= owners.NumChunks()) continue;
      owners.rank_of_chunk[action.chunk] = static_cast<int>(rank);
    }
  }
  return owners;
}

PlacementShape PlacementShapeOf(const Request& request, const ParallelConfig& config) {
  if (request.custom.has_value()) return request.placement;
  return FindScheduleKind(config.schedule)->v_shaped ? V : LOOPED;
}

absl::Status CheckConfig(const Request& request, const ParallelConfig& config) {
  const auto layers = static_cast<int64_t>(request.inventory->layers.size());
  if (config.stages > layers) {
    return ConfigError("parallel.pipeline_parallel_size: ", config.stages,
                       " stages, but the model has only ", layers, " layers to cut between");
  }
  if (int64_t{config.stages} * config.virtual_pipeline_size > layers) {
    return ConfigError("parallel.virtual_pipeline_size: ", config.stages, " x ",
                       config.virtual_pipeline_size, " chunks, but the model has only ", layers,
                       " layers to cut between");
  }
  const int64_t ranks = int64_t{config.stages} * config.replicas;
  if (request.num_ranks != 0 && ranks != request.num_ranks) {
    return ConfigError("parallel: pipeline_parallel_size ", config.stages, " x data_parallel_size ",
                       config.replicas, " = ", ranks, " ranks, but cluster has ",
                       request.num_ranks);
  }
  RETURN_IF_ERROR(CheckReplicas(request, config.replicas));
  RETURN_IF_ERROR(PlacementOf(request, config).status());
  const PlacementShape made = PlacementShapeOf(request, config);
  if (request.placement == PLACEMENT_UNSPECIFIED || request.placement == made) {
    return absl::OkStatus();
  }
  return ConfigError("parallel.placement: schedule \"", config.schedule, "\" is ",
                     PlacementShape_Name(made), ", not ", PlacementShape_Name(request.placement));
}

absl::StatusOr<std::vector<ParallelConfig>> ListConfigs(const Request& request) {
  std::vector<ParallelConfig> configs;
  absl::Status first_error;
  const auto add = [&](const ParallelConfig& config) {
    const absl::Status status = CheckConfig(request, config);
    if (status.ok()) configs.push_back(config);
    first_error.Update(status);
  };
  ParallelConfig written;
  if (request.custom.has_value()) {
    ASSIGN_OR_RETURN(written, WrittenConfig(request));
  }
  for (const auto& [stages, replicas] : ListDegrees(request)) {
    if (!request.custom.has_value()) {
      for (const ParallelConfig& config : ListNamed(request, stages, replicas)) add(config);
    } else if (stages == written.stages) {
      written.replicas = replicas;
      add(written);
    }
  }
  if (!configs.empty()) return configs;
  RETURN_IF_ERROR(first_error);
  return ConfigError("parallel.schedule: is for ", written.stages,
                     " ranks, which cluster does not have");
}

}  // namespace deepnet

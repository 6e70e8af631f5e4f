#include "parallel/plan/planner_request.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "parallel/base/units.h"
#include "parallel/plan/schedule_generators.h"
#include "parallel/plan/schedule_text.h"

namespace deepnet {
namespace {

absl::Status CheckNumbers(const ParallelSpec& parallel) {
  const auto not_negative = [](int value, const char* name) {
    if (value >= 0) return absl::OkStatus();
    return BadField(absl::StrCat("parallel.", name, ": must not be negative"));
  };
  RETURN_IF_ERROR(not_negative(parallel.pipeline_parallel_size(), "pipeline_parallel_size"));
  RETURN_IF_ERROR(not_negative(parallel.data_parallel_size(), "data_parallel_size"));
  RETURN_IF_ERROR(not_negative(parallel.virtual_pipeline_size(), "virtual_pipeline_size"));
  RETURN_IF_ERROR(not_negative(parallel.recompute_segment(), "recompute_segment"));
  if (parallel.recompute_segment() > 1 && parallel.recompute() != FULL) {
    return BadField("parallel.recompute_segment: only with recompute FULL");
  }
  return absl::OkStatus();
}

absl::Status CheckLink(const LinkSpec& link, const char* name) {
  if (link.latency_seconds() >= 0 && link.bytes_per_second() >= 0) return absl::OkStatus();
  return BadField(absl::StrCat("cluster.", name, ": must not be negative"));
}

absl::Status CheckSpeeds(const ClusterSpec& cluster) {
  RETURN_IF_ERROR(CheckLink(cluster.inside_node(), "inside_node"));
  RETURN_IF_ERROR(CheckLink(cluster.between_nodes(), "between_nodes"));
  if (cluster.flops_per_second() < 0) {
    return BadField("cluster.flops_per_second: must not be negative");
  }
  if (cluster.optimizer_params_per_second() >= 0) return absl::OkStatus();
  return BadField("cluster.optimizer_params_per_second: must not be negative");
}

// Returns true if `schedule` is a schedule's text, not the name of one.
bool IsText(const std::string& schedule) { return schedule.find(':') != std::string::npos; }

absl::Status ReadSchedule(const std::string& schedule, Request& request) {
  request.schedule = schedule;
  if (IsText(schedule)) {
    absl::StatusOr<Schedule> parsed = ParseSchedule(schedule);
    if (!parsed.ok())
      return BadField(absl::StrCat("parallel.schedule: ", parsed.status().message()));
    request.custom = *std::move(parsed);
    return absl::OkStatus();
  }
  if (schedule.empty()) return absl::OkStatus();
  if (const ScheduleKind* kind = FindScheduleKind(schedule)) {
    request.schedule = kind->name;
    return absl::OkStatus();
  }
  return BadField(absl::StrCat("parallel.schedule: \"", schedule, "\" is unknown; known: ",
                               absl::StrJoin(ScheduleKinds(), ", ",
                                             [](std::string* out, const ScheduleKind& kind) {
                                               absl::StrAppend(out, std::string(kind.name));
                                             }),
                               ", or a file"));
}

// A model that no pipeline can cut gets one stage with one chunk; an error if more was asked for.
absl::Status KeepInOnePiece(const Inventory& inventory, Request& request) {
  if (inventory.one_piece.empty()) return absl::OkStatus();
  if (request.stages > 1 || request.virtual_pipeline_size > 1) {
    return BadField(absl::StrCat(request.stages > 1 ? "parallel.pipeline_parallel_size: "
                                                    : "parallel.virtual_pipeline_size: ",
                                 std::max(request.stages, request.virtual_pipeline_size),
                                 ": must be 1 with ", inventory.one_piece));
  }
  request.stages = request.virtual_pipeline_size = 1;
  return absl::OkStatus();
}

}  // namespace

absl::Status BadField(const std::string& message) {
  return WithExitCode(absl::InvalidArgumentError(message), ExitCode::kBadConfig);
}

absl::StatusOr<Request> MakeRequest(const Inventory& inventory, const DataSpec& data,
                                    const OptimSpec& optim, const ComputeSpec& compute,
                                    const ClusterSpec& cluster, const ParallelSpec& parallel,
                                    const InstrumentsSpec& instruments) {
  RETURN_IF_ERROR(CheckNumbers(parallel));
  RETURN_IF_ERROR(CheckSpeeds(cluster));
  Request request{.inventory = &inventory,
                  .rules = MakeMemoryRules(compute, parallel, instruments),
                  .speeds = MakeSpeeds(cluster, compute)};
  RETURN_IF_ERROR(ReadSchedule(parallel.schedule(), request));
  request.global_microbatches = std::max(1, data.global_microbatches());
  request.virtual_replicas = optim.virtual_replicas();
  request.one_sum_per_rank = parallel.gradient_sum() == FAST;
  request.stages = parallel.pipeline_parallel_size();
  request.replicas = parallel.data_parallel_size();
  request.virtual_pipeline_size = parallel.virtual_pipeline_size();
  request.placement = parallel.placement();
  RETURN_IF_ERROR(KeepInOnePiece(inventory, request));
  if (parallel.recompute() != RECOMPUTE_UNSPECIFIED) {
    request.recompute = {parallel.recompute(), std::max(1, parallel.recompute_segment())};
  }
  request.devices_per_node = std::max(1, cluster.devices_per_node());
  if (cluster.nodes() > 0 || cluster.devices_per_node() > 0) {
    request.num_ranks = std::max(1, cluster.nodes()) * request.devices_per_node;
  }
  if (cluster.device_memory_gib() > 0) request.memory_bytes = cluster.device_memory_gib() * kGib;
  return request;
}

}  // namespace deepnet

// (Inventory, what the user asked for) -> Plan: who computes which layers, in which order, with how
// many bytes, in how long; or why that cannot be. Pure and fast (1,000 layers on 512 ranks: under
// two seconds), so it runs before anything is allocated. How it decides: docs/design/planner.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "parallel/plan/inventory.h"
#include "parallel/plan/plan_accessors.h"
#include "proto/plan.pb.h"

namespace deepnet {

// Returns the plan of the fastest config, by simulation, of those that fit and that `parallel`
// allows (ListConfigs). The model is cut into pipeline_parallel_size x virtual_pipeline_size chunks
// of about equal cost per rank; replicas repeat the pipeline: rank = replica *
// pipeline_parallel_size + stage. What is left open is decided: degrees, schedule, chunks, and for
// each rank the cheapest recomputation with which it fits.
//
// Reads data.global_microbatches, microbatch; optim.virtual_replicas, ema_decay; compute.device,
// dtype, matmul, isa, cuda_graphs; instruments.every_steps; all of cluster and parallel.
// cluster.device_memory_gib 0 means unlimited; without nodes and devices_per_node the job has
// the ranks that `parallel` asks for (1 if nothing). parallel.schedule is a name or a text.
//
// Fails with InvalidArgument (ExitCode::kBadConfig) naming the field, or ResourceExhausted
// (ExitCode::kDoesNotFit) naming the rank, what it needs, what it has, and the nearest config that
// would fit: on the ranks that there are if possible, else on more.
//
// `*warning` becomes what the default of optim.virtual_replicas costs, if that is much.
absl::StatusOr<Plan> MakePlan(const Inventory& inventory, const PlanSettings& settings,
                              std::string* warning = nullptr);

// Returns the plan that MakePlan's ResourceExhausted is about; nullopt for other errors.
std::optional<Plan> ClosestPlan(const absl::Status& status);

// Returns `cluster` with device_memory_gib, if it is 0, set to the share that each of a host's
// ranks (devices_per_node, at least 1) has of `host_bytes`.
ClusterSpec WithMemoryShare(ClusterSpec cluster, int64_t host_bytes);

}  // namespace deepnet

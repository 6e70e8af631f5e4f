// (Inventory, what the user asked for) -> Plan: who computes which layers, in which order, with how
// many bytes; or why that cannot be. Pure and fast (1,000 layers on 512 ranks: milliseconds), so it
// runs before anything is allocated, and `deepnet plan` needs neither a corpus nor the machines.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "parallel/plan/inventory.h"
#include "parallel/plan/schedule.h"
#include "proto/data.pb.h"
#include "proto/optim.pb.h"
#include "proto/plan.pb.h"

namespace deepnet {

// Layers are cut into contiguous stages whose most expensive one is as cheap as can be (three times
// forward operations), one stage a rank; replicas repeat the pipeline: rank = replica * stages +
// stage. Stages run "1f1b", one stage alone "trivial" (schedule.h). Left open, the pipeline is as
// short as memory allows and the remaining ranks are replicas.
//
// Read: data.microbatches_per_step; optim.virtual_replicas; compute.device, dtype, matmul; all of
// cluster and parallel. cluster.device_memory_gib 0 means unlimited; without nodes and
// devices_per_node the job has exactly the ranks that `parallel` asks for (1 if nothing).
//
// Fails with InvalidArgument (ExitCode::kBadConfig) naming the field, or ResourceExhausted
// (ExitCode::kDoesNotFit) naming the rank, what it needs, what it has, and the nearest layout
// that would fit: the shortest pipeline, with smaller microbatches if nothing else helps.
absl::StatusOr<Plan> MakePlan(const Inventory& inventory, const DataSpec& data,
                              const OptimSpec& optim, const ComputeSpec& compute,
                              const ClusterSpec& cluster, const ParallelSpec& parallel);

// The plan that MakePlan's ResourceExhausted is about, for whoever wants to look at it; nothing for
// other errors.
std::optional<Plan> ClosestPlan(const absl::Status& status);

// The order of work of one replica's ranks, by plan.schedule().
Schedule MakeSchedule(const Plan& plan);

// A table for people: one row a stage of the first replica, bytes by category.
std::string ToText(const Plan& plan, const Inventory& inventory);

}  // namespace deepnet

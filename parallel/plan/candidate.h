// One candidate of the planner's search on its way to a Plan: cuts, placement, what each rank
// computes again, schedule, costs.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "parallel/plan/memory.h"
#include "parallel/plan/partition.h"
#include "parallel/plan/planner_request.h"
#include "parallel/plan/simulator.h"
#include "parallel/plan/stage_messages.h"
#include "proto/plan.pb.h"

namespace deepnet {

// The cuts of one replica.
struct Cuts {
  Placement placement;
  std::vector<int> ends;
  std::vector<StageMessages> messages;  // [chunk]
  std::vector<int64_t> message_bytes;   // [chunk] over both of its cuts, one microbatch
  std::vector<std::vector<PendingMatrices>> pending;  // [chunk] see memory.h
};
Cuts MakeCuts(const Request& request, Placement placement, std::vector<int> ends);

// Everything but the recomputation of each rank, [rank].
std::vector<RankUse> MakeRankUses(const Request& request, const Cuts& cuts,
                                  const InFlight& in_flight, int replicas);

// The cheapest of NONE, SELECTIVE_FFN, SELECTIVE_GEMM and FULL with which `rank` fits (or the
// request's own); FULL with the segment that needs least, also if that does not fit.
RecomputeChoice CheapestThatFits(const Request& request, RankUse rank);

struct ParallelConfig {
  int stages = 1, replicas = 1;
  std::string schedule =
      "single_stage";  // a name; ignored if the request has a schedule of its own
  int virtual_pipeline_size = 1;
  std::vector<int> ends = {};  // of chunks; empty: cut by cost

  int64_t NumRanks() const { return int64_t{stages} * replicas; }
  friend bool operator==(const ParallelConfig&, const ParallelConfig&) = default;
};

// OK if `config` can run at all, whatever memory it needs: chunks, ranks, microbatches, virtual
// replicas, placement. InvalidArgument (kBadConfig) naming the field if not.
absl::Status CheckConfig(const Request& request, const ParallelConfig& config);

// Returns the placement of the config's chunks.
PlacementShape ShapeName(const Request& request, const ParallelConfig& config);

struct Candidate {
  Cuts cuts;
  std::vector<RecomputeChoice> choices;  // [rank]
  std::vector<ChunkCost> costs;          // [chunk]
  Schedule schedule;
  InFlight in_flight;
  std::vector<RankUse> ranks;  // with their choices
  Simulation simulation;       // of the schedule
};

// `config`, which has passed CheckConfig, with a schedule and what each rank must recompute under
// it, simulated. Fails if a schedule that a user wrote does not pass CheckSchedule.
absl::StatusOr<Candidate> MakeCandidate(const Request& request, const ParallelConfig& config);

// The same without a schedule: by what schedules of this name claim to keep in flight, and without
// counting what lies at cuts. `refine`:
// see PartitionForRanks.
absl::StatusOr<Candidate> MakeCoarseCandidate(const Request& request, const ParallelConfig& config,
                                              bool refine);

// Every replica needs a microbatch, and a schedule that a user wrote equally many on all replicas.
// If the request leaves the number of replicas open, it must also share the microbatches evenly and
// divide the virtual replicas, so that results have the bits of any other number of ranks.
// InvalidArgument (kBadConfig) naming the field.
absl::Status CheckReplicas(const Request& request, const ParallelConfig& config);

// The plan of `config` for one replica (stages of the others are missing), whose every rank
// recomputes as little as lets it fit; what fits nowhere takes the least memory. `timeline`, if
// given, gets the simulated step. Errors as CheckConfig's and MakeCandidate's.
absl::StatusOr<Plan> MakeOneReplica(const Request& request, const ParallelConfig& config,
                                    Simulation* timeline = nullptr);

// The stage that needs most; whether it has as much.
const StagePlan& Fullest(const Plan& plan);
bool Fits(const Request& request, const Plan& plan);

}  // namespace deepnet

// (RunSpec, Plan, rank) -> what one rank holds and does: its chunks of the model, the schedule it
// follows, the sums it takes part in. The one place where the model and parallelism meet.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "parallel/base/host.h"
#include "parallel/comm/communicator.h"
#include "parallel/plan/inventory.h"
#include "parallel/plan/partition.h"
#include "parallel/plan/schedule.h"
#include "parallel/plan/shard.h"
#include "proto/plan.pb.h"
#include "proto/run.pb.h"
#include "trainer/kernels/ops.h"
#include "trainer/model/transformer.h"
#include "trainer/optim/gradient_sums.h"
#include "trainer/optim/groups.h"
#include "trainer/optim/optimizer.h"
#include "trainer/transformer_stage.h"

namespace deepnet {

// Rank = replica * stages + stage. Later members use earlier ones.
struct RankPart {
  Communicator* world = nullptr;  // all ranks
  std::unique_ptr<Communicator>
      pipeline;        // the stages of this replica, for the schedule's messages
  OwnedGroups groups;  // for sums
  int stage = 0, replica = 0, num_replicas = 1;
  Placement placement;
  Schedule schedule;   // of all stages, with transfers
  ShardLayout layout;  // what this rank adds up and updates

  std::unique_ptr<Ops> ops;
  std::unique_ptr<Transformer> model;  // weights not yet set
  std::unique_ptr<GradientSums> sums;
  std::unique_ptr<TransformerStage> chunks;
  std::unique_ptr<OptimizerStep> optimizer;
};

// The plan of one rank that computes all: a schedule of `microbatches` one after the other.
Plan LonePlan(const Inventory& whole, int microbatches);

// `run` and `plan` are those that StartRun settled, `whole` describes the model. Collective over
// `world`, which must outlive the result; every rank gives the same arguments, but `node`: ranks
// that give the same name share a node, and sums go inside nodes first where ReplicasPerNode finds
// that they can.
absl::StatusOr<std::unique_ptr<RankPart>> MakeRankPart(const RunSpec& run, const Inventory& whole,
                                                       const Plan& plan, Communicator& world,
                                                       const std::string& node = HostName());

}  // namespace deepnet

// Turns (RunSpec, Plan, rank) into what one rank holds: its chunks of the model, its schedule, its
// process groups.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"

#include "parallel/base/clock.h"
#include "parallel/base/host.h"
#include "parallel/comm/communicator.h"
#include "parallel/plan/inventory.h"
#include "parallel/plan/partition.h"
#include "parallel/plan/schedule.h"
#include "parallel/plan/shard.h"
#include "proto/plan.pb.h"
#include "proto/run.pb.h"
#include "trainer/decode/pipeline_link.h"
#include "trainer/kernels/device_errors.h"
#include "trainer/kernels/ops.h"
#include "trainer/kernels/traced_ops.h"
#include "trainer/model/transformer.h"
#include "trainer/optim/gradient_sums.h"
#include "trainer/optim/groups.h"
#include "trainer/optim/loss_scale.h"
#include "trainer/optim/optimizer.h"
#include "trainer/pipeline_stage.h"

namespace deepnet {

// Everything that one rank holds. Rank = dp_rank * stages + pp_rank. Later members use earlier
// ones.
struct RankContext {
  Communicator* world = nullptr;           // all ranks
  std::unique_ptr<Communicator> pipeline;  // this replica's stages, for the schedule's messages
  OwnedGroups groups;                      // for sums
  int pp_rank = 0;                         // pipeline stage
  int dp_rank = 0, dp_size = 1;            // replica, number of replicas
  Placement placement;
  PipelineRoute route;     // of a forward pass alone, through the stages
  Schedule schedule;       // of all stages, with transfers
  ShardLayout layout;      // which elements this rank sums and updates
  MemoryEstimate planned;  // 0 in all: the plan does not say
  PhaseClock phases;       // of MakeRankContext; whoever goes on from there adds to them

  std::unique_ptr<Ops> ops;
  TracedOps* traced = nullptr;         // `ops`, if it is traced; else null
  std::unique_ptr<Transformer> model;  // MakeRankContext leaves its weights unset
  std::unique_ptr<GradientSums> sums;
  std::unique_ptr<PipelineStage> stage;
  std::unique_ptr<OptimizerStep> optimizer;
  std::unique_ptr<DynamicLossScale> loss_scale;  // with FLOAT16; else null

  // Ends messages that have not arrived, and with them all further use.
  void GiveUpMessages() {
    sums.reset();
    pipeline.reset();
    groups = OwnedGroups();
  }

  DeviceUse device_use() const { return {ops.get(), planned.total()}; }
};

// Returns the plan of a single rank: one chunk, `microbatches` computed one after the other.
Plan LonePlan(const Inventory& whole, int microbatches);

struct RankOptions {
  std::string node = HostName();  // ranks that pass the same name share a node
  bool traced = false;            // kernels can be traced
};

// Builds this rank's part of a run. `run` and `plan` come from ResolveRun. Collective over `world`,
// which outlives the result. Every rank passes the same arguments except the node: gradients are
// summed inside nodes first where ReplicasPerNode allows.
absl::StatusOr<std::unique_ptr<RankContext>> MakeRankContext(const RunSpec& run,
                                                             const Inventory& whole,
                                                             const Plan& plan, Communicator& world,
                                                             const RankOptions& options = {});

}  // namespace deepnet

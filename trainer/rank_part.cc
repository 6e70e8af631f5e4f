#include "trainer/rank_part.h"

#include <utility>

#include "parallel/base/check.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/collectives.h"
#include "parallel/exec/watchdog.h"
#include "parallel/plan/check_schedule.h"
#include "parallel/plan/plan_accessors.h"
#include "parallel/plan/planner.h"
#include "parallel/plan/shard.h"
#include "trainer/kernels/compute.h"

namespace deepnet {
namespace {

// The chunks of one stage: their numbers along the chain, and what they are made of.
struct OwnChunks {
  std::vector<int> numbers;
  std::vector<ChunkSpec> specs;
};

OwnChunks ChunksOf(const Plan& plan, int stage) {
  OwnChunks own;
  for (int number = 0; number < plan.chunks_size(); ++number) {
    const ChunkPlan& chunk = plan.chunks(number);
    if (chunk.rank() != stage) continue;
    own.numbers.push_back(number);
    own.specs.push_back({.layers = {chunk.first_layer(), chunk.end_layer()},
                         .recompute = {chunk.recompute(), chunk.recompute_segment()}});
  }
  return own;
}

ShardLayout LayoutOf(const Inventory& whole, const Plan& plan, const Transformer& model,
                     int replica, int replicas_per_node) {
  ShardOptions options{.num_replicas = plan.data_parallel_size(),
                       .replica = replica,
                       .replicas_per_node = replicas_per_node};
  for (const ChunkPlan& chunk : plan.chunks()) {
    options.stage_of_layer.resize(chunk.end_layer(), chunk.rank());
  }
  return MakeShardLayout(whole, model.parameters().inventory(), MakeBuckets(model), options);
}

}  // namespace

Plan LonePlan(const Inventory& whole, int microbatches) {
  Plan plan;
  plan.set_pipeline_parallel_size(1);
  plan.set_data_parallel_size(1);
  plan.set_chunks_per_rank(1);
  plan.set_schedule("single_stage");
  plan.set_microbatches_per_step(microbatches);
  plan.set_virtual_replicas(1);
  ChunkPlan& chunk = *plan.add_chunks();
  chunk.set_end_layer(static_cast<int>(whole.layers.size()));
  chunk.set_recompute(NONE);
  return plan;
}

absl::StatusOr<std::unique_ptr<RankPart>> MakeRankPart(const RunSpec& run, const Inventory& whole,
                                                       const Plan& plan, Communicator& world,
                                                       const std::string& node) {
  auto part = std::make_unique<RankPart>();
  const int stages = plan.pipeline_parallel_size();
  DEEPNET_CHECK_EQ(world.size(), stages * plan.data_parallel_size());
  part->world = &world;
  part->stage = world.rank() % stages;
  part->replica = world.rank() / stages;
  part->num_replicas = plan.data_parallel_size();
  ASSIGN_OR_RETURN(part->pipeline, world.Split(part->replica, part->stage));
  ASSIGN_OR_RETURN(const std::vector<std::string> nodes, AllGatherText(world, node));
  const int replicas_per_node = ReplicasPerNode(nodes, stages);
  ASSIGN_OR_RETURN(part->groups, SplitGroups(world, part->stage, part->replica, replicas_per_node));
  part->groups.all.limit = MakeTimeLimits(run.parallel(), /*first_step=*/true).message;
  part->placement = PlacementOf(plan);
  ASSIGN_OR_RETURN(part->schedule,
                   WithTransfers(MakeSchedule(plan, part->replica), part->placement));

  const OwnChunks own = ChunksOf(plan, part->stage);
  ASSIGN_OR_RETURN(part->ops, MakeOps(run.compute()));
  part->model = std::make_unique<Transformer>(run.model(), run.data().microbatch(), *part->ops,
                                              /*trainable=*/true, own.specs);
  part->layout = LayoutOf(whole, plan, *part->model, part->replica, replicas_per_node);
  const int local_replicas =
      LocalVirtualReplicas(run.optim().virtual_replicas(), part->num_replicas);
  part->sums = std::make_unique<GradientSums>(
      *part->ops, part->model->parameters(), part->layout, part->groups.all,
      GradientSumsOptions{.local_replicas = local_replicas,
                          .order = run.parallel().gradient_sum()});
  part->chunks = std::make_unique<TransformerStage>(
      *part->model,
      StageOptions{.seed = run.seed(),
                   .label_smoothing = run.optim().label_smoothing(),
                   .virtual_replicas = local_replicas,
                   .chunks = own.numbers,
                   .crossings = StageMessagesOf(plan, whole, run.compute())},
      *part->sums);
  part->optimizer =
      std::make_unique<OptimizerStep>(run.optim(), whole, part->layout, part->groups.all);
  return part;
}

}  // namespace deepnet

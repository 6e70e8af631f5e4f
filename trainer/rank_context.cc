#include "trainer/rank_context.h"

#include <algorithm>
#include <set>
#include <utility>

#include "parallel/base/check.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/agreement.h"
#include "parallel/comm/heartbeat.h"
#include "parallel/exec/pipeline_executor.h"
#include "parallel/plan/check_schedule.h"
#include "parallel/plan/memory.h"
#include "parallel/plan/plan_accessors.h"
#include "trainer/kernels/aten.h"
#include "trainer/kernels/compute.h"
#include "trainer/optim/learning_rate.h"

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

// Makes the rank's operations, and takes the memory that the plan has for it.
absl::Status MakeOpsWithMemory(const ComputeSpec& compute, bool traced, const Inventory& whole,
                               const Plan& plan, RankContext& context) {
  RETURN_IF_ERROR(CatchErrors([&]() -> absl::Status {
    ASSIGN_OR_RETURN(context.ops, MakeOps(compute));
    if (!traced) return absl::OkStatus();
    std::unique_ptr<TracedOps> ops = Traced(std::move(context.ops));
    context.traced = ops.get();
    context.ops = std::move(ops);
    return absl::OkStatus();
  }));
  return CatchErrors(
      [&] {
        const MicrobatchRange own =
            MicrobatchesOf(plan.global_microbatches(), context.dp_size, context.dp_rank);
        context.ops->session().Reserve(ArenaBytes(context.planned), own.Count(), whole.batch_bytes);
        return absl::OkStatus();
      },
      context.device_use());
}

// Connects this rank with those between which and itself the schedule has messages.
absl::Status ConnectPipeline(const RankContext& context, const Buffer& scratch) {
  std::set<int> to, from;
  for (const Action& action : context.schedule.actions[context.pp_rank]) {
    if (!IsTransfer(action.op)) continue;
    ASSIGN_OR_RETURN(const Route route, RouteOf(action, context.placement));
    (route.send ? to : from).insert(route.peer);
  }
  return context.pipeline->Connect(
      {.to = {to.begin(), to.end()}, .from = {from.begin(), from.end()}, .scratch = scratch},
      context.groups.all.limit);
}

// Connects the stages that sum a tied tensor.
absl::Status ConnectTied(const RankContext& context, const Buffer& scratch) {
  std::set<int> peers;
  for (const TiedTensor& tensor : context.layout.tied) {
    for (const TiedTensor::Use& use : tensor.uses) peers.insert(use.stage);
  }
  peers.erase(context.pp_rank);
  const std::vector<int> list(peers.begin(), peers.end());
  return context.groups.stages->Connect({.to = list, .from = list, .scratch = scratch},
                                        context.groups.all.limit);
}

// Connects the GPUs of all ranks that exchange anything in a step: to connect takes memory and
// waits for the device, which a receive that is under way would prevent.
absl::Status ConnectDevices(GradientSum order, const RankContext& context) {
  const at::Tensor& gradient = context.model->parameters().gradient();
  const Buffer scratch = BufferOf(*context.ops, gradient);
  absl::Status status = ConnectPipeline(context, scratch);
  if (status.ok()) status = ConnectTied(context, scratch);
  int64_t most = 0;  // elements of a piece
  for (const std::vector<GradientPiece>& bucket : context.layout.pieces) {
    for (const GradientPiece& piece : bucket) most = std::max(most, piece.of.count);
  }
  Communicator::Connections links{
      .all_gather = true,
      .scratch = BufferOf(*context.ops, gradient.narrow(0, 0, most)),
  };
  links.reduce_scatter = SumsOnTheWay(order, gradient);
  links.all_to_all = !links.reduce_scatter;
  for (Communicator* level : ExchangeLevels(context.groups.all)) {
    if (status.ok()) status = level->Connect(links, context.groups.all.limit);
  }
  EndJobUnlessAgreed(*context.world, status);  // peers may wait for this rank inside of NCCL
  return status;
}

}  // namespace

Plan LonePlan(const Inventory& whole, int microbatches) {
  Plan plan;
  plan.set_pipeline_parallel_size(1);
  plan.set_data_parallel_size(1);
  plan.set_virtual_pipeline_size(1);
  plan.set_schedule("single_stage");
  plan.set_global_microbatches(microbatches);
  plan.set_virtual_replicas(1);
  ChunkPlan& chunk = *plan.add_chunks();
  chunk.set_end_layer(static_cast<int>(whole.layers.size()));
  chunk.set_recompute(NONE);
  return plan;
}

absl::StatusOr<std::unique_ptr<RankContext>> MakeRankContext(const RunSpec& run,
                                                             const Inventory& whole,
                                                             const Plan& plan, Communicator& world,
                                                             const RankOptions& options) {
  auto context = std::make_unique<RankContext>();
  const int stages = plan.pipeline_parallel_size();
  DEEPNET_CHECK_EQ(world.size(), stages * plan.data_parallel_size());
  context->world = &world;
  context->pp_rank = world.rank() % stages;
  context->dp_rank = world.rank() / stages;
  context->dp_size = plan.data_parallel_size();
  ASSIGN_OR_RETURN(context->pipeline, world.Split(context->dp_rank, context->pp_rank));
  ASSIGN_OR_RETURN(const std::vector<std::string> nodes, AllGatherText(world, options.node));
  const int replicas_per_node = ReplicasPerNode(nodes, stages);
  ASSIGN_OR_RETURN(context->groups,
                   SplitGroups(world, context->pp_rank, context->dp_rank, replicas_per_node));
  context->groups.all.limit = CommTimeout(run.parallel(), /*first_step=*/true);
  context->placement = PlacementOf(plan);
  context->route = MakePipelineRoute(whole, ChunkEnds(plan), context->placement, context->pp_rank);
  ASSIGN_OR_RETURN(context->schedule,
                   WithTransfers(MakeSchedule(plan, context->dp_rank), context->placement));
  context->phases.End("schedule");

  const OwnChunks own = ChunksOf(plan, context->pp_rank);
  if (world.rank() < plan.stages_size()) context->planned = plan.stages(world.rank()).memory();
  RETURN_IF_ERROR(AgreeOnStatus(
      world, MakeOpsWithMemory(run.compute(), options.traced, whole, plan, *context)));
  context->phases.End("device");
  context->model =
      std::make_unique<Transformer>(run.model(), run.data().microbatch(), *context->ops,
                                    /*trainable=*/true, own.specs);
  context->layout = LayoutOf(whole, plan, *context->model, context->dp_rank, replicas_per_node);
  const int local_replicas = LocalVirtualReplicas(run.optim().virtual_replicas(), context->dp_size);
  context->sums = std::make_unique<GradientSums>(
      *context->ops, context->model->parameters(), context->layout, context->groups.all,
      GradientSumsOptions{.local_replicas = local_replicas,
                          .order = run.parallel().gradient_sum()});
  context->stage = std::make_unique<PipelineStage>(
      *context->model,
      PipelineStageOptions{.seed = run.seed(),
                           .label_smoothing = run.optim().label_smoothing(),
                           .virtual_replicas = local_replicas,
                           .chunks = own.numbers,
                           .messages = StageMessagesOf(plan, whole, run.compute())},
      *context->sums);
  context->optimizer = std::make_unique<OptimizerStep>(ScaledToBatch(run.optim(), run.data()),
                                                       whole, context->layout, context->groups.all);
  if (run.optim().ema_decay() > 0) context->model->parameters().KeepAverage();
  if (run.compute().dtype() == FLOAT16) {
    context->loss_scale = std::make_unique<DynamicLossScale>(
        run.optim(), run.data().global_microbatches(), LossScale());
  }
  context->phases.End("model");
  if (!context->model->parameters().gradient().is_cpu()) {
    RETURN_IF_ERROR(ConnectDevices(run.parallel().gradient_sum(), *context));
  }
  context->phases.End("links");
  return context;
}

}  // namespace deepnet

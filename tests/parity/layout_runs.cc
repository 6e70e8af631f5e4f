#include "tests/parity/layout_runs.h"

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include <gtest/gtest.h>

#include "parallel/base/status_macros.h"
#include "parallel/comm/communicator.h"
#include "parallel/plan/partition.h"
#include "parallel/plan/planner.h"
#include "parallel/plan/schedule.h"
#include "tests/support/counting_communicator.h"
#include "tests/support/run_ranks.h"
#include "tests/support/tiny_model.h"
#include "trainer/kernels/aten.h"
#include "trainer/model/describe.h"
#include "trainer/optim/groups.h"
#include "trainer/rank_context.h"
#include "trainer/train_step.h"

namespace deepnet::testing {
namespace {

constexpr int kSteps = 2;
// Relative, of losses and norms; a float32 sum of 8 parts instead of a tree of them, and one update
// after it.
constexpr double kRoundingTolerance = 1e-6;

RunSpec SpecOf(const ModelCase& model) {
  RunSpec run;
  run.set_seed(9);
  ModelSpec& spec = *run.mutable_model();
  spec = TinySpec();
  spec.set_encoder_layers(model.encoder_layers);
  spec.set_decoder_layers(model.decoder_layers);
  spec.set_architecture(model.architecture);
  spec.set_d_model(model.width);
  spec.set_ffn_dim(3 * model.width / 2);
  spec.set_tied_embeddings(model.tied);
  spec.set_dropout(0.2);
  spec.set_attention_dropout(0.15);
  spec.set_activation_dropout(0.1);
  *run.mutable_data()->mutable_microbatch() = TinyCapacityOf(spec);
  run.mutable_data()->set_global_microbatches(model.microbatches);
  OptimSpec& optim = *run.mutable_optim();
  optim.set_label_smoothing(0.1);
  optim.set_virtual_replicas(model.virtual_replicas);
  optim.set_schedule(CONSTANT);
  optim.set_learning_rate(1e-2);
  optim.set_beta1(0.9);
  optim.set_beta2(0.98);
  optim.set_epsilon(1e-8);
  optim.set_weight_decay(0.01);
  optim.set_clip_norm(0.05);  // far below the norms that occur
  ComputeSpec& compute = *run.mutable_compute();
  compute.set_device("cpu");
  compute.set_dtype(model.dtype);
  compute.set_matmul(NATIVE);
  compute.set_threads_per_rank(1);
  return run;
}

// Pairs are numbered through the step, so that no two microbatches drop the same elements.
StepBatch BatchOf(const ModelCase& model, int step) {
  StepBatch batch;
  const ModelSpec spec = SpecOf(model).model();
  for (int m = 0; m < model.microbatches; ++m) {
    const auto number = static_cast<uint32_t>(step * model.microbatches + m);
    Microbatch mb = TinyMicrobatch(spec, number + 1);
    for (uint32_t& pair : mb.source_pairs) pair += 8 * number;
    for (uint32_t& pair : mb.target_pairs) pair += 8 * number;
    batch.Add(std::move(mb));
  }
  return batch;
}

// The simplest order for any placement. `split`: input gradients first, all weight gradients behind
// them.
Schedule MakeSweeps(const Placement& placement, int num_microbatches, bool split) {
  Schedule schedule;
  schedule.actions.resize(placement.NumRanks());
  const auto add = [&](Op op, int chunk) {
    for (int m = 0; m < num_microbatches; ++m) {
      schedule.actions[placement.rank_of_chunk[chunk]].push_back({op, chunk, m});
    }
  };
  const int chunks = placement.NumChunks();
  for (int c = 0; c < chunks; ++c) add(Op::kForward, c);
  for (int c = chunks - 1; c >= 0; --c) add(split ? Op::kBackwardInput : Op::kBackward, c);
  for (int c = chunks - 1; split && c >= 0; --c) add(Op::kBackwardWeight, c);
  return schedule;
}

// Bytes that a rank sends when `count` doubles are added up over `size` ranks (communicator.cc): as
// one message to each up to 4 KiB, else by slices.
int64_t BytesOfSum(int64_t count, int size, int rank) {
  constexpr int64_t kSmallBytes = 4096, kDouble = 8;
  if (count * kDouble <= kSmallBytes) return count * kDouble * (size - 1);
  const int64_t mine = count * (rank + 1) / size - count * rank / size;
  return kDouble * (count - mine + mine * (size - 1));
}

void AddShares(const ShardLayout& layout, const Groups& groups, RankOutcome& outcome) {
  const std::vector<Communicator*> levels = ExchangeLevels(groups);
  for (const std::vector<GradientPiece>& bucket : layout.pieces) {
    for (const GradientPiece& piece : bucket) {
      for (size_t level = 0; level < levels.size(); ++level) {
        const std::vector<int64_t> borders = LevelBorders(piece, levels, level);
        const int rank = levels[level]->rank(), size = levels[level]->size();
        const int64_t own = borders[rank + 1] - borders[rank];
        outcome.exchange_bytes += 4 * (borders.back() - borders.front() - own);
        if (piece.of.first_here) outcome.exchange_bytes += 4 * own * (size - 1);
      }
    }
  }
  for (const TiedTensor& tensor : layout.tied) {
    int64_t here = 0, share = 0;
    std::set<int> lacking;
    for (const TiedTensor::Use& use : tensor.uses) {
      if (use.gradient >= 0) ++here;
      if (use.gradient < 0) lacking.insert(use.stage);
    }
    for (const TiedTensor::Share& part : tensor.shares) share += part.count;
    outcome.tied_bytes += 4 * here * share * static_cast<int64_t>(lacking.size());
  }
}

void AddHeld(const Parameters& parameters, RankOutcome& outcome) {
  for (const Parameter& p : parameters.inventory().parameters) {
    outcome.weights[p.name] = parameters.Get(p.name).clone();
  }
  const auto bytes = [](const at::Tensor& tensor) { return tensor.numel() * 4; };
  outcome.weight_bytes = bytes(parameters.weights());
  outcome.gradient_bytes = bytes(parameters.gradient());
  outcome.moment_bytes = bytes(parameters.moment1()) + bytes(parameters.moment2());
}

}  // namespace

std::string ModelCase::ToText() const {
  return absl::StrCat(Architecture_Name(architecture), " ", encoder_layers, "+", decoder_layers,
                      " layers, d=", width, " ", TiedEmbeddings_Name(tied), " ",
                      DataType_Name(dtype), " m=", microbatches, " R=", virtual_replicas);
}

std::string LayoutCase::ToText() const {
  return absl::StrCat(stages, " stages x ", replicas, " replicas, ", schedule,
                      " v=", virtual_pipeline_size, " ", Recompute_Name(recompute), "/", segment);
}

Inventory InventoryOf(const ModelCase& model) {
  const RunSpec run = SpecOf(model);
  return Describe(run.model(), run.data().microbatch());
}

absl::StatusOr<Plan> PlanFor(const ModelCase& model, const LayoutCase& layout) {
  const RunSpec run = SpecOf(model);
  ParallelSpec parallel;
  parallel.set_pipeline_parallel_size(layout.stages);
  parallel.set_data_parallel_size(layout.replicas);
  parallel.set_schedule(layout.schedule);
  parallel.set_virtual_pipeline_size(layout.virtual_pipeline_size);
  parallel.set_recompute(layout.recompute);
  if (layout.recompute == FULL) parallel.set_recompute_segment(layout.segment);
  return MakePlan(InventoryOf(model), {run.data(), run.optim(), run.compute(), {}, parallel});
}

std::vector<LayoutCase> SchedulesFor(const ModelCase& model, int stages, int replicas) {
  std::vector<LayoutCase> layouts;
  const auto add = [&](const std::string& schedule, int virtual_pipeline_size) {
    if (stages * virtual_pipeline_size > model.NumLayers()) return;
    layouts.push_back({stages, replicas, schedule, virtual_pipeline_size});
  };
  if (stages == 1) add("single_stage", 1);
  for (const char* name : {"gpipe", "1f1b", "zb-h1"}) add(name, 1);
  for (const char* name : {"interleaved", "zb-interleaved"}) {
    for (const int virtual_pipeline_size : {2, 3}) add(name, virtual_pipeline_size);
  }
  add("zb-v", 2);
  if (stages == 1) return layouts;
  for (const bool split : {false, true}) {
    const int microbatches = model.microbatches / replicas;
    add(deepnet::ToText(MakeSweeps(MakeLooped(stages, 2), microbatches, split)), 2);
    add(deepnet::ToText(MakeSweeps(MakeV(stages, 3), microbatches, split)), 3);
  }
  return layouts;
}

std::vector<LayoutCase> WithEveryRecompute(const std::vector<LayoutCase>& layouts) {
  std::vector<LayoutCase> all;
  for (LayoutCase layout : layouts) {
    for (const auto& [level, segment] : std::vector<std::pair<Recompute, int>>{
             {NONE, 1}, {SELECTIVE_FFN, 1}, {SELECTIVE_GEMM, 1}, {FULL, 1}, {FULL, 2}}) {
      layout.recompute = level;
      layout.segment = segment;
      all.push_back(layout);
    }
  }
  return all;
}

absl::StatusOr<RankOutcome> RunOnRank(const ModelCase& model, const Plan& plan, Communicator& world,
                                      const std::string& node) {
  CommMeter meter;
  CountingCommunicator counted(world, meter);
  ASSIGN_OR_RETURN(
      const std::unique_ptr<RankContext> part,
      MakeRankContext(SpecOf(model), InventoryOf(model), plan, counted, {.node = node}));
  Parameters& parameters = part->model->parameters();
  parameters.Initialize(5);
  part->model->Refresh();
  RankOutcome outcome{.stage = part->pp_rank, .replica = part->dp_rank};
  if (part->groups.node_replicas != nullptr) {
    outcome.replicas_per_node = part->groups.node_replicas->size();
  }
  for (int step = 0; step < kSteps; ++step) {
    const int64_t before = meter.counts().sent_bytes;
    ASSIGN_OR_RETURN(const StepResult result,
                     RunTrainStep(BatchOf(model, step), step, step + 1, *part));
    outcome.losses.push_back(result.loss);
    outcome.nlls.push_back(result.nll);
    outcome.norms.push_back(result.update.gradient_norm);
    outcome.sent_bytes = meter.counts().sent_bytes - before;
  }
  AddHeld(parameters, outcome);
  AddShares(part->layout, part->groups.all, outcome);
  return outcome;
}

RankOutcome RunAlone(const ModelCase& model) {
  SelfCommunicator alone;
  const auto outcome = RunOnRank(model, LonePlan(InventoryOf(model), model.microbatches), alone);
  EXPECT_TRUE(outcome.ok()) << outcome.status();
  return outcome.value_or(RankOutcome());
}

std::vector<RankOutcome> RunAsThreads(const ModelCase& model, const Plan& plan,
                                      const std::function<std::string(int rank)>& node_of) {
  std::vector<RankOutcome> outcomes(plan.pipeline_parallel_size() * plan.data_parallel_size());
  const auto statuses =
      RunRanks(static_cast<int>(outcomes.size()), [&](Communicator& world) -> absl::Status {
        const std::string node = node_of ? node_of(world.rank()) : "the only one";
        ASSIGN_OR_RETURN(outcomes[world.rank()], RunOnRank(model, plan, world, node));
        return absl::OkStatus();
      });
  EXPECT_TRUE(FirstError(statuses).ok()) << FirstError(statuses);
  return outcomes;
}

void ExpectSameBits(const RankOutcome& rank, const RankOutcome& alone) {
  EXPECT_EQ(rank.losses, alone.losses);
  EXPECT_EQ(rank.nlls, alone.nlls);
  EXPECT_EQ(rank.norms, alone.norms);
  for (const auto& [name, weight] : rank.weights) {
    EXPECT_TRUE(at::equal(weight, alone.weights.at(name)))
        << name << " of stage " << rank.stage << ", replica " << rank.replica;
  }
}

void ExpectWithinRounding(const RankOutcome& rank, const RankOutcome& alone,
                          const RankOutcome& agreed) {
  ASSERT_EQ(rank.losses.size(), alone.losses.size());
  EXPECT_EQ(rank.losses[0], alone.losses[0]);
  for (size_t step = 0; step < alone.losses.size(); ++step) {
    EXPECT_NEAR(rank.losses[step], alone.losses[step], kRoundingTolerance * alone.losses[step]);
    EXPECT_NEAR(rank.norms[step], alone.norms[step], kRoundingTolerance * alone.norms[step]);
  }
  EXPECT_EQ(rank.losses, agreed.losses);
  EXPECT_EQ(rank.norms, agreed.norms);
  ASSERT_EQ(rank.weights.size(), agreed.weights.size());
  for (const auto& [name, weight] : rank.weights) {
    EXPECT_TRUE(at::equal(weight, agreed.weights.at(name)))
        << name << " of stage " << rank.stage << ", replica " << rank.replica;
  }
}

void ExpectBytesAsPlanned(const RankOutcome& rank, const ModelCase& model, const Plan& plan) {
  const int stages = plan.pipeline_parallel_size(), replicas = plan.data_parallel_size();
  const int number = rank.replica * stages + rank.stage;
  const MemoryEstimate& memory = plan.stages(number).memory();
  EXPECT_EQ(rank.weight_bytes, memory.weights());
  EXPECT_EQ(rank.gradient_bytes, memory.gradients());

  int64_t crossing = 0;  // of a microbatch
  for (int c = 1; c < plan.chunks_size(); ++c) {
    if (plan.chunks(c - 1).rank() == rank.stage) crossing += plan.chunks(c).forward_bytes();
    if (plan.chunks(c).rank() == rank.stage) crossing += plan.chunks(c).backward_bytes();
  }
  const auto blocks = static_cast<int64_t>(SumBlockBorders(InventoryOf(model)).size()) - 1;
  EXPECT_EQ(rank.sent_bytes, crossing * (model.microbatches / replicas) + rank.exchange_bytes +
                                 rank.tied_bytes + BytesOfSum(blocks, stages * replicas, number) +
                                 BytesOfSum(2 * model.microbatches, stages * replicas, number));
}

void ExpectExchangesAsPlanned(const std::vector<RankOutcome>& ranks, const Plan& plan) {
  for (int stage = 0; stage < plan.pipeline_parallel_size(); ++stage) {
    const MemoryEstimate& memory = plan.stages(stage).memory();
    int64_t exchanged = 0, moments = 0;
    for (const RankOutcome& rank : ranks) {
      if (rank.stage != stage) continue;
      exchanged += rank.exchange_bytes;
      moments += rank.moment_bytes;
    }
    EXPECT_EQ(exchanged, (plan.data_parallel_size() - 1) * (memory.gradients() + memory.weights()));
    EXPECT_EQ(moments, 2 * memory.weights());
  }
}

}  // namespace deepnet::testing

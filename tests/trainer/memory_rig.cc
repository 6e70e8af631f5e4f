#include "tests/trainer/memory_rig.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"

#include "launch/defaults.h"
#include "parallel/base/check.h"
#include "parallel/base/status_macros.h"
#include "parallel/plan/planner.h"
#include "tests/support/run_ranks.h"
#include "trainer/instruments/meters.h"
#include "trainer/kernels/compute.h"
#include "trainer/model/describe.h"
#include "trainer/rank_context.h"
#include "trainer/rank_snapshot.h"
#include "trainer/telemetry/tensor_memory.h"
#include "trainer/train_step.h"

namespace deepnet::testing {
namespace {

constexpr int kSteps = 2;
constexpr double kMiB = 1 << 20;

PackedSide FullSide(int64_t capacity, int64_t length, int sentences, int32_t vocabulary) {
  PackedSide side;
  for (int64_t i = 0; i < capacity; ++i) {
    side.tokens.push_back(static_cast<int32_t>(4 + i % (vocabulary - 4)));
    side.positions.push_back(static_cast<uint32_t>(i % length));
  }
  for (int s = 0; s <= sentences; ++s) {
    side.offsets.push_back(static_cast<int32_t>(std::min(capacity, s * length)));
  }
  return side;
}

std::vector<uint32_t> PairsOf(int64_t capacity, int64_t length) {
  std::vector<uint32_t> pairs;
  for (int64_t i = 0; i < capacity; ++i) pairs.push_back(static_cast<uint32_t>(i / length));
  return pairs;
}

// With a copy for saving and one for instruments.
MemoryEstimate PlannedCopies(const PlannedRun& planned, const Inventory& whole, int rank) {
  RunSpec run = planned.run;
  run.mutable_parallel()->set_blocking_saves(false);
  run.mutable_instruments()->set_every_steps(1);
  const auto plan = MakePlan(whole, {run.data(), run.optim(), run.compute(), run.cluster(),
                                     run.parallel(), run.instruments()});
  DEEPNET_CHECK(plan.ok()) << plan.status().ToString();
  return plan->stages(rank).memory();
}

int64_t Bytes(const at::Tensor& tensor) { return static_cast<int64_t>(tensor.nbytes()); }

}  // namespace

double RankBytes::Difference() const {
  return static_cast<double>(measured - planned.total()) / static_cast<double>(planned.total());
}

std::string RankBytes::ToText() const {
  return absl::StrFormat(
      "planned %.2f MiB, measured %.2f MiB (%+.1f %%); state %.2f of %.2f MiB, steps added %.2f "
      "MiB; %s",
      static_cast<double>(planned.total()) / kMiB, static_cast<double>(measured) / kMiB,
      100 * Difference(), static_cast<double>(state) / kMiB,
      static_cast<double>(PlannedState()) / kMiB, static_cast<double>(activations) / kMiB,
      planned.ShortDebugString());
}

StepBatch FullStep(const RunSpec& run, int64_t length) {
  const MicrobatchSpec& capacity = run.data().microbatch();
  const int64_t s = capacity.max_source_tokens(), t = capacity.max_target_tokens();
  const auto vocabulary = static_cast<int32_t>(run.model().vocabulary_size());
  Microbatch full;
  full.num_sentences = static_cast<int>((std::max(s, t) + length - 1) / length);
  full.source = FullSide(s, length, full.num_sentences, vocabulary);
  full.target = FullSide(t, length, full.num_sentences, vocabulary);
  full.labels = full.target.tokens;
  full.source_pairs = PairsOf(s, length);
  full.target_pairs = PairsOf(t, length);
  full.num_source_tokens = s;
  full.num_target_tokens = t;
  const int count = run.data().global_microbatches();
  return {std::vector<Microbatch>(static_cast<size_t>(count), full), s * count, t * count};
}

RunSpec ThousandLayers(int ranks, int microbatches) {
  RunSpec run;
  run.set_name("memory");
  ModelSpec& model = *run.mutable_model();
  model.set_encoder_layers(500);
  model.set_decoder_layers(500);
  model.set_d_model(64);
  model.set_ffn_dim(256);
  model.set_num_heads(2);
  model.set_residual(DEEPNORM);
  model.set_dropout(0.1);
  model.set_vocabulary_size(1024);
  DataSpec& data = *run.mutable_data();
  data.mutable_microbatch()->set_max_source_tokens(100);
  data.mutable_microbatch()->set_max_target_tokens(100);
  data.mutable_microbatch()->set_max_sentences(8);
  data.set_global_microbatches(microbatches);
  run.mutable_optim()->set_learning_rate(1e-4);
  ParallelSpec& parallel = *run.mutable_parallel();
  parallel.set_pipeline_parallel_size(ranks);
  parallel.set_data_parallel_size(1);
  parallel.set_virtual_pipeline_size(1);
  parallel.set_schedule("1f1b");
  parallel.set_recompute(FULL);
  return run;
}

PlannedRun PlanRun(RunSpec run) {
  run = WithDefaults(std::move(run));
  run.mutable_parallel()->set_blocking_saves(true);  // nothing is saved here
  ComputeSpec& compute = *run.mutable_compute();
  compute.set_device("cpu");
  compute.set_threads_per_rank(1);
  if (compute.dtype() == DATA_TYPE_UNSPECIFIED) compute.set_dtype(FLOAT32);
  if (compute.matmul() == MATMUL_UNSPECIFIED) compute.set_matmul(NATIVE);
  compute = ResolveCompute(compute);
  const Inventory whole = Describe(run.model(), run.data().microbatch());
  const auto plan =
      MakePlan(whole, {run.data(), run.optim(), compute, run.cluster(), run.parallel()});
  DEEPNET_CHECK(plan.ok()) << plan.status().ToString();
  if (run.optim().virtual_replicas() == 0) {
    run.mutable_optim()->set_virtual_replicas(plan->virtual_replicas());
  }
  return {std::move(run), *plan};
}

absl::StatusOr<RankBytes> MeasureRank(const PlannedRun& planned, Communicator& world) {
  const auto& [run, plan] = planned;
  TensorMemory memory("cpu");
  const StepBatch batch = FullStep(run, 20);
  const Inventory whole = Describe(run.model(), run.data().microbatch());
  ASSIGN_OR_RETURN(const auto part, MakeRankContext(run, whole, plan, world));
  Parameters& parameters = part->model->parameters();
  parameters.Initialize(run.seed());
  part->model->Refresh();
  memory.ForgetPeak();
  const int64_t made = memory.peak_bytes();
  for (int step = 0; step < kSteps; ++step) {
    RETURN_IF_ERROR(RunTrainStep(batch, step, step + 1, *part, {}).status());
  }
  RankBytes bytes{.planned = plan.stages(world.rank()).memory()};
  bytes.measured = memory.peak_bytes() + part->ops->session().OwnBytes();
  int64_t moments = Bytes(parameters.moment1()) + Bytes(parameters.moment2());
  if (parameters.average().defined()) moments += Bytes(parameters.average());
  bytes.state = Bytes(parameters.weights()) + Bytes(parameters.gradient()) + moments;
  bytes.copied = RankSnapshot(*part, /*copies=*/false).bytes();
  bytes.compared = LayerMeter(whole, part->layout, parameters.weights().options()).bytes();
  const MemoryEstimate copies = PlannedCopies(planned, whole, world.rank());
  bytes.planned_copy = copies.snapshot();
  bytes.planned_compared = copies.instruments();
  bytes.activations = memory.peak_bytes() - made - moments;
  return bytes;
}

std::vector<RankBytes> MeasureRanks(RunSpec run) {
  const PlannedRun planned = PlanRun(std::move(run));
  std::vector<RankBytes> ranks(planned.plan.stages_size());
  const absl::Status status =
      FirstError(RunRanks(planned.plan.stages_size(), [&](Communicator& world) -> absl::Status {
        ASSIGN_OR_RETURN(ranks[world.rank()], MeasureRank(planned, world));
        return absl::OkStatus();
      }));
  DEEPNET_CHECK(status.ok()) << status.ToString();
  return ranks;
}

}  // namespace deepnet::testing

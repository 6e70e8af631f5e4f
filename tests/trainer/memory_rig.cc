#include "tests/trainer/memory_rig.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"

#include "launch/defaults.h"
#include "parallel/base/check.h"
#include "parallel/base/status_macros.h"
#include "parallel/plan/planner.h"
#include "tests/support/run_ranks.h"
#include "trainer/model/describe.h"
#include "trainer/rank_part.h"
#include "trainer/tensor_memory.h"
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

int64_t Bytes(const at::Tensor& tensor) { return static_cast<int64_t>(tensor.nbytes()); }

absl::StatusOr<RankBytes> MeasureRank(const RunSpec& run, const Inventory& whole, const Plan& plan,
                                      const StepBatch& batch, Communicator& world) {
  TensorMemory memory("cpu");
  ASSIGN_OR_RETURN(const auto part, MakeRankPart(run, whole, plan, world));
  Parameters& parameters = part->model->parameters();
  parameters.Initialize(run.seed());
  part->model->Refresh();
  const int64_t made = memory.live_bytes();
  memory.ForgetPeak();
  for (int step = 0; step < kSteps; ++step) {
    RETURN_IF_ERROR(RunTrainStep(batch, step, step + 1, *part, {}).status());
  }
  RankBytes bytes{.planned = plan.stages(world.rank()).memory()};
  bytes.measured = memory.peak_bytes() + part->ops->OwnBytes();
  const int64_t moments = Bytes(parameters.moment1()) + Bytes(parameters.moment2());
  bytes.state = Bytes(parameters.weights()) + Bytes(parameters.gradient()) + moments;
  bytes.activations = memory.peak_bytes() - made - moments;
  return bytes;
}

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
  const int64_t s = capacity.source_tokens(), t = capacity.target_tokens();
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
  const int count = run.data().microbatches_per_step();
  return {std::vector<Microbatch>(static_cast<size_t>(count), full), s * count, t * count};
}

std::vector<RankBytes> MeasureRanks(RunSpec run) {
  run = WithDefaults(std::move(run));
  run.mutable_compute()->set_device("cpu");
  run.mutable_compute()->set_dtype(FLOAT32);
  run.mutable_compute()->set_matmul(NATIVE);
  run.mutable_compute()->set_threads_per_rank(1);
  const Inventory whole = Describe(run.model(), run.data().microbatch());
  const auto plan =
      MakePlan(whole, run.data(), run.optim(), run.compute(), run.cluster(), run.parallel());
  DEEPNET_CHECK(plan.ok()) << plan.status().ToString();
  if (run.optim().virtual_replicas() == 0) {
    run.mutable_optim()->set_virtual_replicas(plan->virtual_replicas());
  }
  const StepBatch batch = FullStep(run, 20);
  std::vector<RankBytes> ranks(plan->stages_size());
  const absl::Status status =
      FirstError(RunRanks(plan->stages_size(), [&](Communicator& world) -> absl::Status {
        ASSIGN_OR_RETURN(ranks[world.rank()], MeasureRank(run, whole, *plan, batch, world));
        return absl::OkStatus();
      }));
  DEEPNET_CHECK(status.ok()) << status.ToString();
  return ranks;
}

}  // namespace deepnet::testing

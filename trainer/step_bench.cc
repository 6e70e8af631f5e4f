#include "trainer/step_bench.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"

#include "parallel/base/clock.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/process_memory.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/self_communicator.h"
#include "trainer/bench_lengths.h"
#include "trainer/data/batcher.h"
#include "trainer/kernels/compute.h"
#include "trainer/model/describe.h"
#include "trainer/model/flops.h"
#include "trainer/train_step.h"

namespace deepnet {
namespace {

struct Shape {
  const char* name;
  int layers, width, ffn, heads, target_tokens;
};

constexpr Shape kShapes[] = {{"A", 6, 256, 1024, 4, 2000},
                             {"B", 18, 256, 1024, 4, 2000},
                             {"C", 100, 64, 128, 2, 2000},
                             {"D", 500, 64, 128, 2, 500}};
constexpr int64_t kVocabulary = 8000;

// As many sentences as the capacity takes, however few lengths there are.
absl::StatusOr<std::vector<Microbatch>> MakeBatches(const StepBenchOptions& options,
                                                    const MicrobatchSpec& capacity) {
  ASSIGN_OR_RETURN(auto lengths, ReadBenchLengths(options.lengths_file));
  const size_t distinct = lengths.size();
  while (lengths.size() < distinct * (capacity.target_tokens() / 250)) {
    lengths.push_back(lengths[lengths.size() - distinct]);
  }
  return MakeBenchMicrobatches(
      lengths, {capacity.source_tokens(), capacity.target_tokens(), capacity.sentences()},
      static_cast<int32_t>(kVocabulary), /*seed=*/1);
}

// One rank that trains alone.
class Trainee {
 public:
  static absl::StatusOr<Trainee> Make(const RunSpec& run, const RecomputeChoice& recompute,
                                      Communicator& alone) {
    const Inventory whole = Describe(run.model(), run.data().microbatch());
    Plan plan = LonePlan(whole, 1);
    plan.mutable_chunks(0)->set_recompute(recompute.level);
    plan.mutable_chunks(0)->set_recompute_segment(recompute.segment);
    Trainee trainee;
    ASSIGN_OR_RETURN(trainee.part_, MakeRankPart(run, whole, plan, alone));
    trainee.part_->model->parameters().Initialize(run.seed());
    trainee.part_->model->Refresh();
    return trainee;
  }

  // Seconds of the next step.
  absl::StatusOr<double> Step(const StepBatch& batch) {
    const double start = SecondsNow();
    RETURN_IF_ERROR(RunTrainStep(batch, step_, step_ + 1, *part_).status());
    ++step_;
    return SecondsNow() - start;
  }

 private:
  std::unique_ptr<RankPart> part_;
  int64_t step_ = 0;
};

double Median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v.empty() ? 0.0 : v[v.size() / 2];
}

// What the timed steps took.
struct Measured {
  std::vector<double> seconds, rates, speeds;
  std::vector<double> growth;  // of each step over the twin's, if there is one
  int64_t peak_bytes = 0;
};

absl::StatusOr<Measured> MeasureSteps(const StepBenchOptions& options, const RunSpec& run) {
  ASSIGN_OR_RETURN(const auto batches, MakeBatches(options, run.data().microbatch()));
  const auto batch_of = [&](int i) {
    const Microbatch& mb = batches[i % batches.size()];
    return StepBatch{{mb}, mb.num_source_tokens, mb.num_target_tokens};
  };
  SelfCommunicator alone;
  Measured measured;
  ASSIGN_OR_RETURN(Trainee trainee, Trainee::Make(run, options.recompute, alone));
  RETURN_IF_ERROR(trainee.Step(batch_of(0)).status());
  measured.peak_bytes = PeakResidentBytes();
  std::optional<Trainee> twin;
  if (options.recompute.level != NONE) {
    ASSIGN_OR_RETURN(twin, Trainee::Make(run, {}, alone));
    RETURN_IF_ERROR(twin->Step(batch_of(0)).status());
  }
  for (int i = 1; i <= options.steps; ++i) {
    const StepBatch batch = batch_of(i);
    ASSIGN_OR_RETURN(const double took, trainee.Step(batch));
    measured.seconds.push_back(took);
    measured.rates.push_back((batch.num_source_tokens + batch.num_target_tokens) / took);
    measured.speeds.push_back(StepFlops(run.model(), batch) / took * 1e-9);
    if (!twin.has_value()) continue;
    ASSIGN_OR_RETURN(const double without, twin->Step(batch));
    measured.growth.push_back(took / without - 1);
  }
  return measured;
}

}  // namespace

absl::StatusOr<RunSpec> BenchRun(const std::string& shape) {
  for (const Shape& s : kShapes) {
    if (shape != s.name) continue;
    RunSpec run;
    run.set_seed(1);
    ModelSpec& model = *run.mutable_model();
    model.set_encoder_layers(s.layers);
    model.set_decoder_layers(s.layers);
    model.set_width(s.width);
    model.set_ffn_width(s.ffn);
    model.set_heads(s.heads);
    model.set_residual(DEEPNORM);
    model.set_vocabulary_size(kVocabulary);
    model.set_max_positions(1024);
    model.set_dropout(0.1);
    model.set_layer_norm_epsilon(1e-5);
    run.mutable_data()->mutable_microbatch()->set_source_tokens(s.target_tokens);
    run.mutable_data()->mutable_microbatch()->set_target_tokens(s.target_tokens);
    run.mutable_data()->mutable_microbatch()->set_sentences(s.target_tokens / 4);
    OptimSpec& optim = *run.mutable_optim();
    optim.set_rate(1e-4);
    optim.set_schedule(CONSTANT);
    optim.set_beta1(0.9);
    optim.set_beta2(0.98);
    optim.set_epsilon(1e-8);
    optim.set_label_smoothing(0.1);
    return run;
  }
  return WithExitCode(
      absl::InvalidArgumentError(absl::StrCat("shape: \"", shape, "\": not one of A, B, C, D")),
      ExitCode::kBadConfig);
}

absl::StatusOr<BenchRecord> BenchStep(const StepBenchOptions& options) {
  ASSIGN_OR_RETURN(RunSpec run, BenchRun(options.shape));
  const ComputeSpec compute = ResolveCompute(options.compute);
  *run.mutable_compute() = compute;
  ASSIGN_OR_RETURN(const Measured measured, MeasureSteps(options, run));
  const std::vector<double>& rates = measured.rates;
  BenchRecord record;
  record.set_name(absl::StrCat("step/", options.shape));
  record.set_tokens_per_second(Median(rates));
  record.set_tokens_per_second_best(rates.empty() ? 0.0
                                                  : *std::max_element(rates.begin(), rates.end()));
  record.set_gflops(Median(measured.speeds));
  record.set_ceiling_gflops(
      MeasureProductCeiling(run.model().width(), compute.threads_per_rank(), 1.0));
  record.set_efficiency(record.gflops() / record.ceiling_gflops());
  record.set_peak_resident_bytes(measured.peak_bytes);
  record.set_dtype(DataType_Name(compute.dtype()));
  record.set_isa(Isa_Name(compute.isa()));
  record.set_threads(compute.threads_per_rank());
  record.set_seconds_per_step(Median(measured.seconds));
  record.set_recompute(Recompute_Name(options.recompute.level));
  if (options.recompute.level == LAYER) {
    record.set_recompute_segment(options.recompute.segment);
  }
  record.set_recompute_share(Median(measured.growth));
  return record;
}

}  // namespace deepnet

#include "trainer/step_bench.h"

#include <algorithm>
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
  ASSIGN_OR_RETURN(auto lengths, ReadBenchLengths(options.lengths_file));
  const ComputeSpec compute = ResolveCompute(options.compute);
  *run.mutable_compute() = compute;
  const MicrobatchSpec& capacity = run.data().microbatch();
  const size_t distinct = lengths.size();
  while (lengths.size() < distinct * (capacity.target_tokens() / 250)) {
    lengths.push_back(lengths[lengths.size() - distinct]);
  }
  const std::vector<Microbatch> batches = MakeBenchMicrobatches(
      lengths, {capacity.source_tokens(), capacity.target_tokens(), capacity.sentences()},
      static_cast<int32_t>(kVocabulary), /*seed=*/1);

  const Inventory whole = Describe(run.model(), capacity);
  SelfCommunicator alone;
  ASSIGN_OR_RETURN(const std::unique_ptr<RankPart> part,
                   MakeRankPart(run, whole, LonePlan(whole, 1), alone));
  part->model->parameters().Initialize(run.seed());
  part->model->Refresh();

  std::vector<double> rates, speeds, seconds;
  for (int i = 0; i <= options.steps; ++i) {
    const Microbatch& mb = batches[i % batches.size()];
    const StepBatch batch{{mb}, mb.num_source_tokens, mb.num_target_tokens};
    const double start = SecondsNow();
    RETURN_IF_ERROR(RunTrainStep(batch, i, i + 1, *part).status());
    const double took = SecondsNow() - start;
    if (i == 0) continue;
    seconds.push_back(took);
    rates.push_back((mb.num_source_tokens + mb.num_target_tokens) / took);
    speeds.push_back(StepFlops(run.model(), batch) / took * 1e-9);
  }
  const auto median = [](std::vector<double> v) {
    std::sort(v.begin(), v.end());
    return v.empty() ? 0.0 : v[v.size() / 2];
  };
  BenchRecord record;
  record.set_name(absl::StrCat("step/", options.shape));
  record.set_tokens_per_second(median(rates));
  record.set_tokens_per_second_best(rates.empty() ? 0.0
                                                  : *std::max_element(rates.begin(), rates.end()));
  record.set_gflops(median(speeds));
  record.set_ceiling_gflops(
      MeasureProductCeiling(run.model().width(), compute.threads_per_rank(), 1.0));
  record.set_efficiency(record.gflops() / record.ceiling_gflops());
  record.set_peak_resident_bytes(PeakResidentBytes());
  record.set_dtype(DataType_Name(compute.dtype()));
  record.set_isa(Isa_Name(compute.isa()));
  record.set_threads(compute.threads_per_rank());
  record.set_seconds_per_step(median(seconds));
  return record;
}

}  // namespace deepnet

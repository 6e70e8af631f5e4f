#include "trainer/doctor/layout_check.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"

#include "parallel/base/check.h"
#include "parallel/base/messages.h"
#include "parallel/base/status_macros.h"
#include "parallel/plan/inventory.h"
#include "parallel/plan/planner.h"
#include "parallel/plan/schedule_generators.h"
#include "trainer/data/batcher.h"
#include "trainer/data/vocabulary.h"
#include "trainer/kernels/aten.h"
#include "trainer/model/describe.h"
#include "trainer/rank_context.h"
#include "trainer/train_step.h"

namespace deepnet {
namespace {

constexpr int kSteps = 2;
constexpr int kGraphSteps = 6;  // graphs of both microbatches are made in some, and used in others
constexpr int kMicrobatchesPerStage = 2;
constexpr int kTinyVocabulary = 61;  // of kTiny

constexpr char kTiny[] = R"(
    seed: 9
    model { d_model: 32 ffn_dim: 48 num_heads: 2 residual: DEEPNORM vocabulary_size: 61
            max_positions: 32 layer_norm_epsilon: 1e-5 dropout: 0.1 }
    data { microbatch { max_target_tokens: 16 max_sentences: 4 } }
    optim { schedule: CONSTANT learning_rate: 1e-2 beta1: 0.9 beta2: 0.98 epsilon: 1e-8
            clip_norm: 1 label_smoothing: 0.1 })";

// The run that is trained: `run` with a tiny model and few microbatches.
RunSpec TinyRun(const RunSpec& run) {
  RunSpec tiny;
  DEEPNET_CHECK(ParseTextProto(kTiny, &tiny));
  *tiny.mutable_compute() = run.compute();
  *tiny.mutable_parallel() = run.parallel();
  tiny.mutable_parallel()->set_gradient_sum(STRICT);
  const int stages = run.parallel().pipeline_parallel_size();
  const int replicas = run.parallel().data_parallel_size();
  const int chunks = stages * std::max(1, run.parallel().virtual_pipeline_size());
  const int layers = std::max(2, (chunks + 1) / 2);
  ModelSpec& model = *tiny.mutable_model();
  const Architecture architecture = run.model().architecture();
  const bool both = architecture == ENCODER_DECODER;
  model.set_architecture(architecture);
  model.set_encoder_layers(both ? layers : architecture == ENCODER_ONLY ? 2 * layers : 0);
  model.set_decoder_layers(both ? layers : architecture == DECODER_ONLY ? 2 * layers : 0);
  model.set_tied_embeddings(run.model().tied_embeddings());
  // LibTorch's attention drops no weights.
  if (run.compute().attention() != FLASH) model.set_attention_dropout(0.1);
  tiny.mutable_data()->mutable_microbatch()->set_max_source_tokens(both ? 20 : 0);
  // A schedule that a user wrote is for as many as the run has.
  const bool named = FindScheduleKind(run.parallel().schedule()) != nullptr;
  tiny.mutable_data()->set_global_microbatches(named ? replicas * stages * kMicrobatchesPerStage
                                                     : run.data().global_microbatches());
  tiny.mutable_optim()->set_virtual_replicas(replicas);
  return tiny;
}

// Ids of a sentence without a pattern, ended by </s>.
std::vector<int32_t> Sentence(uint32_t ordinal, int side, int length) {
  std::vector<int32_t> ids;
  for (int i = 0; i + 1 < length; ++i) {
    const uint32_t bits = ordinal * 2654435761u + static_cast<uint32_t>(side * 40503 + i * 7919);
    ids.push_back(kFirstPiece + static_cast<int32_t>(bits % (kTinyVocabulary - kFirstPiece)));
  }
  if (length > 0) ids.push_back(kEos);
  return ids;
}

// Pairs are numbered through all steps, so that no two microbatches drop the same elements.
StepBatch BatchOf(const RunSpec& run, int step) {
  constexpr std::pair<int, int> kLengths[] = {{5, 4}, {1, 6}, {9, 3}};
  const MicrobatchSpec& spec = run.data().microbatch();
  const bool both = run.model().architecture() == ENCODER_DECODER;
  StepBatch batch;
  auto ordinal =
      static_cast<uint32_t>(step * run.data().global_microbatches() * std::size(kLengths));
  for (int m = 0; m < run.data().global_microbatches(); ++m) {
    MicrobatchBuilder builder(
        {spec.max_source_tokens(), spec.max_target_tokens(), spec.max_sentences()});
    for (const auto& [source, target] : kLengths) {
      builder.Add(ordinal, {Sentence(ordinal, 0, both ? source : 0), Sentence(ordinal, 1, target)});
      ++ordinal;
    }
    batch.Add(std::move(builder).Build());
  }
  return batch;
}

// The results of a training, on the host: a second one on the same device cannot disturb them.
struct Trained {
  std::vector<double> figures;                // loss and gradient norm of each step
  std::map<std::string, at::Tensor> weights;  // of this rank, on the host
  std::vector<std::string> warnings;          // of graphs
};

absl::StatusOr<Trained> TrainTiny(const RunSpec& run, const Inventory& whole, const Plan& plan,
                                  Communicator& world, int steps = kSteps) {
  Trained trained;
  ASSIGN_OR_RETURN(const auto context, MakeRankContext(run, whole, plan, world));
  Parameters& parameters = context->model->parameters();
  parameters.Initialize(run.seed());
  context->model->Refresh();
  for (int step = 0; step < steps; ++step) {
    const StepBatch batch = BatchOf(run, step);
    ASSIGN_OR_RETURN(const StepResult result, RunTrainStep(batch, step, step + 1, *context));
    trained.figures.push_back(result.loss);
    trained.figures.push_back(result.update.gradient_norm);
    for (std::string& warning : context->ops->session().TakeWarnings()) {
      trained.warnings.push_back(std::move(warning));
    }
  }
  for (const Parameter& p : parameters.inventory().parameters) {
    const at::Tensor weight = parameters.Get(p.name);
    trained.weights[p.name] = weight.to(at::Device(at::kCPU), weight.scalar_type(),
                                        /*non_blocking=*/false, /*copy=*/true);
  }
  return trained;
}

// Completes `check`: values of both must be equal to the bit.
DoctorCheck Compared(DoctorCheck check, const Trained& seen, const Trained& expected,
                     const char* whose) {
  std::vector<std::string> names;  // of weights that differ
  for (const auto& [name, weight] : seen.weights) {
    if (!at::equal(weight, expected.weights.at(name))) names.push_back(name);
  }
  size_t differ = names.size();
  for (size_t i = 0; i < expected.figures.size(); ++i) {
    differ += seen.figures[i] != expected.figures[i];
  }
  check.set_error(static_cast<double>(differ));
  if (differ == 0) return check;
  check.set_failure(absl::StrCat(differ, " values differ from ", whose, "; ",
                                 names.empty() ? "no weights" : "first " + names[0]));
  return check;
}

}  // namespace

std::string LayoutText(const ParallelSpec& parallel) {
  const bool named = FindScheduleKind(parallel.schedule()) != nullptr;
  return absl::StrCat(
      parallel.pipeline_parallel_size(), " stages x ", parallel.data_parallel_size(), " replicas, ",
      named ? parallel.schedule() : "a schedule from a file",
      parallel.virtual_pipeline_size() > 1 ? absl::StrCat(", v=", parallel.virtual_pipeline_size())
                                           : "");
}

absl::StatusOr<DoctorCheck> CheckLayout(const RunSpec& run, Communicator& world) {
  DoctorCheck check;
  check.set_name(absl::StrCat("tiny model on ", LayoutText(run.parallel())));
  const RunSpec tiny = TinyRun(run);
  const Inventory whole = Describe(tiny.model(), tiny.data().microbatch());
  const absl::StatusOr<Plan> plan =
      MakePlan(whole, {tiny.data(), tiny.optim(), tiny.compute(), {}, tiny.parallel()});
  if (!plan.ok()) {  // on all ranks
    check.set_failure(std::string(plan.status().message()));
    return check;
  }
  ASSIGN_OR_RETURN(const Trained shared, TrainTiny(tiny, whole, *plan, world));
  SelfCommunicator self;
  ASSIGN_OR_RETURN(
      const Trained alone,
      TrainTiny(tiny, whole, LonePlan(whole, tiny.data().global_microbatches()), self));
  return Compared(std::move(check), shared, alone, "those of one rank");
}

absl::StatusOr<DoctorCheck> CheckGraphs(const RunSpec& run) {
  RunSpec alone = run;
  alone.clear_parallel();
  alone.mutable_parallel()->set_pipeline_parallel_size(1);
  alone.mutable_parallel()->set_data_parallel_size(1);
  alone.mutable_parallel()->set_schedule("single_stage");
  RunSpec tiny = TinyRun(alone);
  tiny.mutable_compute()->set_cuda_graphs(true);
  const Inventory whole = Describe(tiny.model(), tiny.data().microbatch());
  const Plan plan = LonePlan(whole, tiny.data().global_microbatches());
  SelfCommunicator self;
  const auto train = [&](bool one_by_one) {
    tiny.mutable_compute()->set_check_launches(one_by_one);
    return TrainTiny(tiny, whole, plan, self, kGraphSteps);
  };
  ASSIGN_OR_RETURN(const Trained eager, train(/*one_by_one=*/true));
  ASSIGN_OR_RETURN(const Trained graphs, train(/*one_by_one=*/false));
  DoctorCheck check;
  check.set_name("CUDA graphs beside single launches");
  if (!graphs.warnings.empty()) {
    check.set_failure(graphs.warnings.front());
    return check;
  }
  return Compared(std::move(check), graphs, eager, "those of single launches");
}

}  // namespace deepnet

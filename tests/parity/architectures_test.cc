// Models of one stack train on real sentences, in one piece and as a pipeline of two stages: the
// loss falls below what the frequencies of pieces alone give, both runs have the same bits, and a
// run that was stopped goes on with them. What such a model does not do is refused by name.
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include "launch/defaults.h"
#include "launch/validate.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/logging.h"
#include "tests/parity/train_in_threads.h"
#include "tests/parity/training_runs.h"
#include "tests/support/load_model.h"
#include "tests/support/tiny_model.h"
#include "trainer/data/corpus.h"
#include "trainer/data/corpus_batch_source.h"
#include "trainer/eval/evaluator.h"
#include "trainer/interop/interop.h"
#include "trainer/model/architecture.h"
#include "trainer/trainer.h"

namespace deepnet {
namespace {

using ::testing::HasSubstr;

constexpr int kSteps = 100, kLayers = 6;

struct Outcome {
  double last = 0;  // nats a label, mean of the last ten steps
  std::string weights;
};

class Architectures : public ::testing::TestWithParam<Architecture> {
 protected:
  static void SetUpTestSuite() {
    root_ = std::filesystem::path(::testing::TempDir()) /
            ("deepnet_architectures_" + std::to_string(getpid()));
    std::filesystem::create_directories(root_);
    const absl::Status made =
        testing::MakeCorpus(root_, "corpus", {"de", "fr"}, 500, testing::kAllLanguages);
    ASSERT_TRUE(made.ok()) << made;
  }
  static void TearDownTestSuite() { std::filesystem::remove_all(root_); }

  static RunSpec Run(const std::string& folder, int stages, int steps) {
    RunSpec run;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(
        R"(seed: 3
           model { d_model: 64 ffn_dim: 128 num_heads: 2 residual: DEEPNORM max_positions: 300 }
           data { folder: 'corpus' max_sentence_tokens: 150 global_microbatches: 4
                  microbatch { max_target_tokens: 500 max_sentences: 32 } }
           optim { learning_rate: 1.5e-3 warmup_steps: 50 virtual_replicas: 1 label_smoothing: 0 }
           compute { device: 'cpu' dtype: FLOAT32 threads_per_rank: 1 })",
        &run));
    run.mutable_model()->set_architecture(GetParam());
    if (GetParam() == ENCODER_ONLY) run.mutable_model()->set_encoder_layers(kLayers);
    if (GetParam() == DECODER_ONLY) run.mutable_model()->set_decoder_layers(kLayers);
    run.set_folder(Architecture_Name(GetParam()) + "-" + folder);
    run.mutable_train()->set_steps(steps);
    run.mutable_train()->set_log_every_steps(10);
    run.mutable_parallel()->set_pipeline_parallel_size(stages);
    run = WithDefaults(run);
    EXPECT_EQ(ValidateForTrain(run), absl::OkStatus());
    run.mutable_train()->set_validate_every_steps(0);
    return run;
  }

  static Outcome Train(const RunSpec& run, std::string* log_text = nullptr) {
    const std::string log = testing::MustTrainInThreads(run, {.root = root_.string()});
    if (log_text != nullptr) *log_text = log;
    const auto steps = testing::ReadSteps(root_ / run.folder() / "metrics.jsonl");
    EXPECT_FALSE(steps.empty());
    return {steps.empty() ? 0 : std::get<2>(steps.back()), testing::WeightsLine(log)};
  }

  // Nats a label of a model that knows how often each occurs in the steps of the run.
  static double UnigramLevel(const RunSpec& run) {
    const auto corpus = Corpus::Open((root_ / "corpus").string());
    EXPECT_TRUE(corpus.ok()) << corpus.status();
    const auto batches = CorpusBatchSource::Make(run.data(), run.seed(), &*corpus, GetParam());
    EXPECT_TRUE(batches.ok()) << batches.status();
    std::map<int32_t, double> counts;
    double all = 0;
    for (int step = 0; step < kSteps; ++step) {
      const auto batch = (*batches)->ForStep(step);
      for (const Microbatch& mb : batch->microbatches) {
        for (const int32_t label : mb.labels) {
          if (label < 0) continue;
          ++counts[label];
          ++all;
        }
      }
    }
    double level = 0;
    for (const auto& [label, count] : counts) level -= count / all * std::log(count / all);
    return level;
  }

  static inline std::filesystem::path root_;
};

// Returns packing_efficiency of the last step in a metrics.jsonl.
double LastPackingEfficiency(const std::filesystem::path& metrics) {
  std::ifstream file(metrics);
  double fill = 0;
  for (std::string line; std::getline(file, line);) {
    const size_t at = line.find("\"packing_efficiency\":");
    if (at != std::string::npos)
      fill = std::atof(line.c_str() + at + std::strlen("\"packing_efficiency\":"));
  }
  return fill;
}

TEST_P(Architectures, LearnsMoreThanFrequenciesAndGivesTheSameBitsOnTwoStages) {
  const Outcome whole = Train(Run("whole", 1, kSteps));
  const double unigram = UnigramLevel(Run("whole", 1, kSteps));
  std::printf("%s: %.3f nats a label after %d steps, unigram level %.3f\n",
              Architecture_Name(GetParam()).c_str(), whole.last, kSteps, unigram);
  EXPECT_LT(whole.last, unigram);
  // The share counts positions, labelled or not.
  EXPECT_GT(LastPackingEfficiency(root_ / Run("whole", 1, kSteps).folder() / "metrics.jsonl"), 0.6);
  EXPECT_EQ(Train(Run("cut", 2, kSteps)).weights, whole.weights);
  // Stopped after 60 steps, and another number of stages from then on.
  Train(Run("resumed", 2, 60));
  EXPECT_EQ(Train(Run("resumed", 1, kSteps)).weights, whole.weights);
}

TEST_P(Architectures, ValidatesByLikelihoodAsEvaluateDoesOnAnyNumberOfStages) {
  std::vector<std::string> lines;
  for (const int stages : {1, 2}) {
    RunSpec run = Run("valid" + std::to_string(stages), stages, 2);
    run.mutable_train()->set_validate_every_steps(-1);
    run.mutable_train()->set_validate_sentences(10);
    std::string log;
    Train(run, &log);
    const size_t begin = log.find("validation at step 2: nll ");
    ASSERT_NE(begin, std::string::npos) << log;
    lines.push_back(log.substr(begin, log.find(" directions", begin) - begin));
    EXPECT_THAT(lines.back(), HasSubstr("perplexity"));
    EXPECT_FALSE(std::filesystem::exists(root_ / run.folder() / "best-bleu"));
    EXPECT_TRUE(std::filesystem::exists(root_ / run.folder() / "best-nll"));
  }
  EXPECT_EQ(lines[0], lines[1]);

  const auto model = LoadModel((root_ / Run("valid1", 1, 2).folder()).string(), {});
  ASSERT_TRUE(model.ok()) << model.status();
  const auto corpus = Corpus::Open((root_ / "corpus").string());
  const auto record =
      Evaluate(*(*model)->scorer, *(*model)->pair_scorer, *corpus, *(*model)->vocabulary,
               {.split = "dev",
                .sentences = 10,
                .max_positions = 300,
                .translates = false,
                .run = (*model)->run});
  ASSERT_TRUE(record.ok()) << record.status();
  EXPECT_GT(record->nll(), 3);
  EXPECT_LT(record->nll(), 10);
  EXPECT_EQ(record->bleu(), 0);
  char nll[32];
  std::snprintf(nll, sizeof nll, "nll %.3f", record->nll());
  EXPECT_THAT(lines[0], HasSubstr(nll));

  const absl::Status translate = CheckTranslates((*model)->run.model(), "translate");
  EXPECT_EQ(GetExitCode(translate), ExitCode::kCheckpoint);
  EXPECT_THAT(std::string(translate.message()),
              HasSubstr("translate: model.architecture: " + Architecture_Name(GetParam())));
  const auto exported =
      ExportCheckpoint(*MakePosixFileSystem(), (*model)->folder,
                       (root_ / (Architecture_Name(GetParam()) + "-exported")).string(), {});
  EXPECT_EQ(GetExitCode(exported.status()), ExitCode::kCheckpoint);
  EXPECT_THAT(std::string(exported.status().message()), HasSubstr("model.architecture"));
}

TEST_P(Architectures, ACheckpointOfAnotherOneIsRefusedWithBothValues) {
  Train(Run("mine", 1, 1));
  RunSpec other = Run("mine", 1, 2);
  other.mutable_model()->set_architecture(GetParam() == ENCODER_ONLY ? DECODER_ONLY : ENCODER_ONLY);
  other.mutable_model()->set_encoder_layers(GetParam() == ENCODER_ONLY ? 0 : kLayers);
  other.mutable_model()->set_decoder_layers(GetParam() == ENCODER_ONLY ? kLayers : 0);
  std::ostringstream text;
  Logger log({.stream = &text});
  const absl::Status status = deepnet::Train(WithDefaults(other), {.root = root_.string()}, log);
  EXPECT_EQ(GetExitCode(status), ExitCode::kCheckpoint);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("model.architecture is " + Architecture_Name(GetParam()) +
                        " in the checkpoint and " +
                        Architecture_Name(other.model().architecture()) + " in this run"));
}

TEST_P(Architectures, InitialWeightsOfAnotherOneAreRefusedWithBothValues) {
  const RunSpec own = Run("from", 1, 1);
  Train(own);
  RunSpec next = Run("next", 1, 2);
  std::ostringstream text;
  Logger log({.stream = &text});
  const std::string from = (root_ / own.folder()).string();
  EXPECT_EQ(deepnet::Train(next, {.root = root_.string(), .init_from = from}, log),
            absl::OkStatus());
  next.set_folder(next.folder() + "-other");
  next.mutable_model()->set_architecture(ENCODER_DECODER);
  next.mutable_model()->set_encoder_layers(kLayers);
  next.mutable_model()->set_decoder_layers(kLayers);
  const absl::Status status =
      deepnet::Train(next, {.root = root_.string(), .init_from = from}, log);
  EXPECT_EQ(GetExitCode(status), ExitCode::kCheckpoint);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("model.architecture is " + Architecture_Name(GetParam()) +
                        " in the checkpoint and ENCODER_DECODER in this run"));
}

INSTANTIATE_TEST_SUITE_P(OfOneStack, Architectures, ::testing::Values(DECODER_ONLY, ENCODER_ONLY),
                         [](const auto& info) { return Architecture_Name(info.param); });

}  // namespace
}  // namespace deepnet

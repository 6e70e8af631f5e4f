// Every residual scheme, and every norm, trains on real sentences: 80 steps of 6 + 6 layers, width
// 32, or 64 where it learns too little in 32. The loss falls, and a pipeline of two stages gives
// the same bits in its first 20 steps (100: tests/bench/train_schemes.py).
//
// docs/design/residuals.md has the table of what may fail where; at this depth only a residual
// without any norm or scale may, and does.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string>
#include <tuple>
#include <vector>

#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include "launch/defaults.h"
#include "parallel/base/exit_code.h"
#include "tests/parity/train_in_threads.h"
#include "tests/parity/training_runs.h"
#include "tests/support/load_model.h"
#include "tests/support/tiny_model.h"
#include "trainer/trainer.h"

namespace deepnet {
namespace {

constexpr int kSteps = 80, kComparedSteps = 20, kLogEvery = 10;
// Nats per token, from the first ten steps to the last ten: what learning the frequencies of pieces
// alone gives.
constexpr double kFall = 0.5;
// Below what guessing evenly among 500 pieces costs: learned something; far above: nothing.
constexpr double kLearned = 6.0, kDiverged = 100.0;
constexpr double kLearnedSlowly = 6.2;  // ln 500 is 6.215; statistics of 250 rows are noise

struct Outcome {
  std::vector<double> losses;  // means of ten steps
  std::string weights;
  std::string log;  // of rank 0
};

struct Scheme {
  Residual residual = POST_LN;
  Norm norm = LAYER_NORM;

  std::string Name() const {
    return Residual_Name(residual) + (norm == LAYER_NORM ? "" : "_" + Norm_Name(norm));
  }
};

std::vector<Scheme> AllSchemes() {
  std::vector<Scheme> all;
  for (const Residual residual : testing::AllResiduals()) all.push_back({residual});
  for (const Norm norm : {RMS_NORM, BATCH_NORM}) all.push_back({POST_LN, norm});
  return all;
}

class Schemes : public ::testing::TestWithParam<Scheme> {
 protected:
  static void SetUpTestSuite() {
    root_ = std::filesystem::path(::testing::TempDir()) /
            ("deepnet_schemes_" + std::to_string(getpid()));
    std::filesystem::create_directories(root_);
    const absl::Status made =
        testing::MakeCorpus(root_, "corpus", {"de", "fr"}, 500, testing::kAllLanguages);
    ASSERT_TRUE(made.ok()) << made;
  }
  static void TearDownTestSuite() { std::filesystem::remove_all(root_); }

  static RunSpec Run(const Scheme& scheme, const std::string& folder, int stages, int steps) {
    const Residual residual = scheme.residual;
    RunSpec run;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(
        R"(seed: 3
           model { encoder_layers: 6 decoder_layers: 6 d_model: 32 ffn_dim: 64 num_heads: 2
                   max_positions: 300 dropout: 0.1 }
           data { folder: 'corpus' max_sentence_tokens: 150 global_microbatches: 2
                  microbatch { max_source_tokens: 250 max_target_tokens: 250 max_sentences: 16 } }
           optim { learning_rate: 1e-3 warmup_steps: 20 virtual_replicas: 1 }
           compute { device: 'cpu' dtype: FLOAT32 threads_per_rank: 1 })",
        &run));
    if (residual == REZERO || scheme.norm == BATCH_NORM) {
      run.mutable_model()->set_d_model(64);
      run.mutable_model()->set_ffn_dim(128);
    }
    *run.mutable_model() = testing::WithResidual(run.model(), residual);
    run.mutable_model()->set_norm(scheme.norm);
    if (residual == T_FIXUP) run.mutable_optim()->set_schedule(SHIFTED_INVERSE_SQRT);
    if (residual == BRANCH_NORM) {
      run.mutable_model()->mutable_scheme()->set_branch_norm_steps(kSteps / 2);
    }
    run.set_folder(folder);
    run.mutable_train()->set_steps(steps);
    run.mutable_train()->set_log_every_steps(kLogEvery);
    run.mutable_train()->set_checkpoint_every_steps(kSteps);
    run.mutable_parallel()->set_pipeline_parallel_size(stages);
    run = WithDefaults(run);
    run.mutable_train()->set_validate_every_steps(0);
    return run;
  }

  // Trains to step `steps`, from the checkpoint of an earlier call where there is one. The losses
  // are those of all calls.
  static Outcome Train(const Scheme& scheme, int stages, int steps) {
    const std::string folder = scheme.Name() + std::to_string(stages);
    const std::string log =
        testing::MustTrainInThreads(Run(scheme, folder, stages, steps), {.root = root_.string()});
    Outcome outcome{.losses = {}, .weights = testing::WeightsLine(log), .log = log};
    for (const testing::StepFigures& step : testing::ReadSteps(root_ / folder / "metrics.jsonl")) {
      outcome.losses.push_back(std::get<1>(step));
    }
    return outcome;
  }

  // A checkpoint knows the step it translates at, or says why it does not translate.
  static void ExpectWhatTranslates(const Outcome& whole) {
    const auto loaded = LoadModel((root_ / (GetParam().Name() + "1")).string(), {});
    const bool warned = whole.log.find("model.norm: BATCH_NORM") != std::string::npos;
    EXPECT_EQ(warned, GetParam().norm == BATCH_NORM);
    if (GetParam().norm == BATCH_NORM) {
      EXPECT_EQ(GetExitCode(loaded.status()), ExitCode::kCheckpoint);
      EXPECT_NE(loaded.status().message().find("model.norm: BATCH_NORM"), absl::string_view::npos);
      return;
    }
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_EQ((*loaded)->models.front()->step(), kSteps);
  }

  static inline std::filesystem::path root_;
};

TEST_P(Schemes, LearnsAndGivesTheSameBitsOnTwoStages) {
  const Outcome start = Train(GetParam(), 1, kComparedSteps);
  const Outcome whole = Train(GetParam(), 1, kSteps);
  ASSERT_EQ(whole.losses.size(), static_cast<size_t>(kSteps / kLogEvery));
  std::printf("%-18s loss %.3f -> %.3f\n", GetParam().Name().c_str(), whole.losses.front(),
              whole.losses.back());
  if (GetParam().residual == RESIDUAL_ONLY) {
    EXPECT_GT(whole.losses.back(), kDiverged);
  } else {
    const double learned = GetParam().norm == BATCH_NORM ? kLearnedSlowly : kLearned;
    EXPECT_LT(whole.losses.back(), std::min(learned, whole.losses.front() - kFall));
  }
  ExpectWhatTranslates(whole);
  if (!testing::CanBeCut(GetParam().residual)) return;
  const Outcome cut = Train(GetParam(), 2, kComparedSteps);
  ASSERT_EQ(cut.losses.size(), static_cast<size_t>(kComparedSteps / kLogEvery));
  EXPECT_EQ(cut.losses, start.losses);
  EXPECT_EQ(cut.weights, start.weights);
}

INSTANTIATE_TEST_SUITE_P(All, Schemes, ::testing::ValuesIn(AllSchemes()),
                         [](const auto& info) { return info.param.Name(); });

}  // namespace
}  // namespace deepnet

// Fine-tuning: runs that begin with the weights of another one, which learned other languages with
// another vocabulary.
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include "launch/defaults.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/host.h"
#include "tests/parity/train_in_threads.h"
#include "tests/parity/training_runs.h"
#include "tests/support/load_model.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/tools/rewrite.h"
#include "trainer/interop/interop.h"
#include "trainer/kernels/aten.h"
#include "trainer/model/architecture.h"
#include "trainer/model_loader.h"
#include "trainer/trainer.h"

namespace deepnet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::kAllLanguages;
using testing::MakeCorpus;
using testing::MustTrainInThreads;
using testing::ReadSteps;
using testing::StepFigures;
using testing::TrainInThreads;
using testing::TrainOutcome;
using testing::WeightsLine;

constexpr double kNoRate = 1e-30;  // an update that no float32 weight can show

struct How {
  std::string corpus;
  int64_t steps = 1;
  double rate = kNoRate;
  int width = 32;
  std::string init_from = "";
  int stages = 1;
  double ema_decay = 0.0;
};

class InitFromTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    root_ = std::filesystem::path(::testing::TempDir()) /
            ("deepnet_init_from_" + std::to_string(getpid()));
    std::filesystem::create_directories(root_);
    ASSERT_TRUE(MakeCorpus(root_, "two", {"de", "fr"}, 300, kAllLanguages).ok());
    ASSERT_TRUE(MakeCorpus(root_, "three", {"de", "es", "fr"}, 320, kAllLanguages).ok());
    Train("first", {.corpus = "two", .steps = 12, .rate = 5e-3});
  }
  static void TearDownTestSuite() { std::filesystem::remove_all(root_); }

  static RunSpec Run(const std::string& folder, const How& how) {
    RunSpec run;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(
        R"(seed: 3
           model { encoder_layers: 2 decoder_layers: 2 ffn_dim: 64 num_heads: 2
                   residual: DEEPNORM max_positions: 300 }
           data { max_sentence_tokens: 150 global_microbatches: 2
                  microbatch { max_source_tokens: 300 max_target_tokens: 300 max_sentences: 16 } }
           optim { warmup_steps: 1 }
           compute { device: 'cpu' dtype: FLOAT32 threads_per_rank: 1 }
           train { log_every_steps: 1 validate_sentences: 1 }
           decode { beam_size: 1 max_tokens: 4 })",
        &run));
    run.mutable_model()->set_d_model(how.width);
    run.mutable_data()->set_folder(how.corpus);
    run.set_folder(folder);
    run.mutable_optim()->set_learning_rate(how.rate);
    run.mutable_optim()->set_ema_decay(how.ema_decay);
    run.mutable_train()->set_steps(how.steps);
    run.mutable_parallel()->set_pipeline_parallel_size(how.stages);
    run.mutable_parallel()->set_data_parallel_size(1);
    run = WithDefaults(run);
    run.mutable_train()->set_validate_every_steps(-1);
    return run;
  }

  static TrainOutcome Try(const std::string& folder, const How& how) {
    return TrainInThreads(Run(folder, how), {.root = root_.string(), .init_from = how.init_from});
  }
  static std::string Train(const std::string& folder, const How& how) {
    return MustTrainInThreads(Run(folder, how),
                              {.root = root_.string(), .init_from = how.init_from});
  }

  static std::string Path(const std::string& folder) { return (root_ / folder).string(); }

  static std::vector<double> Losses(const std::string& folder) {
    std::vector<double> losses;
    for (const StepFigures& step : ReadSteps(root_ / folder / "metrics.jsonl")) {
      losses.push_back(std::get<1>(step));
    }
    return losses;
  }

  // A run of one step, which changes nothing, on a corpus with another language and vocabulary.
  static void ExpectRowsAreTaken(const std::string& folder, const std::string& init_from) {
    const std::string log =
        Train(folder, {.corpus = "three", .init_from = init_from, .ema_decay = 0.5});
    const auto fs = MakePosixFileSystem();
    const std::string saved[] = {Path(folder + "/step-00000001")};
    const auto averaged = AverageCheckpoints(*fs, saved, Path(folder + "-ema"), {}, kEmaPrefix);
    ASSERT_TRUE(averaged.ok()) << averaged.status();
    const std::string other = folder + "-drawn";
    Train(other, {.corpus = "three"});
    const auto first = LoadModel(Path("first"), {}), tuned = LoadModel(Path(folder), {}),
               drawn = LoadModel(Path(other), {}), average = LoadModel(*averaged, {});
    ASSERT_TRUE(first.ok() && tuned.ok() && drawn.ok() && average.ok());
    EXPECT_EQ((*first)->models.front()->step(), 12);  // BRANCH_NORM computes by it
    const Vocabulary& earlier = *(*first)->vocabulary;
    const Vocabulary& vocabulary = *(*tuned)->vocabulary;
    int taken = 0, new_rows = 0;
    for (const Parameter& p : (*tuned)->models.front()->parameters().inventory().parameters) {
      const at::Tensor old = (*first)->models.front()->parameters().Get(p.name);
      const at::Tensor now = (*tuned)->models.front()->parameters().Get(p.name);
      EXPECT_TRUE(at::equal((*average)->models.front()->parameters().Get(p.name), now)) << p.name;
      if (p.role != Role::kEmbedding) {
        EXPECT_TRUE(at::equal(old, now)) << p.name;
        continue;
      }
      const at::Tensor fresh = (*drawn)->models.front()->parameters().Get(p.name);
      for (int32_t id = 0; id < vocabulary.size(); ++id) {
        int32_t before = 0;
        while (before < earlier.size() && earlier.Piece(before) != vocabulary.Piece(id)) ++before;
        const bool known = before < earlier.size();
        EXPECT_TRUE(at::equal(now[id], known ? old[before] : fresh[id])) << vocabulary.Piece(id);
        ++(known ? taken : new_rows);
      }
    }
    EXPECT_GT(taken, 100);
    EXPECT_GT(new_rows, 10);  // the new tag among them
    EXPECT_THAT(log, HasSubstr(std::to_string(taken) + " rows of the vocabulary are known there, " +
                               std::to_string(new_rows) + " are new"));
  }

  static inline std::filesystem::path root_;
};

TEST_F(InitFromTest, RowsOfKnownPiecesAreTakenBitForBitAndNewOnesAreDrawn) {
  ExpectRowsAreTaken("tuned", Path("first"));
}

// As other programs get it, and as `train --init-from` makes a run folder of what they hand back.
TEST_F(InitFromTest, AnExportIsAsGoodAsTheRunThatItIsOf) {
  const auto fs = MakePosixFileSystem();
  const auto exported = ExportCheckpoint(*fs, Path("first/step-00000012"), Path("hf"), {});
  ASSERT_TRUE(exported.ok()) << exported.status();
  const auto imported = ImportFolder(*fs, Path("hf"), Path("imported"), {.complete = WithDefaults});
  ASSERT_TRUE(imported.ok()) << imported.status();
  ExpectRowsAreTaken("tuned-export", Path("imported"));

  Train("on-export", {.corpus = "three", .steps = 6, .rate = 2e-3, .init_from = Path("imported")});
  const std::vector<double> losses = Losses("on-export");
  ASSERT_EQ(losses.size(), 6u);
  EXPECT_LT(losses.back(), losses.front());
}

TEST_F(InitFromTest, LearnsOnFromWhereTheOtherRunWasAndInAnyLayout) {
  const How how{.corpus = "three", .steps = 6, .rate = 2e-3, .init_from = Path("first")};
  How scratch = how, two = how;
  scratch.init_from = "";
  two.stages = 2;
  const std::string log = Train("on", how);
  Train("scratch", scratch);
  const std::vector<double> losses = Losses("on");
  ASSERT_EQ(losses.size(), 6u);
  EXPECT_LT(losses.front(), Losses("scratch").front());
  EXPECT_LT(losses.back(), losses.front());
  EXPECT_EQ(WeightsLine(Train("on-two-ranks", two)), WeightsLine(log));
}

TEST_F(InitFromTest, ARunThatGoesOnDoesNotStartAgain) {
  const How how{.corpus = "three", .steps = 2, .rate = 2e-3, .init_from = Path("first")};
  How longer = how;
  longer.steps = 4;
  const std::string whole = Train("at-once", longer);
  Train("in-two", how);
  EXPECT_EQ(WeightsLine(Train("in-two", longer)), WeightsLine(whole));
}

// An ensemble gives a target of one token the mean of the probabilities, whatever the widths.
TEST_F(InitFromTest, RunsOfOneVocabularyScoreTogetherAsAnEnsemble) {
  Train("wide", {.corpus = "two", .steps = 3, .rate = 5e-3, .width = 64});
  Train("other", {.corpus = "three"});
  std::vector<FoundModel> found;
  for (const char* folder : {"first", "wide", "other"}) {
    auto one = FindModel(Path(folder), {});
    ASSERT_TRUE(one.ok()) << one.status();
    found.push_back(*std::move(one));
  }
  const std::vector<EncodedPair> pairs = {{{5, 2}, {2}}, {{7, 9, 8, 2}, {11}}, {{6, 2}, {4}}};
  const auto scores = [&](std::span<const FoundModel> models) {
    const auto loaded = LoadEnsemble(models);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return (*loaded)->pair_scorer->LogProbabilities(pairs);
  };
  const std::span all(found);
  const auto first = scores(all.first(1)), wide = scores(all.subspan(1, 1)),
             both = scores(all.first(2));
  for (size_t i = 0; i < pairs.size(); ++i) {
    EXPECT_NEAR(both[i], std::log((std::exp(first[i]) + std::exp(wide[i])) / 2), 1e-5) << i;
    EXPECT_GT(std::abs(first[i] - wide[i]), 1e-3) << i;
  }
  EXPECT_THAT(std::string(LoadEnsemble(found).status().message()),
              AllOf(HasSubstr(Path("first")), HasSubstr(Path("other")),
                    HasSubstr("have different vocabularies")));
}

// Where a checkpoint was made says nothing of where it is read.
TEST_F(InitFromTest, ModelsAreReadWithThisHostsArithmeticAndThreadsAndTheirOwnTokenizer) {
  const auto fs = MakePosixFileSystem();
  Manifest manifest = *ReadManifest(*fs, Path("first/step-00000012"));
  manifest.clear_files();
  ComputeSpec& compute = *manifest.mutable_run()->mutable_compute();
  compute.set_threads_per_rank(9999);
  for (const std::string device : {"cpu", "another"}) {
    compute.set_device(device);
    ASSERT_TRUE(BeginCheckpoint(*fs, Path(device), 12).ok());
    ASSERT_TRUE(CommitCheckpoint(*fs, Path(device), manifest).ok());
    const auto found = FindModel(Path(device), {});
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(found->manifest.run().compute().device(), "cpu");
    EXPECT_EQ(found->manifest.run().compute().threads_per_rank(), UsableCores());
  }
  std::vector<FoundModel> first = {*FindModel(Path("first"), {})};
  first[0].manifest.set_tokenizer_hash("of another one");
  const absl::Status other = LoadEnsemble(first).status();
  EXPECT_EQ(GetExitCode(other), ExitCode::kCheckpoint) << other;
  EXPECT_THAT(std::string(other.message()), HasSubstr("made with the tokenizer of another one"));
}

TEST_F(InitFromTest, AnotherModelOrNoneIsRefusedByName) {
  const TrainOutcome wider =
      Try("wider", {.corpus = "three", .width = 64, .init_from = Path("first")});
  EXPECT_EQ(GetExitCode(wider.status), ExitCode::kCheckpoint) << wider.status;
  EXPECT_THAT(std::string(wider.status.message()), HasSubstr("weight"));
  const TrainOutcome missing = Try("missing", {.corpus = "three", .init_from = Path("nowhere")});
  EXPECT_EQ(GetExitCode(missing.status), ExitCode::kCheckpoint) << missing.status;
  EXPECT_THAT(std::string(missing.status.message()), HasSubstr("nowhere"));
}

}  // namespace
}  // namespace deepnet

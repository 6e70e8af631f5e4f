// Runs that must be the same run: repeated, stopped and resumed, with other numbers of threads,
// after damage. "Same" is every bit of the losses in metrics.jsonl and of the tensors in the
// checkpoint.
#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include "launch/defaults.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/logging.h"
#include "proto/report.pb.h"
#include "tests/parity/training_runs.h"
#include "tests/support/load_model.h"
#include "tests/support/run_ranks.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/data/corpus_batch_source.h"
#include "trainer/trainer.h"

namespace deepnet {
namespace {

using testing::ActingBuffer;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::MakeCorpus;
using ::testing::Not;

// One line of kind "train": what must be equal in equal runs.
using Line = std::tuple<int64_t, double, double, double, double, int64_t>;

struct Outcome {
  absl::Status status;
  std::string log;
};

class TrainTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    root_ = std::filesystem::path(::testing::TempDir()) / "deepnet_parity_train";
    std::filesystem::remove_all(root_);
    std::filesystem::create_directories(root_);
    ASSERT_TRUE(MakeCorpus(root_, "corpus", {"de", "fr"}, 300).ok());
  }
  static void TearDownTestSuite() { std::filesystem::remove_all(root_); }

  // Twelve steps of 2 + 2 layers with every dropout; no validation.
  static RunSpec Run(const std::string& folder, int64_t steps = 12) {
    RunSpec run;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(
        R"(seed: 3
           model { encoder_layers: 2 decoder_layers: 2 d_model: 32 ffn_dim: 64 num_heads: 2
                   residual: DEEPNORM max_positions: 300
                   dropout: 0.1 attention_dropout: 0.1 activation_dropout: 0.1 }
           data { folder: 'corpus' max_sentence_tokens: 150
                  microbatch { max_source_tokens: 300 max_target_tokens: 300 max_sentences: 16 } }
           optim { learning_rate: 2e-3 warmup_steps: 4 clip_norm: 1 }
           compute { device: 'cpu' dtype: FLOAT32 threads_per_rank: 2 }
           train { checkpoint_every_steps: 4 log_every_steps: 1 }
           decode { beam_size: 2 max_tokens: 10 })",
        &run));
    run.set_folder(folder);
    run.mutable_train()->set_steps(steps);
    run = WithDefaults(run);
    run.mutable_train()->set_validate_every_steps(0);
    return run;
  }

  static Outcome Start(const RunSpec& run, int request = 0, bool fresh = false) {
    std::ostringstream log;
    std::atomic<int> asked{request};
    Logger logger({.stream = &log});
    const absl::Status status =
        Train(run, {.root = root_.string(), .require_empty = fresh, .request = &asked}, logger);
    return {status, log.str()};
  }
  // Asks for something as soon as the log says `text`.
  static Outcome StartAndAsk(const RunSpec& run, int request, const std::string& text) {
    std::atomic<int> asked{0};
    ActingBuffer log(text, [&] { asked = request; });
    std::ostream stream(&log);
    Logger logger({.stream = &stream});
    const absl::Status status = Train(run, {.root = root_.string(), .request = &asked}, logger);
    return {status, log.str()};
  }
  static void MustTrain(const RunSpec& run) {
    const Outcome outcome = Start(run);
    ASSERT_TRUE(outcome.status.ok()) << outcome.status << "\n" << outcome.log;
  }

  static std::vector<StepRecord> Records(const std::string& folder) {
    std::ifstream file(root_ / folder / "metrics.jsonl");
    std::vector<StepRecord> records;
    for (std::string line; std::getline(file, line);) {
      if (line.find(R"("kind":"train")") == std::string::npos) continue;
      EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(line, &records.emplace_back()).ok())
          << line;
    }
    return records;
  }
  static std::vector<Line> Lines(const std::string& folder) {
    std::vector<Line> lines;
    for (const StepRecord& r : Records(folder)) {
      lines.emplace_back(r.step(), r.loss(), r.nll(), r.gradient_norm(), r.learning_rate(),
                         r.target_tokens());
    }
    return lines;
  }

  static std::string Bytes(const std::filesystem::path& file) {
    std::ifstream in(root_ / file, std::ios::binary);
    EXPECT_TRUE(in.good()) << file;
    std::ostringstream bytes;
    bytes << in.rdbuf();
    return bytes.str();
  }
  // Weights and both moments as they are on disk.
  static std::string Tensors(const std::string& folder, const std::string& checkpoint) {
    return Bytes(std::filesystem::path(folder) / checkpoint / "tensors-00000-of-00001.bin");
  }
  // Returns the ledger of skipped steps in a manifest: first step and count.
  static std::vector<std::pair<int64_t, int64_t>> Skips(const std::string& folder,
                                                        const std::string& checkpoint) {
    const auto fs = MakePosixFileSystem();
    const auto manifest = ReadManifest(*fs, (root_ / folder / checkpoint).string());
    EXPECT_TRUE(manifest.ok()) << manifest.status();
    std::vector<std::pair<int64_t, int64_t>> skips;
    for (const SkippedSteps& run : manifest->skips()) {
      skips.emplace_back(run.first_step(), run.count());
    }
    return skips;
  }
  static void ExpectSameRun(const std::string& folder, const std::string& other) {
    const std::vector<Line> lines = Lines(folder);
    EXPECT_EQ(lines.size(), 12u);
    EXPECT_EQ(lines, Lines(other));
    EXPECT_TRUE(Tensors(folder, "step-00000012") == Tensors(other, "step-00000012"));
  }

  static inline std::filesystem::path root_;
};

TEST_F(TrainTest, TheSameRunTwiceIsTheSameBitForBitAndLearns) {
  const Outcome first = Start(Run("twice-a")), second = Start(Run("twice-b"));
  ASSERT_TRUE(first.status.ok()) << first.status;
  ASSERT_TRUE(second.status.ok()) << second.status;
  ExpectSameRun("twice-a", "twice-b");
  EXPECT_LT(Records("twice-a").back().nll(), Records("twice-a").front().nll() - 0.3);

  int64_t source_tokens = 0, target_tokens = 0;
  const auto corpus = Corpus::Open((root_ / "corpus").string());
  ASSERT_TRUE(corpus.ok()) << corpus.status();
  DataSpec data = Run("").data();
  ASSERT_TRUE(ResolveDataSpec(*corpus, &data).ok());
  const auto batches = CorpusBatchSource::Make(data, Run("").seed(), &*corpus);
  ASSERT_TRUE(batches.ok()) << batches.status();
  for (int step = 0; step < 12; ++step) {
    const auto batch = (*batches)->ForStep(step);
    ASSERT_TRUE(batch.ok()) << batch.status();
    source_tokens += batch->num_source_tokens;
    target_tokens += batch->num_target_tokens;
  }
  EXPECT_EQ(Records("twice-a").back().source_tokens(), source_tokens);
  EXPECT_EQ(Records("twice-a").back().target_tokens(), target_tokens);

  // The hash that `train` prints is that of the weights in the checkpoint.
  const auto loaded = LoadModel((root_ / "twice-b").string(), {});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ((*loaded)->step, 12);
  const std::string hash = WeightsHash(ParameterHashes((*loaded)->models.front()->parameters()));
  EXPECT_THAT(first.log, HasSubstr("weights " + hash));
  EXPECT_THAT(second.log, HasSubstr("weights " + hash));
}

TEST_F(TrainTest, AnotherSeedIsAnotherRun) {
  MustTrain(Run("seed-a", 2));
  RunSpec run = Run("seed-b", 2);
  run.set_seed(4);
  MustTrain(run);
  EXPECT_NE(Lines("seed-a"), Lines("seed-b"));
}

TEST_F(TrainTest, StoppedAndResumedEqualsUninterruptedBitForBit) {
  MustTrain(Run("whole"));

  const Outcome early = Start(Run("parts"), kStopRequest);  // before the first step
  EXPECT_EQ(GetExitCode(early.status), ExitCode::kSavedRunAgain) << early.status;
  EXPECT_TRUE(std::filesystem::exists(root_ / "parts/step-00000000"));
  const Outcome stopped = StartAndAsk(Run("parts"), kStopRequest, "step 1 ");
  EXPECT_EQ(GetExitCode(stopped.status), ExitCode::kSavedRunAgain) << stopped.status;
  EXPECT_TRUE(std::filesystem::exists(root_ / "parts/step-00000002"));
  const Outcome again = Start(Run("parts"), kStopRequest);  // there is nothing new to save
  EXPECT_EQ(GetExitCode(again.status), ExitCode::kSavedRunAgain) << again.status;
  EXPECT_THAT(again.log, Not(HasSubstr("saved step 2")));
  const Outcome saved = StartAndAsk(Run("parts", 7), kSaveRequest, "step 5 ");
  EXPECT_TRUE(saved.status.ok()) << saved.status;
  EXPECT_THAT(saved.log, HasSubstr("continuing at step 2"));
  EXPECT_TRUE(std::filesystem::exists(root_ / "parts/step-00000006"));
  MustTrain(Run("parts"));
  ExpectSameRun("whole", "parts");
}

// The last of two stages, and nobody else, is asked to stop, and is late to its next step: the
// first one waits for it there.
TEST_F(TrainTest, AStopThatOneLateRankIsAskedForIsHonouredByAllAfterItsStep) {
  MustTrain(Run("prompt"));
  RunSpec run = Run("late");
  run.mutable_parallel()->set_pipeline_parallel_size(2);
  std::atomic<int> asked{0};
  const auto statuses = RunRanks(2, [&](Communicator& world) {
    ActingBuffer lines("step 5 ", [&] {
      absl::SleepFor(absl::Milliseconds(200));
      asked = kStopRequest;
    });
    std::ostream stream(&lines);
    Logger log({.stream = &stream});
    TrainOptions options{.root = root_.string(), .world = &world};
    if (world.rank() == 1) options.request = &asked;
    return Train(run, options, log);
  });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(GetExitCode(status), ExitCode::kSavedRunAgain) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("stopped and saved at step 6"));
  }
  MustTrain(Run("late"));
  ExpectSameRun("prompt", "late");
}

TEST_F(TrainTest, AnyNumberOfThreadsGivesTheSameBits) {
  RunSpec run = Run("threads-1");
  run.mutable_compute()->set_threads_per_rank(1);
  MustTrain(run);
  MustTrain(Run("threads-2"));
  run = Run("threads-4", 5);  // and the number may change on the way
  run.mutable_compute()->set_threads_per_rank(4);
  MustTrain(run);
  run.mutable_compute()->set_threads_per_rank(3);
  run.mutable_train()->set_steps(12);
  MustTrain(run);
  ExpectSameRun("threads-1", "threads-2");
  ExpectSameRun("threads-1", "threads-4");
}

TEST_F(TrainTest, VirtualReplicasGiveTheSameBitsTwiceAndNearlyTheSumWithoutThem) {
  const auto replicas = [](const std::string& folder, int number) {
    RunSpec run = Run(folder);
    run.mutable_data()->set_global_microbatches(2);
    run.mutable_optim()->set_virtual_replicas(number);
    return run;
  };
  MustTrain(replicas("replicas-a", 2));
  MustTrain(replicas("replicas-b", 2));
  ExpectSameRun("replicas-a", "replicas-b");

  MustTrain(replicas("replicas-none", 1));
  const auto two = Records("replicas-a"), one = Records("replicas-none");
  EXPECT_EQ(two[0].loss(), one[0].loss());  // the sums of gradients differ, the first loss not yet
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_NEAR(two[i].loss(), one[i].loss(), 1e-4 * one[i].loss());
  }
}

TEST_F(TrainTest, KeepsTheLatestCheckpointsAndTheBest) {
  RunSpec run = Run("pointers");
  run.mutable_train()->set_validate_every_steps(4);
  run.mutable_train()->set_validate_sentences(2);
  run.mutable_train()->set_keep_checkpoints(1);
  MustTrain(run);
  EXPECT_EQ(Bytes("pointers/latest"), "step-00000012\n");
  EXPECT_TRUE(std::filesystem::exists(root_ / "pointers/best-bleu"));
  for (const std::string metric : {"nll", "bleu"}) {
    std::string best = Bytes("pointers/best-" + metric);
    best.pop_back();
    const auto loaded = LoadModel((root_ / "pointers" / ("best-" + metric)).string(), {});
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_TRUE((*loaded)->folder.ends_with(best)) << (*loaded)->folder;
  }
  EXPECT_THAT(Bytes("pointers/metrics.jsonl"), HasSubstr(R"("kind":"validation","step":8)"));
}

TEST_F(TrainTest, BestScoresAndTheirPointersGoOnFromStartToStart) {
  const auto run = [](const std::string& folder, int64_t steps) {
    RunSpec spec = Run(folder, steps);
    spec.mutable_train()->set_validate_every_steps(2);
    spec.mutable_train()->set_validate_sentences(2);
    spec.mutable_train()->set_checkpoint_every_steps(2);
    return spec;
  };
  MustTrain(run("best-at-once", 8));
  for (const int64_t steps : {2, 6, 8}) MustTrain(run("best-in-parts", steps));
  const auto best = [](const std::string& folder) {
    const auto manifest = ReadManifest(*MakePosixFileSystem(), root_ / folder / "step-00000008");
    EXPECT_TRUE(manifest.ok()) << manifest.status();
    std::vector<std::tuple<std::string, double, int64_t>> scores;
    for (const BestScore& score : manifest->best()) {
      scores.emplace_back(score.metric(), score.value(), score.step());
    }
    return scores;
  };
  EXPECT_EQ(best("best-in-parts").size(), 2u);
  EXPECT_EQ(best("best-in-parts"), best("best-at-once"));
  for (const std::string pointer : {"/best-bleu", "/best-nll"}) {
    EXPECT_EQ(Bytes("best-in-parts" + pointer), Bytes("best-at-once" + pointer));
  }
}

TEST_F(TrainTest, GoesOnFromThePreviousCheckpointWhereTheLatestIsDamaged) {
  MustTrain(Run("damaged"));
  MustTrain(Run("whole-again"));
  std::string bytes = Tensors("damaged", "step-00000012");
  bytes[bytes.size() / 2] ^= 1;
  std::ofstream(root_ / "damaged/step-00000012/tensors-00000-of-00001.bin", std::ios::binary)
      << bytes;
  const Outcome outcome = Start(Run("damaged"));
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_THAT(outcome.log, AllOf(HasSubstr("warning"), HasSubstr("step-00000012"),
                                 HasSubstr("continuing at step 8")));
  ExpectSameRun("damaged", "whole-again");
}

TEST_F(TrainTest, AnotherModelVocabularyOrCorpusIsRefusedWithBothValues) {
  MustTrain(Run("mine", 1));
  const std::string before = Tensors("mine", "step-00000001");
  const auto expect_refused = [](const RunSpec& run, const std::string& what,
                                 const std::string& then, const std::string& now) {
    const Outcome outcome = Start(run);
    EXPECT_EQ(GetExitCode(outcome.status), ExitCode::kCheckpoint) << outcome.status;
    EXPECT_THAT(std::string(outcome.status.message()),
                AllOf(HasSubstr(what), HasSubstr(then + " in the checkpoint"),
                      HasSubstr(now + " in this run")));
  };
  RunSpec run = Run("mine", 2);
  run.mutable_model()->set_ffn_dim(96);
  expect_refused(run, "model.ffn_dim", "64", "96");

  ASSERT_TRUE(MakeCorpus(root_, "more-pieces", {"de", "fr"}, 310).ok());
  run = Run("mine", 2);
  run.mutable_data()->set_folder("more-pieces");
  expect_refused(run, "model.vocabulary_size", "303", "313");  // tags of de, en, fr

  ASSERT_TRUE(MakeCorpus(root_, "other-languages", {"de", "ru"}, 300).ok());
  run = Run("mine", 2);
  run.mutable_data()->set_folder("other-languages");
  const auto stored = LoadModel((root_ / "mine").string(), {});
  ASSERT_TRUE(stored.ok()) << stored.status();
  expect_refused(run, "tokenizer", (*stored)->vocabulary->hash(), "");
  expect_refused(run, "corpus", "", "");

  run = Run("new", 2);
  run.mutable_model()->set_vocabulary_size(999);
  const Outcome outcome = Start(run);
  EXPECT_EQ(GetExitCode(outcome.status), ExitCode::kBadConfig);
  EXPECT_THAT(std::string(outcome.status.message()), AllOf(HasSubstr("999"), HasSubstr("303")));
  EXPECT_TRUE(Tensors("mine", "step-00000001") == before);
}

TEST_F(TrainTest, FreshRefusesAFolderThatIsNotEmpty) {
  const Outcome first = Start(Run("fresh", 1), 0, /*fresh=*/true);
  EXPECT_TRUE(first.status.ok()) << first.status;
  const Outcome second = Start(Run("fresh", 2), 0, /*fresh=*/true);
  EXPECT_EQ(GetExitCode(second.status), ExitCode::kCheckpoint);
  EXPECT_THAT(std::string(second.status.message()), HasSubstr("require-empty"));
  EXPECT_EQ(Lines("fresh").size(), 1u);
}

TEST_F(TrainTest, TenNonFiniteStepsInARowEndTheRunWithItsOwnCode) {
  RunSpec run = Run("diverged", 40);
  run.mutable_optim()->set_warmup_steps(0);
  run.mutable_optim()->set_learning_rate(1e30);  // the first update throws the weights away
  const Outcome outcome = Start(run);
  EXPECT_EQ(GetExitCode(outcome.status), ExitCode::kDiverged) << outcome.status << outcome.log;
  const std::vector<StepRecord> records = Records("diverged");
  ASSERT_EQ(records.size(), 11u);
  EXPECT_EQ(records[0].skipped_steps(), 0);
  EXPECT_EQ(records[10].skipped_steps(), 10);
  EXPECT_THAT(outcome.log, HasSubstr("skipped"));
  // The ledger says which, and goes on where a run does.
  EXPECT_EQ(Skips("diverged", "step-00000008"), (std::vector<std::pair<int64_t, int64_t>>{{2, 7}}));
  run.mutable_train()->set_checkpoint_every_steps(10);
  EXPECT_EQ(GetExitCode(Start(run).status), ExitCode::kDiverged);
  EXPECT_EQ(Skips("diverged", "step-00000010"), (std::vector<std::pair<int64_t, int64_t>>{{2, 9}}));
  EXPECT_EQ(Records("diverged").size(), 11u);
  // Skipped steps changed nothing: the checkpoints at steps 4 and 8 hold the same tensors.
  EXPECT_TRUE(Tensors("diverged", "step-00000004") == Tensors("diverged", "step-00000008"));
}

}  // namespace
}  // namespace deepnet

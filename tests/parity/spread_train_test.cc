// Whole training runs that change their layout on the way: ranks are threads, everything else is
// what `deepnet train` does. "Same" is every bit of the losses and norms in metrics.jsonl and of
// the weights that `train` prints the hash of.
#include <algorithm>
#include <deque>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include "launch/defaults.h"
#include "tests/parity/train_in_threads.h"
#include "tests/parity/training_runs.h"
#include "tests/support/fault_file_system.h"
#include "tests/support/trace_file.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/trainer.h"

namespace deepnet {
namespace {

using deepnet::testing::FaultFileSystem;

struct Degrees {
  int stages = 1, replicas = 1;
  std::string schedule = "";  // empty: the planner's choice
  double subword_alpha = 0.0;
};

class SpreadTrainTest : public testing::CorpusTest {
 protected:
  static RunSpec Run(const std::string& folder, int64_t steps, const Degrees& degrees) {
    RunSpec run;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(
        R"(seed: 3
           model { encoder_layers: 2 decoder_layers: 3 d_model: 32 ffn_dim: 64 num_heads: 2
                   residual: DEEPNORM max_positions: 300
                   dropout: 0.1 attention_dropout: 0.1 activation_dropout: 0.1 }
           data { folder: 'corpus' max_sentence_tokens: 150 global_microbatches: 4
                  microbatch { max_source_tokens: 300 max_target_tokens: 300 max_sentences: 16 } }
           optim { learning_rate: 2e-3 warmup_steps: 4 clip_norm: 1 virtual_replicas: 2 }
           compute { device: 'cpu' dtype: FLOAT32 threads_per_rank: 1 }
           train { checkpoint_every_steps: 3 log_every_steps: 1 })",
        &run));
    run.set_folder(folder);
    run.mutable_train()->set_steps(steps);
    run.mutable_parallel()->set_pipeline_parallel_size(degrees.stages);
    run.mutable_parallel()->set_data_parallel_size(degrees.replicas);
    run.mutable_parallel()->set_schedule(degrees.schedule);
    run.mutable_data()->set_subword_alpha(degrees.subword_alpha);
    run = WithDefaults(run);
    run.mutable_train()->set_validate_every_steps(0);
    return run;
  }

  // Returns what rank 0 printed. `disks`: each rank's, or null.
  static std::string Train(const std::string& folder, int64_t steps, const Degrees& degrees,
                           std::deque<FaultFileSystem>* disks = nullptr) {
    return testing::MustTrainInThreads(Run(folder, steps, degrees), {.root = root_.string()},
                                       [&](int rank, TrainOptions& options) {
                                         if (disks != nullptr) options.files = &(*disks)[rank];
                                       });
  }

  static std::vector<testing::StepFigures> Lines(const std::string& folder) {
    return testing::ReadSteps(root_ / folder / "metrics.jsonl");
  }

  // Every tensor of the newest checkpoint, by name.
  static std::map<std::string, std::vector<float>> Tensors(const std::string& folder) {
    const auto fs = MakePosixFileSystem();
    const auto found = FindLatest(*fs, (root_ / folder).string());
    std::map<std::string, std::vector<float>> tensors;
    if (!found.ok() || !found->has_value()) return tensors;
    std::map<std::string, MutableNamedTensor> whole;
    for (const ShardFile& file : (*found)->manifest.files()) {
      for (const TensorExtent& extent : file.extents()) {
        size_t elements = 1;
        for (const int64_t size : extent.shape()) elements *= static_cast<size_t>(size);
        std::vector<float>& data = tensors[extent.name()];
        data.resize(elements);
        whole[extent.name()] = {
            extent.name(), {extent.shape().begin(), extent.shape().end()}, data};
      }
    }
    std::vector<MutableNamedTensor> views;
    for (const auto& [name, view] : whole) views.push_back(view);
    EXPECT_TRUE(ReadTensors(*fs, (*found)->folder, (*found)->manifest, views).ok());
    return tensors;
  }
};

TEST_F(SpreadTrainTest, ACheckpointOfAnyLayoutIsContinuedByAnyOtherBitForBit) {
  const std::string whole = Train("whole", 6, {});
  ASSERT_EQ(Lines("whole").size(), 6u);
  const std::vector<std::vector<Degrees>> changes = {
      {{2, 2}, {1, 1}}, {{1, 1}, {2, 2}}, {{2, 1}, {1, 2}}, {{3, 1}, {2, 2}}};
  for (size_t i = 0; i < changes.size(); ++i) {
    SCOPED_TRACE(i);
    const std::string folder = "change-" + std::to_string(i);
    Train(folder, 3, changes[i][0]);
    const std::string log = Train(folder, 6, changes[i][1]);
    EXPECT_THAT(log, ::testing::HasSubstr("continuing at step 3"));
    EXPECT_EQ(Lines(folder), Lines("whole"));
    EXPECT_EQ(testing::WeightsLine(log), testing::WeightsLine(whole));
  }
}

TEST_F(SpreadTrainTest, DrawnSegmentationsAreThoseOfOneRankOnAnyLayoutAndAfterAStop) {
  const std::string best = Train("best", 6, {});
  const std::string whole = Train("drawn", 6, {.subword_alpha = 0.1});
  EXPECT_NE(testing::WeightsLine(whole), testing::WeightsLine(best));
  Train("drawn-cut", 3, {.stages = 2, .replicas = 2, .subword_alpha = 0.1});
  const std::string log = Train("drawn-cut", 6, {.stages = 1, .replicas = 2, .subword_alpha = 0.1});
  EXPECT_EQ(Lines("drawn-cut"), Lines("drawn"));
  EXPECT_EQ(testing::WeightsLine(log), testing::WeightsLine(whole));
}

TEST_F(SpreadTrainTest, RatesFollowTheBatchWhereTheyAreMeantForAnother) {
  RunSpec scaled = Run("scaled", 3, {}), given = Run("given", 3, {});
  scaled.mutable_optim()->set_reference_batch_tokens(300);  // a quarter of this batch
  given.mutable_optim()->set_learning_rate(8e-3);
  given.mutable_optim()->set_initial_learning_rate(4e-7);
  given.mutable_optim()->set_warmup_steps(1);
  const std::string log = testing::MustTrainInThreads(scaled, {.root = root_.string()});
  EXPECT_THAT(log, ::testing::HasSubstr("k = 4 times optim.reference_batch_tokens"));
  EXPECT_EQ(testing::WeightsLine(log),
            testing::WeightsLine(testing::MustTrainInThreads(given, {.root = root_.string()})));
}

// One layout of every kind of schedule, up to 8 ranks. What each saves is the same to the bit,
// tensor by tensor; so every pair of layouts is covered when each of them goes on from one that is
// not its own.
TEST_F(SpreadTrainTest, EveryScheduleSavesTheSameAndGoesOnFromAnyOther) {
  const std::vector<Degrees> layouts = {
      {1, 1, ""},      {2, 1, "gpipe"}, {2, 2, "1f1b"}, {2, 1, "interleaved"},
      {4, 2, "zb-h1"}, {2, 2, "zb-v"},  {5, 1, "1f1b"}, {1, 2, ""}};
  constexpr int64_t kSaved = 3, kEnd = 8;
  const std::string whole = Train("whole-run", kEnd, {});
  ASSERT_EQ(Lines("whole-run").size(), static_cast<size_t>(kEnd));
  for (size_t i = 0; i < layouts.size(); ++i) {
    Train("saved-" + std::to_string(i), kSaved, layouts[i]);
    EXPECT_EQ(Tensors("saved-" + std::to_string(i)), Tensors("saved-0")) << i;
  }
  for (size_t i = 0; i < layouts.size(); ++i) {
    SCOPED_TRACE(layouts[i].schedule + " " + std::to_string(i));
    const std::string folder = "saved-" + std::to_string((i + 3) % layouts.size());
    const std::string log = Train(folder, kEnd, layouts[i]);
    EXPECT_THAT(log, ::testing::HasSubstr("continuing at step 3"));
    EXPECT_EQ(Lines(folder), Lines("whole-run"));
    EXPECT_EQ(testing::WeightsLine(log), testing::WeightsLine(whole));
  }
}

// Rank 0 has compared all of it before. Every file here is one block, so a rank reads its own and,
// for the embedding that is tied to both ends of the model, that of rank 0.
TEST_F(SpreadTrainTest, ARankReadsTheBlocksOfWhatItHoldsOnceAndNoOthers) {
  const Degrees four = {4, 1, "1f1b"};
  Train("shares", 3, four);
  const auto system = MakePosixFileSystem();
  const auto found = FindLatest(*system, (root_ / "shares").string());
  ASSERT_TRUE(found.ok() && found->has_value()) << found.status();
  const auto& files = (*found)->manifest.files();
  ASSERT_EQ(files.size(), 4);

  std::deque<FaultFileSystem> disks;
  for (int rank = 0; rank < 4; ++rank) disks.emplace_back(*system);
  EXPECT_THAT(Train("shares", 4, four, &disks), ::testing::HasSubstr("continuing at step 3"));
  constexpr int64_t kSmallFiles = 4096;  // what is not of the checkpoint
  for (int rank = 1; rank < 4; ++rank) {
    SCOPED_TRACE(rank);
    const int64_t read = disks[static_cast<size_t>(rank)].read_bytes();
    EXPECT_GE(read, files[rank].bytes());
    EXPECT_LE(read, files[rank].bytes() + files[0].bytes() + kSmallFiles);
  }
}

TEST_F(SpreadTrainTest, ATraceHasEverythingThatFourRanksDidAndChangesNoBits) {
  const RunSpec run = Run("traced", 5, {2, 2, "1f1b"});
  const std::string log =
      testing::MustTrainInThreads(run, {.root = root_.string(), .trace = {3, 4}});
  EXPECT_THAT(log, ::testing::HasSubstr("traced/trace-3-4.json, for ui.perfetto.dev"));
  const auto events = testing::ReadTrace(root_ / "traced" / "trace-3-4.json");
  testing::ExpectWholeTrace(events,
                            {.stages = 2, .replicas = 2, .microbatches = 2, .from = 3, .to = 4});
  const auto has = [&](const std::string& category, const std::string& name) {
    return std::any_of(events.begin(), events.end(), [&](const testing::FileEvent& event) {
      return event.category == category && event.name == name;
    });
  };
  for (const char* kernel : {"Linear", "LinearBackwardWeight", "AttentionBackward", "CrossEntropy",
                             "SumSquares", "Adam", "Refresh"}) {
    EXPECT_TRUE(has("kernel", kernel)) << kernel;
  }
  EXPECT_TRUE(has("save", "save"));
  EXPECT_TRUE(has("phase", "agreement"));
  const std::string plain = Train("plain", 5, {2, 2, "1f1b"});
  EXPECT_EQ(testing::WeightsLine(log), testing::WeightsLine(plain));
  EXPECT_EQ(Lines("traced"), Lines("plain"));
  EXPECT_FALSE(std::filesystem::exists(root_ / "plain" / "trace-3-4.json"));
}

// A stop ends the trace early; a run that is past the steps says so.
TEST_F(SpreadTrainTest, ATraceHoldsTheStepsThatWereLeft) {
  const auto train = [](int64_t steps, StepRange trace) {
    return testing::MustTrainInThreads(Run("few", steps, {}),
                                       {.root = root_.string(), .trace = trace});
  };
  train(2, {2, 9});
  testing::ExpectWholeTrace(testing::ReadTrace(root_ / "few" / "trace-2-2.json"),
                            {.microbatches = 4, .from = 2, .to = 2});
  EXPECT_THAT(train(3, {1, 2}), ::testing::HasSubstr("at step 2 already; nothing is traced"));
  train(5, {1, 4});
  testing::ExpectWholeTrace(testing::ReadTrace(root_ / "few" / "trace-4-4.json"),
                            {.microbatches = 4, .from = 4, .to = 4});
}

}  // namespace
}  // namespace deepnet

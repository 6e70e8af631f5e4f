// Instruments in whole training runs, ranks being threads: a run with them has the weights of a run
// without, to the bit, on any layout; and their records are the same on any layout, also when the
// run goes on with another one.
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include "launch/defaults.h"
#include "parallel/base/exit_code.h"
#include "proto/report.pb.h"
#include "tests/parity/train_in_threads.h"
#include "tests/parity/training_runs.h"
#include "trainer/instruments/instruments.h"
#include "trainer/trainer.h"

namespace deepnet {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kSteps = 6;

struct Degrees {
  int stages = 1, replicas = 1;
  std::string schedule = "";  // empty: the planner's choice
};

class InstrumentsTrainTest : public testing::CorpusTest {
 protected:
  static RunSpec Run(const std::string& folder, const Degrees& degrees,
                     const std::string& instruments) {
    RunSpec run;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(
        R"(seed: 3
           model { encoder_layers: 2 decoder_layers: 3 d_model: 32 ffn_dim: 64 num_heads: 2
                   residual: DEEPNORM max_positions: 300
                   dropout: 0.1 attention_dropout: 0.1 activation_dropout: 0.1 }
           data { folder: 'corpus' max_sentence_tokens: 150 global_microbatches: 4
                  microbatch { max_source_tokens: 300 max_target_tokens: 300 max_sentences: 16 } }
           optim { learning_rate: 2e-3 warmup_steps: 4 clip_norm: 1 weight_decay: 0.01 virtual_replicas: 2 }
           compute { device: 'cpu' dtype: FLOAT32 threads_per_rank: 1 }
           train { checkpoint_every_steps: 3 log_every_steps: 1 })",
        &run));
    EXPECT_TRUE(
        google::protobuf::TextFormat::ParseFromString(instruments, run.mutable_instruments()));
    run.set_folder(folder);
    run.mutable_train()->set_steps(kSteps);
    run.mutable_parallel()->set_pipeline_parallel_size(degrees.stages);
    run.mutable_parallel()->set_data_parallel_size(degrees.replicas);
    run.mutable_parallel()->set_schedule(degrees.schedule);
    run = WithDefaults(run);
    run.mutable_train()->set_validate_every_steps(0);
    return run;
  }

  // Returns what rank 0 printed.
  static std::string Train(const RunSpec& run) {
    return testing::MustTrainInThreads(run, {.root = root_.string()});
  }

  // Returns the records of a run's metrics.jsonl, without the seconds that they took.
  static std::vector<std::string> Records(const std::string& folder) {
    std::ifstream file(root_ / folder / "metrics.jsonl");
    std::vector<std::string> records;
    for (std::string line; std::getline(file, line);) {
      if (line.find(R"("kind":"instruments")") == std::string::npos) continue;
      InstrumentRecord record;
      EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(line, &record).ok()) << line;
      EXPECT_GT(record.seconds(), 0.0);
      record.clear_seconds();
      records.push_back(record.DebugString());
    }
    return records;
  }
};

TEST_F(InstrumentsTrainTest, TheyDoNotChangeABitAndSayTheSameOnAnyLayout) {
  const std::string without = testing::WeightsLine(Train(Run("without", {}, "")));
  ASSERT_THAT(without, HasSubstr("weights "));
  EXPECT_TRUE(Records("without").empty());
  const std::vector<Degrees> layouts = {
      {1, 1, ""},     {2, 1, ""},     {1, 2, ""}, {2, 2, "1f1b"}, {2, 1, "interleaved"},
      {2, 1, "zb-v"}, {3, 1, "zb-h1"}};
  for (size_t i = 0; i < layouts.size(); ++i) {
    SCOPED_TRACE(i);
    const std::string folder = "with-" + std::to_string(i);
    const std::string log = Train(Run(folder, layouts[i], "every_steps: 2 model_update: true"));
    EXPECT_EQ(testing::WeightsLine(log), without);
    ASSERT_EQ(Records(folder).size(), 3u);
    for (size_t r = 0; r < 3; ++r) {
      EXPECT_THAT(Records(folder)[r], HasSubstr("step: " + std::to_string(2 * r + 2) + "\n"));
    }
    EXPECT_EQ(Records(folder), Records("with-0"));
  }
}

TEST_F(InstrumentsTrainTest, ARunThatGoesOnWithAnotherLayoutGoesOnMeasuringFromItsFirstStep) {
  const char* instruments = "every_steps: 1 model_update: true";
  Train(Run("whole", {}, instruments));
  RunSpec half = Run("halves", {2, 1, ""}, instruments);
  half.mutable_train()->set_steps(3);
  Train(half);
  const std::string log = Train(Run("halves", {1, 2, ""}, instruments));
  EXPECT_THAT(log, HasSubstr("continuing at step 3"));
  EXPECT_THAT(log, Not(HasSubstr("model_update")));
  EXPECT_EQ(Records("halves").size(), static_cast<size_t>(kSteps));
  EXPECT_EQ(Records("halves"), Records("whole"));
}

TEST_F(InstrumentsTrainTest, WithoutTheFirstOutputOrWithADamagedOneTheModelsUpdateIsLeftOut) {
  const char* instruments = "every_steps: 3 model_update: true";
  RunSpec half = Run("lost", {}, instruments);
  half.mutable_train()->set_steps(3);
  Train(half);
  ASSERT_EQ(Records("lost").size(), 1u);
  EXPECT_THAT(Records("lost")[0], HasSubstr("model_update"));
  const std::filesystem::path file = root_ / "lost" / kModelUpdateReference;
  {
    std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekp(200);
    bytes.put('x');
  }
  const std::string log = Train(Run("lost", {2, 1, ""}, instruments));
  EXPECT_THAT(log, HasSubstr("does not tell where this run began"));
  ASSERT_EQ(Records("lost").size(), 2u);
  EXPECT_THAT(Records("lost")[1], Not(HasSubstr("model_update")));
  EXPECT_THAT(Records("lost")[1], HasSubstr("update_norm"));
}

// A learning rate that makes the weights infinite: steps from the second on are not finite.
TEST_F(InstrumentsTrainTest, AStepThatIsNotFiniteIsLookedIntoOnceInARowAndSaysTheSameOnAnyLayout) {
  const std::vector<Degrees> layouts = {{1, 1, ""}, {2, 1, ""}, {1, 2, ""}, {2, 2, "1f1b"}};
  std::vector<NonFiniteRecord> found;
  for (size_t i = 0; i < layouts.size(); ++i) {
    SCOPED_TRACE(i);
    const std::string folder = "diverges-" + std::to_string(i);
    RunSpec run = Run(folder, layouts[i], "");
    run.mutable_optim()->set_learning_rate(1e38);
    run.mutable_train()->set_steps(20);
    const testing::TrainOutcome outcome = testing::TrainInThreads(run, {.root = root_.string()});
    EXPECT_EQ(GetExitCode(outcome.status), ExitCode::kDiverged) << outcome.status << outcome.log;
    std::ifstream file(root_ / folder / "metrics.jsonl");
    int records = 0;
    for (std::string line; std::getline(file, line);) {
      if (line.find(R"("kind":"non_finite")") == std::string::npos) continue;
      ++records;
      EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(line, &found.emplace_back()).ok());
    }
    ASSERT_EQ(records, 1) << outcome.log;
    EXPECT_THAT(outcome.log, HasSubstr("first in the forward pass of " + found[i].sublayer()));
    EXPECT_NE(found[i].sublayer(), "");
    EXPECT_EQ(found[i].sublayer(), found[0].sublayer());
    EXPECT_EQ(found[i].value(), found[0].value());
    EXPECT_EQ(found[i].step(), found[0].step());
    EXPECT_EQ(found[i].rank(), 0) << "the first layers";
  }
}

}  // namespace
}  // namespace deepnet

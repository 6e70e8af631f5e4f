#include "trainer/telemetry/report.h"

#include <limits>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <google/protobuf/text_format.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include "tests/support/run_ranks.h"
#include "trainer/model/flops.h"

namespace deepnet {
namespace {

template <typename Message>
Message Parsed(const std::string& text) {
  Message message;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &message)) << text;
  return message;
}

RunSpec SmallRun() {
  return Parsed<RunSpec>(R"(
      model { encoder_layers: 3 decoder_layers: 2 d_model: 8 ffn_dim: 20 num_heads: 2
              vocabulary_size: 50 }
      data { microbatch { max_source_tokens: 20 max_target_tokens: 12 } }
      train { steps: 100 })");
}

// One microbatch of `source` and `target` positions, `labels` of which have one.
StepBatch Batch(int source, int target, int64_t labels) {
  Microbatch microbatch;
  microbatch.num_sentences = 1;
  microbatch.source.offsets = {0, source};
  microbatch.target.offsets = {0, target};
  return {.microbatches = {microbatch}, .num_target_tokens = labels};
}

StepResult Result(double loss, double nll, double norm, double rate, bool skipped = false) {
  return {.loss = loss,
          .nll = nll,
          .update = {.gradient_norm = norm, .rate = rate, .skipped = skipped},
          .loss_scale = 64};
}

void ExpectRecord(StepRecord record, const std::string& expected) {
  EXPECT_GT(record.resident_bytes(), 1 << 20);
  record.clear_resident_bytes();
  std::string difference;
  google::protobuf::util::MessageDifferencer differencer;
  differencer.set_float_comparison(google::protobuf::util::MessageDifferencer::APPROXIMATE);
  differencer.ReportDifferencesToString(&difference);
  EXPECT_TRUE(differencer.Compare(Parsed<StepRecord>(expected), record)) << difference;
}

TEST(StepReport, ARecordIsOfTheStepsSinceTheOneBefore) {
  const RunSpec run = SmallRun();
  StepReport report(run, /*ceiling_gflops=*/0, /*peak_flops=*/0);
  EXPECT_EQ(report.pace().seconds_per_step, 0.0);
  report.Add(Batch(9, 1, 1), Result(50, 50, 50, 50), 50);
  report.Take({}, Result(50, 50, 50, 50), {});
  report.Add(Batch(10, 6, 5), Result(4, 3, 1, 0.1), 2);
  report.Add(Batch(20, 12, 15), Result(8, 5, 2, 0.2), 6);
  StepResult skipped = Result(std::numeric_limits<double>::quiet_NaN(), 9, 7, 0.3, true);
  report.Add(Batch(8, 8, 10), skipped, 2);
  const auto state = Parsed<Manifest>(
      "step: 40 source_tokens: 700 target_tokens: 600 skipped_steps: 3 train_seconds: 90");
  ExpectRecord(report.Take(state, skipped, {.bubble = 0.25, .exposed_communication = 0.125}),
               R"(kind: "train" step: 40 loss: 7 nll: 4.5 source_tokens: 700 target_tokens: 600
                  tokens_per_second: 6.4 target_tokens_per_second: 3 gradient_norm: 7
                  learning_rate: 0.3 skipped_steps: 3 seconds: 90
                  packing_efficiency: 0.6666666666666667 bubble: 0.25 exposed_communication: 0.125
                  loss_scale: 64 seconds_to_end: 200)");  // 60 steps of 10 / 3 s
  EXPECT_DOUBLE_EQ(report.pace().seconds_per_step, 10.0 / 3);
  EXPECT_DOUBLE_EQ(report.pace().tokens_per_step, 10);
  EXPECT_EQ(report.all_seconds(), 60);

  // Skipped steps alone have the loss of the last.
  skipped = Result(11, 12, 1, 1, true);
  report.Add(Batch(16, 16, 4), skipped, 4);
  ExpectRecord(report.Take(Parsed<Manifest>("step: 41"), skipped, {}),
               R"(kind: "train" step: 41 loss: 11 nll: 12 tokens_per_second: 8
                  target_tokens_per_second: 1 gradient_norm: 1 learning_rate: 1
                  packing_efficiency: 1 loss_scale: 64 seconds_to_end: 236)");
}

TEST(StepReport, UtilisationIsThatOfTheCeilingAndOfThePeak) {
  const RunSpec run = SmallRun();
  const StepBatch batch = Batch(10, 6, 5);
  StepReport report(run, /*ceiling_gflops=*/2e-3, /*peak_flops=*/8e6);
  for (const double seconds : {1.0, 3.0}) report.Add(batch, Result(1, 1, 1, 1), seconds);
  const StepRecord record = report.Take(Parsed<Manifest>("step: 2"), Result(1, 1, 1, 1), {});
  const double flops = StepFlops(run.model(), batch) / 2;  // a second
  EXPECT_GT(flops, 0);
  EXPECT_DOUBLE_EQ(record.gemm_efficiency(), flops / 2e6);
  EXPECT_DOUBLE_EQ(record.mfu(), flops / 8e6);
}

TEST(StepReport, TheEndIsThatOfTheStepsOrOfTheMinutesWhicheverComesFirst) {
  struct Case {
    std::string train;
    int64_t step;
    double seconds, expected;
  };
  for (const auto& [train, step, seconds, expected] : std::vector<Case>{
           {"steps: 100", 60, 1000, 80},
           {"steps: 100", 100, 1000, 0},
           {"steps: 100", 101, 1000, 0},
           {"max_train_minutes: 10", 60, 590, 10},
           {"max_train_minutes: 10", 60, 610, 0},
           {"steps: 100 max_train_minutes: 10", 60, 590, 10},
           {"steps: 100 max_train_minutes: 10", 60, 100, 80},
           {"", 60, 100, 0},
       }) {
    RunSpec run = SmallRun();
    *run.mutable_train() = Parsed<TrainSpec>(train);
    StepReport report(run, 0, 0);
    report.Add(Batch(10, 6, 5), Result(1, 1, 1, 1), 2);
    Manifest state;
    state.set_step(step);
    state.set_train_seconds(seconds);
    EXPECT_EQ(report.Take(state, Result(1, 1, 1, 1), {}).seconds_to_end(), expected)
        << train << " " << step << " " << seconds;
  }
}

TEST(ProgressOf, HasEveryFigureThatThereIs) {
  struct Case {
    std::string record, train;
    NextTimes next;
    double fraction, seconds_left;
    std::string figures;
  };
  const std::string start = "step: 1250 loss: 4.5006 nll: 3.25 tokens_per_second: 12345.5 ",
                    steps = start + "gradient_norm: 1.256 learning_rate: 5e-4 ",
                    shown = "step 1,250  loss 4.501  nll 3.250  12,346 tokens/s",
                    last = "  norm 1.26  rate 5.00e-04";
  for (const Case& c : std::vector<Case>{
           {steps + "seconds_to_end: 7", "steps: 5000", {}, 0.25, 7, shown + last},
           {steps + "seconds: 300 seconds_to_end: 7",
            "steps: 5000 max_train_minutes: 10",
            {.save = 75},
            0.5,
            7,
            shown + "  save in 1:15" + last},
           {steps + "seconds: 60 seconds_to_end: 7",
            "steps: 2500 max_train_minutes: 10",
            {.validation = 0},
            0.5,
            7,
            shown + "  validation in 0:00" + last},
           {steps + "seconds: 900",
            "max_train_minutes: 10",
            {.save = 5, .validation = 3605},
            1,
            0,
            shown + "  save in 0:05  validation in 1:00:05" + last},
           {steps + "seconds_to_end: 7 bubble: 0.256 mfu: 0.4126 loss_scale: 0.5 skipped_steps: 12",
            "",
            {},
            -1,
            -1,
            shown + last + "  bubble 26 %  MFU 41.3 %  loss scale 0.5  skipped 12"},
       }) {
    const Progress progress =
        ProgressOf(Parsed<StepRecord>(c.record), Parsed<TrainSpec>(c.train), c.next);
    EXPECT_EQ(progress.label, "train");
    EXPECT_EQ(progress.fraction, c.fraction) << c.record << c.train;
    EXPECT_EQ(progress.seconds_left, c.seconds_left) << c.record << c.train;
    EXPECT_EQ(progress.figures, c.figures);
  }
}

// A rank that needs less than planned is told of like one that needs more.
TEST(ReportMemory, WarnsOnRankZeroOfARankThatIsFarFromItsPlan) {
  for (const auto& [measured, warns] :
       {std::pair{104, false}, std::pair{106, true}, std::pair{96, false}, std::pair{94, true}}) {
    std::vector<std::string> logs(2);
    const absl::Status status = FirstError(RunRanks(2, [&](Communicator& world) {
      std::ostringstream text;
      Logger log({.stream = &text});
      const absl::Status reported = ReportMemory(
          {.planned = 100, .measured = world.rank() == 1 ? measured : 100}, world, log);
      logs[world.rank()] = text.str();
      return reported;
    }));
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(logs[0].find("warning: memory: planned ") != std::string::npos, warns) << logs[0];
    EXPECT_NE(logs[0].find(" on rank 1"), std::string::npos) << logs[0];
    EXPECT_EQ(logs[1], "");
  }
}

}  // namespace
}  // namespace deepnet

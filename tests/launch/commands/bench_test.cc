#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include "launch/commands/commands.h"
#include "proto/report.pb.h"
#include "tests/launch/commands/run_command.h"

namespace deepnet {
namespace {

using ::testing::HasSubstr;
using testing::Outcome;
using testing::RunCommand;

Outcome RunBench(std::vector<std::string> words) {
  return RunCommand(MakeBenchCommand(), std::move(words));
}

TEST(BenchCommand, NamesEveryNumberThatIsOutOfRange) {
  const Outcome outcome = RunBench({"step", "--steps", "0", "--segment", "0"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("--steps: 0: must be from 1"));
  EXPECT_THAT(outcome.err, HasSubstr("--segment: 0: must be from 1"));
}

TEST(BenchCommand, RefusesALevelThatIsNone) {
  const Outcome outcome = RunBench({"step", "--recompute", "everything"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("recompute"));
}

// The functions of a step on a CPU, each as often as its layers call it; they are most of the step.
TEST(BenchCommand, TimesEveryKernelOfAStep) {
  const Outcome outcome = RunBench({"kernels", "--layers", "2", "--width", "64", "--tokens", "300",
                                    "--steps", "2", "--dtype", "float32", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  KernelsRecord record;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(outcome.out, &record).ok());
  EXPECT_EQ(record.name(), "kernels/A layers=2 width=64 tokens=300");
  EXPECT_EQ(record.device(), "cpu");
  std::map<std::string, double> calls;
  double share = 0.0;
  for (const KernelRecord& kernel : record.kernels()) {
    calls[kernel.name()] = kernel.calls_per_step();
    EXPECT_GT(kernel.seconds_per_call(), 0.0) << kernel.name();
    share += kernel.share();
  }
  EXPECT_EQ(calls["Attention"], 6);  // two in a layer of the decoder, one in one of the encoder
  EXPECT_EQ(calls["AttentionBackward"], 6);
  EXPECT_EQ(calls["Embed"], 2);
  EXPECT_EQ(calls["CrossEntropy"], 1);
  EXPECT_GT(calls["Adam"], 0);
  EXPECT_GT(share, 0.3);
  EXPECT_LE(share, 1.0);
  EXPECT_THAT(RunBench({"kernels", "--layers", "1", "--tokens", "100", "--steps", "1"}).out,
              HasSubstr("LinearBackwardWeight"));
}

TEST(BenchCommand, ShapesCanBeChanged) {
  const Outcome outcome =
      RunBench({"step", "--layers", "1", "--width", "66", "--tokens", "200", "--steps", "1"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("step/A layers=1 width=66 tokens=200"));
  EXPECT_EQ(RunBench({"step", "--width", "257"}).code, 2);  // four heads do not divide it
  EXPECT_EQ(RunBench({"step", "--tokens", "1"}).code, 4);   // no sentence is that short
}

TEST(BenchCommand, ADeviceThatIsNotThereIsSaid) {
  const Outcome outcome = RunBench({"step", "--device", "cuda"});
  EXPECT_EQ(outcome.code, 3);
  EXPECT_THAT(outcome.err, HasSubstr("compute.device: \"cuda\""));
}

TEST(BenchCommand, MeasuresWhatRecomputationAddsToAStep) {
  const Outcome outcome = RunBench({"step", "--layers", "2", "--width", "64", "--steps", "1",
                                    "--recompute", "FULL", "--segment", "2", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  BenchRecord record;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(outcome.out, &record).ok());
  EXPECT_EQ(record.recompute(), "FULL");
  EXPECT_EQ(record.recompute_segment(), 2);
  EXPECT_NE(record.recompute_share(), 0.0);  // how much is a matter of the machine's other work
  EXPECT_GT(record.seconds_per_step(), 0.0);
}

}  // namespace
}  // namespace deepnet

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

TEST(BenchCommand, MeasuresWhatRecomputationAddsToAStep) {
  const Outcome outcome = RunBench(
      {"step", "--shape", "A", "--steps", "1", "--recompute", "FULL", "--segment", "2", "--json"});
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

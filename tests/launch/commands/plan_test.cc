#include "launch/commands/plan.h"

#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include "launch/program.h"
#include "proto/plan.pb.h"

namespace deepnet {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kTiny[] = "tests/golden/describe/tiny.textproto";

struct Outcome {
  int code;
  std::string out, err;
};

Outcome RunPlan(std::vector<std::string> words) {
  words.insert(words.begin(), "plan");
  std::istringstream in;
  std::ostringstream out, err;
  const int code = RunProgram({MakePlanCommand()}, words, {in, out, err});
  return {code, out.str(), err.str()};
}

TEST(PlanCommand, PrintsATableAndTheSchedule) {
  const Outcome outcome =
      RunPlan({"--config", kTiny, "--set", "parallel.pipeline_parallel_size=2", "--schedule"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out,
              StartsWith("2 stages x 1 replica, schedule 1f1b, 4 microbatches a step\n"));
  EXPECT_THAT(outcome.out, HasSubstr("encoder.embedding .. decoder.embedding\n"));
  EXPECT_THAT(outcome.out, HasSubstr("rank 1: 1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3\n"));
}

TEST(PlanCommand, JsonIsThePlanMessage) {
  const Outcome outcome = RunPlan({"--config", kTiny, "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  Plan plan;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(outcome.out, &plan).ok()) << outcome.out;
  EXPECT_EQ(plan.pipeline_parallel_size(), 1);
  EXPECT_EQ(plan.data_parallel_size(), 2);
  EXPECT_EQ(plan.stages_size(), 2);
}

TEST(PlanCommand, SaysWhoseMemoryItTakesWhereNoneIsGiven) {
  const Outcome outcome = RunPlan({"--config", kTiny, "--set", "cluster.device_memory_gib="});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("this host's memory over 2 ranks"));
}

TEST(PlanCommand, AThousandLayersThatDoNotFitExitWithSixAndAreShownAllTheSame) {
  const Outcome outcome =
      RunPlan({"--config", "launch/recipes/deepnet_1000l.textproto", "--set", "cluster.nodes=1",
               "--set", "cluster.devices_per_node=1", "--set", "cluster.device_memory_gib=80"});
  EXPECT_EQ(outcome.code, 6);
  EXPECT_THAT(outcome.out, HasSubstr("encoder.embedding .. output"));
  EXPECT_THAT(outcome.err, HasSubstr("does not fit: with pipeline_parallel_size 1 rank 0"));
  EXPECT_THAT(outcome.err, HasSubstr("what fits: pipeline_parallel_size"));
}

TEST(PlanCommand, RefusesStagesThatTheClusterDoesNotHave) {
  const Outcome outcome =
      RunPlan({"--config", kTiny, "--set", "parallel.pipeline_parallel_size=3"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("parallel"));
}

TEST(PlanCommand, DoesNotMixJsonWithText) {
  EXPECT_EQ(RunPlan({"--config", kTiny, "--json", "--schedule"}).code, 2);
}

}  // namespace
}  // namespace deepnet

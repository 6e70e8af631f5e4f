// Plans for GPUs, whose seconds come from the kernels that the model launches.
#include <cmath>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include <gmock/gmock.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include "launch/commands/command.h"
#include "proto/plan.pb.h"
#include "tests/launch/commands/run_command.h"
#include "trainer/model/work.h"

namespace deepnet {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using testing::Outcome;
using testing::RunCommand;

constexpr char kTiny[] = "tests/golden/describe/tiny.textproto";

Outcome RunPlan(std::vector<std::string> words) {
  return RunCommand(MakePlanCommand(), std::move(words), DescribeWork);
}

Plan JsonPlan(std::vector<std::string> words) {
  words.push_back("--json");
  const Outcome outcome = RunPlan(std::move(words));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  Plan plan;
  EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(outcome.out, &plan).ok());
  return plan;
}

TEST(PlanCommand, PredictsGpusByTheirModelAndSaysWhichItTook) {
  const std::vector<std::string> words = {
      "--config", kTiny, "--set", "compute.device=cuda", "--set", "cluster.device_memory_gib=80"};
  const auto with = [&](const std::string& setting) {
    std::vector<std::string> more = words;
    more.insert(more.end(), {"--set", setting});
    return more;
  };
  const Outcome outcome = RunPlan(words);
  EXPECT_THAT(outcome.err, HasSubstr("cluster.device_model is not set: taking the speeds of H100"));
  EXPECT_THAT(outcome.out, HasSubstr("predicted for H100: MFU "));
  EXPECT_THAT(RunPlan(with("cluster.device_model=a100")).out, HasSubstr("predicted for A100"));
  EXPECT_THAT(RunPlan(with("cluster.device_model=A1000")).err,
              HasSubstr("cluster.device_model: 'A1000' is none of A100, "));
  const Plan plan = JsonPlan(with("cluster.device_model=H200"));
  EXPECT_GT(plan.prediction().mfu(), 0);
  ASSERT_GE(plan.prediction().kernels_size(), 3);
  EXPECT_GE(plan.prediction().kernels(0).seconds(), plan.prediction().kernels(1).seconds());
  // A stated rate replaces the device's figures; MFU is still over its peak.
  const Plan stated = JsonPlan(with("cluster.flops_per_second=1e6"));
  EXPECT_GT(stated.step_seconds(), 10 * plan.step_seconds());
  EXPECT_EQ(stated.prediction().kernels_size(), 0);
  EXPECT_FALSE(JsonPlan({"--config", kTiny}).has_prediction());
  std::vector<std::string> kernels = words;
  kernels.push_back("--print=kernels");
  EXPECT_THAT(RunPlan(kernels).out, HasSubstr("bound by"));
}

// 18065.4 as "18,065".
std::string WithComma(double number) {
  const int64_t whole = std::llround(number);
  return whole < 1000 ? absl::StrCat(whole)
                      : absl::StrFormat("%d,%03d", whole / 1000, whole % 1000);
}

// Every run of docs/design/roofline.md is planned anew. The page says why they differ.
TEST(PlanCommand, PublishedRunsArePredictedAsTheirTableSays) {
  std::stringstream page;
  page << std::ifstream("docs/design/roofline.md").rdbuf();
  std::ifstream table("tests/golden/roofline/published_runs.tsv");
  std::string line;
  int runs = 0;
  while (std::getline(table, line)) {
    if (line.empty() || line[0] == '#') continue;
    const std::vector<std::string> columns = absl::StrSplit(line, '\t');
    ASSERT_EQ(columns.size(), 7u) << line;
    SCOPED_TRACE(columns[0]);
    const bool two_stacks = columns[2] == "transformer";
    std::vector<std::string> words = {
        "--config", absl::StrCat("tests/golden/roofline/", columns[2], ".textproto"),
        "--set",    absl::StrCat("cluster.device_model=", columns[1]),
        "--set",    "cluster.device_memory_gib=1000"};
    for (const absl::string_view setting : absl::StrSplit(columns[3], ' ')) {
      words.insert(words.end(), {"--set", std::string(setting)});
    }
    const Plan plan = JsonPlan(words);
    const double tokens = plan.prediction().tokens_per_second() / plan.stages_size();
    const double labelled = two_stacks ? tokens / 2 : tokens;
    const double published = std::stod(columns[4]), predicted = std::stod(columns[5]);
    EXPECT_NEAR(labelled / predicted, 1.0, 0.01) << "the table says " << predicted;
    EXPECT_THAT(page.str(),
                HasSubstr(absl::StrFormat("| %s | %s | %s | %s | %.2f |", columns[0], columns[1],
                                          WithComma(published), WithComma(predicted),
                                          published / predicted)));
    EXPECT_GT(published, 0.5 * labelled);
    EXPECT_LT(published, 1.5 * labelled);
    ++runs;
  }
  EXPECT_GE(runs, 5);
}

// At the CPU's speeds a step of the thousand layers took hours.
TEST(PlanCommand, RecipesOfClustersArePlannedForGpus) {
  for (const char* recipe : {"deepnet_1000l", "deepnet_100l", "m2m100_12b", "m2m100_1_2b",
                             "m2m100_418m", "paper/iwslt14", "paper/languages102", "paper/wmt17"}) {
    const Outcome outcome = RunPlan(
        {"--config", std::string("launch/recipes/") + recipe + ".textproto", "--set",
         "model.vocabulary_size=250002", "--set", "cluster.device_memory_gib=512", "--json"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    Plan plan;
    ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(outcome.out, &plan).ok());
    EXPECT_LT(plan.step_seconds(), 100) << recipe;
    EXPECT_THAT(outcome.err, Not(HasSubstr("planning for the CPU")));
  }
}

}  // namespace
}  // namespace deepnet

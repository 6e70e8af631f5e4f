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

#include "launch/commands/commands.h"
#include "launch/commands/sbatch.h"
#include "proto/plan.pb.h"
#include "tests/launch/commands/run_command.h"

namespace deepnet {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::Outcome;
using testing::RunCommand;
using ::testing::StartsWith;

constexpr char kTiny[] = "tests/golden/describe/tiny.textproto";

Outcome RunPlan(std::vector<std::string> words) {
  return RunCommand(MakePlanCommand(), std::move(words));
}

TEST(PlanCommand, PrintsThePlan) {
  const Outcome outcome = RunPlan({"--config", kTiny, "--set", "parallel.pipeline_parallel_size=2",
                                   "--set", "parallel.schedule=1f1b"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, StartsWith("2 stages x 1 replica, schedule 1f1b, 1 chunk a rank, 4 "
                                      "microbatches a step\n"));
  EXPECT_THAT(outcome.out, HasSubstr("encoder.embedding .. decoder.embedding\n"));
}

TEST(PlanCommand, PrintsTheSectionsThatAreAskedFor) {
  const Outcome outcome =
      RunPlan({"--config", kTiny, "--set", "parallel.pipeline_parallel_size=2", "--set",
               "parallel.schedule=1f1b", "--print=schedule", "--print=layout", "--print=memory"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, StartsWith("rank 0 |"));  // the drawing
  EXPECT_THAT(outcome.out, HasSubstr("rank 1: 1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3\n"));
  EXPECT_THAT(outcome.out, HasSubstr("kept MiB"));
  EXPECT_THAT(outcome.out, HasSubstr("moments"));
  EXPECT_THAT(outcome.out, Not(HasSubstr("replica")));
}

TEST(PlanCommand, ComparesSchedules) {
  const Outcome outcome =
      RunPlan({"--config", kTiny, "--set", "parallel.pipeline_parallel_size=2", "--compare"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("halves by count, 1f1b"));
  EXPECT_THAT(outcome.out, HasSubstr("zb-v"));
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

TEST(PlanCommand, DrawsAndReadsSchedulesOfTheUser) {
  const std::string folder = ::testing::TempDir();
  std::ofstream(folder + "/mine.schedule") << "rank 0: 0F0 0F1 0B0 0F2 0B1 0F3 0B2 0B3\n"
                                              "rank 1: 1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3\n";
  const Outcome outcome =
      RunPlan({"--config", kTiny, "--set", "parallel.pipeline_parallel_size=2", "--set",
               "parallel.schedule=" + folder + "/mine.schedule", "--svg", folder + "/mine.svg"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("schedule custom"));
  std::ifstream svg(folder + "/mine.svg");
  std::string word;
  svg >> word;
  EXPECT_EQ(word, "<svg");

  std::ofstream(folder + "/broken.schedule") << "rank 0: 0F0\nrank 1: 1F0\n";
  const Outcome broken = RunPlan({"--config", kTiny, "--set", "parallel.pipeline_parallel_size=2",
                                  "--set", "parallel.schedule=" + folder + "/broken.schedule"});
  EXPECT_EQ(broken.code, 2);
  EXPECT_THAT(broken.err, HasSubstr("parallel.schedule"));
}

// Runs `plan --sbatch` with these words and returns the script.
std::string Script(std::vector<std::string> words) {
  const std::string path = ::testing::TempDir() + "/planned.sbatch";
  words.insert(words.end(), {"--config", kTiny, "--sbatch", path});
  const Outcome outcome = RunPlan(std::move(words));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// Slurm itself takes such a script in tests/launch/slurm.
TEST(PlanCommand, WritesAJobForItsPlan) {
  const std::vector<std::string> words = {
      "--set", "cluster.nodes=2", "--set", "cluster.devices_per_node=2",
      "--set", "train.steps=900", "--set", "compute.threads_per_rank=3",
      "--set", "name=it's"};
  const std::string cpu = Script(words);
  EXPECT_THAT(cpu, StartsWith("#!/usr/bin/env bash\n# Trains it_s as `deepnet plan` found it: "));
  EXPECT_THAT(cpu, HasSubstr("\n#SBATCH --nodes=2\n#SBATCH --ntasks=4\n"
                             "#SBATCH --ntasks-per-node=2\n#SBATCH --cpus-per-task=3\n"
                             "#SBATCH --mem=3G\n"));
  EXPECT_THAT(cpu, Not(HasSubstr("gpu")));
  EXPECT_THAT(cpu, HasSubstr("\nrun_ranks train --config tests/golden/describe/tiny.textproto "));
  EXPECT_THAT(cpu, HasSubstr(" --set 'name=it'\\''s' --set parallel.pipeline_parallel_size="));
  EXPECT_THAT(cpu, HasSubstr(" \"$@\"\n"));

  std::vector<std::string> slow = words;
  slow.insert(slow.end(), {"--set", "cluster.flops_per_second=10"});
  EXPECT_THAT(Script(slow), ContainsRegex("--time=[0-9]+-"));
  std::vector<std::string> cuda = words;
  cuda.insert(cuda.end(),
              {"--set", "compute.device=cuda", "--set", "cluster.device_memory_gib=80"});
  EXPECT_THAT(Script(cuda), HasSubstr("\n#SBATCH --gres=gpu:2\n"));
}

TEST(RequestFor, BesideAGpuARankPinsWeightsAndMoments) {
  Plan plan;
  MemoryEstimate& memory = *plan.add_stages()->mutable_memory();
  memory.set_weights(int64_t{4} << 30);
  memory.set_moments(int64_t{8} << 30);
  memory.set_total(int64_t{70} << 30);
  RunSpec run;
  run.mutable_compute()->set_device("cuda");
  EXPECT_EQ(RequestFor(plan, run, 8).node_memory_gib, 4 + 8 + 6);
  run.mutable_compute()->set_device("cpu");
  EXPECT_EQ(RequestFor(plan, run, 8).node_memory_gib, 70 + 1);
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

TEST(PlanCommand, ADeviceThatIsOpenIsTheGpuWhereThereIsOneElseTheCpuAndThatIsSaid) {
  const auto plan = [](bool (*has_cuda)(), const std::string& device) {
    std::istringstream in;
    std::ostringstream out, err;
    const int code = RunProgram({MakePlanCommand()},
                                {"plan", "--config", kTiny, "--set", "compute.device=" + device,
                                 "--set", "cluster.device_memory_gib=4"},
                                {in, out, err, has_cuda});
    EXPECT_EQ(code, 0) << err.str();
    return std::pair(out.str(), err.str());
  };
  const auto yes = [] { return true; };
  const auto no = [] { return false; };
  const auto [gpu, gpu_note] = plan(yes, "auto");
  const auto [cpu, cpu_note] = plan(no, "");
  EXPECT_EQ(gpu, plan(no, "cuda").first);
  EXPECT_EQ(cpu, plan(yes, "cpu").first);
  EXPECT_NE(gpu, cpu);
  EXPECT_THAT(gpu_note, Not(HasSubstr("compute.device")));
  EXPECT_THAT(cpu_note, HasSubstr("no GPU is seen: planning for the CPU"));
}

TEST(PlanCommand, SaysWhoseMemoryItTakesWhereNoneIsGiven) {
  const Outcome outcome = RunPlan({"--config", kTiny, "--set", "cluster.device_memory_gib="});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("this host's memory over 2 ranks"));
  const Outcome gpus = RunPlan({"--config", kTiny, "--set", "cluster.device_memory_gib=", "--set",
                                "compute.device=cuda", "--print=memory"});
  EXPECT_EQ(gpus.code, 0) << gpus.err;
  EXPECT_THAT(gpus.err, HasSubstr("planning for GPUs without a limit"));
  EXPECT_THAT(gpus.out, HasSubstr("of a GPU, beside tensors of the model\n rank  context"));
}

TEST(PlanCommand, AThousandLayersThatDoNotFitExitWithSixAndAreShownAllTheSame) {
  const Outcome outcome =
      RunPlan({"--config", "launch/recipes/deepnet_1000l.textproto", "--set", "cluster.nodes=1",
               "--set", "cluster.devices_per_node=1", "--set", "cluster.device_memory_gib=60"});
  EXPECT_EQ(outcome.code, 6);
  EXPECT_THAT(outcome.out, HasSubstr("encoder.embedding .. output"));
  EXPECT_THAT(outcome.err,
              HasSubstr("does not fit: with pipeline_parallel_size 1, data_parallel_size 1"));
  EXPECT_THAT(outcome.err, HasSubstr("what fits:"));
}

TEST(PlanCommand, RefusesStagesThatTheClusterDoesNotHave) {
  const Outcome outcome =
      RunPlan({"--config", kTiny, "--set", "parallel.pipeline_parallel_size=3"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("parallel"));
}

TEST(PlanCommand, DoesNotMixTablesOfDifferentKinds) {
  EXPECT_EQ(RunPlan({"--config", kTiny, "--json", "--print=plan"}).code, 2);
  EXPECT_EQ(RunPlan({"--config", kTiny, "--compare", "--json"}).code, 2);
  EXPECT_EQ(RunPlan({"--config", kTiny, "--compare", "--svg=x"}).code, 2);
  EXPECT_EQ(RunPlan({"--config", kTiny, "--print=everything"}).code, 2);
}

}  // namespace
}  // namespace deepnet

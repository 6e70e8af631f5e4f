#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include "launch/commands/command.h"
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

  EXPECT_THAT(cpu, HasSubstr(" --set parallel.schedule="));

  // From a root, and with a schedule that the user wrote: the job is to train by that file.
  const std::string root = ::testing::TempDir();
  std::ofstream(root + "/rooted.schedule") << "rank 0: 0F0 0F1 0B0 0F2 0B1 0F3 0B2 0B3\n"
                                              "rank 1: 1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3\n";
  std::filesystem::copy_file(kTiny, root + "/rooted.textproto",
                             std::filesystem::copy_options::overwrite_existing);
  const std::string path = root + "/rooted.sbatch";
  const Outcome rooted =
      RunPlan({"--root", root, "--config", "rooted.textproto", "--sbatch", "rooted.sbatch", "--set",
               "parallel.pipeline_parallel_size=2", "--set", "parallel.schedule=rooted.schedule"});
  ASSERT_EQ(rooted.code, 0) << rooted.err;
  std::stringstream script;
  script << std::ifstream(path).rdbuf();
  EXPECT_THAT(script.str(),
              HasSubstr("\nrun_ranks train --root " + root +
                        " --config rooted.textproto --set parallel.pipeline_parallel_size=2 --set "
                        "parallel.schedule=rooted.schedule --set "
                        "parallel.pipeline_parallel_size=2 --set parallel.data_parallel_size=1 "
                        "\"$@\"\n"));

  std::vector<std::string> slow = words;
  slow.insert(slow.end(), {"--set", "cluster.flops_per_second=10"});
  EXPECT_THAT(Script(slow), ContainsRegex("--time=[0-9]+-"));
  std::vector<std::string> cuda = words;
  cuda.insert(cuda.end(),
              {"--set", "compute.device=cuda", "--set", "cluster.device_memory_gib=80"});
  EXPECT_THAT(Script(cuda), HasSubstr("\n#SBATCH --gres=gpu:2\n"));
}

TEST(SbatchScript, RoundsTimeUpToMinutes) {
  for (const auto& [seconds, text] :
       {std::pair(90061.0, "1-01:02:00"), std::pair(86340.0, "0-23:59:00")}) {
    EXPECT_THAT(SbatchScript({.run_seconds = seconds}, Plan(), RunSpec(), {}),
                HasSubstr(std::string("\n#SBATCH --time=") + text + "\n"));
  }
  EXPECT_THAT(SbatchScript({}, Plan(), RunSpec(), {}), Not(HasSubstr("--time=")));
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

// 4/3 of steps, saves that training waits for, and the first and last one; and 10 minutes.
TEST(RequestFor, TimeIsThatOfStepsAndOfSavesOfOneReplica) {
  Plan plan;
  plan.set_pipeline_parallel_size(2);
  plan.set_data_parallel_size(2);
  plan.set_step_seconds(0.5);
  for (int i = 0; i < 4; ++i) plan.add_stages()->mutable_memory()->set_weights(1'000'000'000);
  RunSpec run;
  const auto seconds = [&] { return RequestFor(plan, run, 8).run_seconds; };
  EXPECT_EQ(seconds(), 0.0);  // no limit
  run.mutable_train()->set_steps(100);
  run.mutable_train()->set_checkpoint_every_steps(10);
  // A save of 6 GB takes 6 s, a second longer than the steps up to the next.
  EXPECT_DOUBLE_EQ(seconds(), (50 + 10 * 1 + 2 * 6) * 4.0 / 3 + 600);
  run.mutable_parallel()->set_blocking_saves(true);
  EXPECT_DOUBLE_EQ(seconds(), (50 + 10 * 6 + 2 * 6) * 4.0 / 3 + 600);
  run.mutable_parallel()->set_blocking_saves(false);
  run.mutable_optim()->set_ema_decay(0.999);
  EXPECT_DOUBLE_EQ(seconds(), (50 + 10 * 3 + 2 * 8) * 4.0 / 3 + 600);
  run.mutable_train()->set_max_train_minutes(1);
  EXPECT_DOUBLE_EQ(seconds(), 60 * 4.0 / 3 + 600);
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

TEST(PlanCommand, ADeviceThatIsOpenIsTheGpuWhereThereIsOneElseTheCpuAndThatIsSaid) {
  const auto plan = [](bool (*has_cuda)(), const std::string& device,
                       const std::string& set = "seed=1") {
    std::istringstream in;
    std::ostringstream out, err;
    const int code = RunProgram({MakePlanCommand()},
                                {"plan", "--config", kTiny, "--set", "compute.device=" + device,
                                 "--set", "cluster.device_memory_gib=4", "--set", set},
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
  for (const char* for_cpus : {"compute.isa=BASELINE", "compute.matmul=NATIVE"}) {
    EXPECT_EQ(plan(yes, "auto", for_cpus), plan(no, "auto", for_cpus)) << for_cpus;
  }
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
  const auto of_model = [](const std::string& memory) {
    return RunPlan({"--config", kTiny, "--set", "cluster.device_memory_gib=" + memory, "--set",
                    "compute.device=cuda", "--set", "cluster.device_model=a100", "--json"});
  };
  const Outcome named = of_model("");
  EXPECT_THAT(named.err, HasSubstr("cluster.device_memory_gib is not set: taking 79.3, of A100\n"));
  const Outcome given = of_model("79.3");
  EXPECT_EQ(named.out, given.out);
  EXPECT_THAT(given.err, Not(HasSubstr("cluster.device_memory_gib")));
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

// The laboratory with a shell script in the place of `deepnet train` and `deepnet evaluate`: what
// it starts, what it makes of how that ends, what a second start does.
#include <atomic>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launch/commands/lab_child.h"
#include "launch/commands/lab_corpus.h"
#include "launch/commands/lab_schedule.h"
#include "tests/launch/commands/lab_rig.h"
#include "trainer/data/corpus.h"
#include "trainer/stop_requests.h"

namespace deepnet {
namespace {

using ::testing::HasSubstr;
using testing::LabRig;
using testing::Outcome;

class LabTest : public LabRig {};

TEST_F(LabTest, ListNamesEveryExperiment) {
  const Outcome outcome = RunLab({"list"});
  EXPECT_EQ(outcome.code, 0);
  for (const std::string& name : ExperimentNames()) EXPECT_THAT(outcome.out, HasSubstr(name));
}

TEST_F(LabTest, RunsEveryCellAndDivergenceIsAResult) {
  const Outcome outcome = RunAblation();
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  const LabResult result = Result();
  ASSERT_EQ(result.cells_size(), 6);
  EXPECT_EQ(NumCalls("train"), 6);
  EXPECT_EQ(NumCalls("evaluate"), 4);
  for (const LabCell& cell : result.cells()) {
    const bool diverges = cell.series() == "post-ln" && cell.x() >= 18;
    EXPECT_EQ(cell.status(), diverges ? CELL_DIVERGED : CELL_DONE) << cell.name();
    EXPECT_EQ(cell.steps_size(), 2) << cell.name();
    EXPECT_EQ(cell.test().nll(), diverges ? 0 : 5.8) << cell.name();
    EXPECT_EQ(cell.seconds(), 30) << cell.name();
  }
  EXPECT_GT(result.data().word_frequency_nll(), 0);
  EXPECT_THAT(folder_.Read("out/report.html"), HasSubstr("2 diverged"));
}

TEST_F(LabTest, WhatIsDoneIsNotRunAgainAndLeavesNoWeights) {
  ASSERT_EQ(RunAblation().code, 0);
  const Outcome again = RunAblation();
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(NumCalls("train"), 6);
  EXPECT_EQ(Result().cells_size(), 6);
  EXPECT_FALSE(std::filesystem::exists("out/cells/deepnet-6-s1/run"));
  EXPECT_TRUE(std::filesystem::exists("out/cells/deepnet-6-s1/metrics.jsonl"));
}

TEST_F(LabTest, ModelsStayWhereTheyAreAskedFor) {
  ASSERT_EQ(RunAblation({"--keep-models"}).code, 0);
  EXPECT_TRUE(std::filesystem::exists("out/cells/deepnet-6-s1/run/step-300"));
}

TEST_F(LabTest, AFailedRunIsNamedAndTriedAgain) {
  folder_.Write("broken", "");
  const Outcome first = RunAblation();
  EXPECT_EQ(first.code, 6);  // as the run that failed
  EXPECT_THAT(first.err, HasSubstr("1 of 6 runs failed"));
  EXPECT_THAT(first.err, HasSubstr("failed, exit code 6: error: broken for a test"));
  EXPECT_THAT(folder_.Read("out/report.html"), HasSubstr("1 failed"));
  std::filesystem::remove("broken");
  EXPECT_EQ(RunAblation().code, 0);
  EXPECT_EQ(NumCalls("train"), 7);
}

TEST_F(LabTest, OtherSettingsWantAnotherFolder) {
  ASSERT_EQ(RunAblation().code, 0);
  const Outcome other = RunAblation({"--set", "optim.rate=1e-3"});
  EXPECT_EQ(other.code, 2);
  EXPECT_THAT(other.err, HasSubstr("is of other settings"));
  EXPECT_EQ(NumCalls("train"), 6);
}

TEST_F(LabTest, MistakesOfCellsAreAllNamedBeforeAnythingRuns) {
  const Outcome outcome = RunAblation({"--set", "optim.rate=-1"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("deepnet-6-s1: optim.rate"));
  EXPECT_THAT(outcome.err, HasSubstr("post-ln-50-s1: optim.rate"));
  EXPECT_EQ(NumCalls("train"), 0);
}

TEST_F(LabTest, WithoutACorpusItSaysHowToPrepareOne) {
  const Outcome outcome = RunAblation({"--set", "data.folder=nowhere"});
  EXPECT_EQ(outcome.code, 4);
  EXPECT_THAT(outcome.err,
              HasSubstr("deepnet prepare --config launch/recipes/quickstart.textproto"));
}

TEST_F(LabTest, CommandsArePrintedAndNotRun) {
  const Outcome outcome = RunAblation({"--commands"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("train --root . --config "));
  EXPECT_THAT(outcome.out, HasSubstr("--set folder=out/cells/post-ln-50-s1/run"));
  EXPECT_EQ(NumCalls("train"), 0);
}

TEST_F(LabTest, ReportOfSeveralFolders) {
  ASSERT_EQ(RunAblation().code, 0);
  std::filesystem::remove("out/report.html");
  const Outcome outcome = RunLab({"report", "out", "--html", "all.html"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(folder_.Read("all.html"), HasSubstr("<section id=\"ablation\">"));
  EXPECT_EQ(RunLab({"report", "nowhere"}).code, 4);
  EXPECT_EQ(RunLab({"report"}).code, 2);
}

// One run ends, the other waits for ever: after the first, a stop is asked for.
TEST_F(LabTest, AStopReachesTheRunsAndLeavesThemUnfinished) {
  auto experiment = MakeExperiment("ablation", {.series = {"deepnet", "post-ln"}});
  ASSERT_TRUE(experiment.ok());
  experiment->cells.resize(2);
  experiment->cells[1].sets.push_back("name=wait-here");
  const LabSetup setup{
      .program = "./deepnet.sh", .recipes = recipes_, .out = "out", .data = "data"};
  auto jobs = PlanLabJobs(*experiment, setup, 1000);
  ASSERT_TRUE(jobs.ok()) << jobs.status();
  std::atomic<int> request = 0;
  int ended = 0;
  const LabSchedule schedule{.experiment = *experiment,
                             .setup = setup,
                             .limits = {.jobs = 2, .bytes = int64_t{1} << 40, .threads = 1},
                             .request = &request,
                             .ended = [&](const LabCell&) {
                               ++ended;
                               request |= kStopRequest;
                               return absl::OkStatus();
                             }};
  std::ostringstream sink;
  LoggerOptions log_options;
  log_options.stream = &sink;
  Logger log(log_options);
  const auto fs = MakePosixFileSystem();
  const absl::Status status = RunLabJobs(*fs, {&(*jobs)[0], &(*jobs)[1]}, schedule, log);
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
  EXPECT_EQ(ended, 1);
  EXPECT_FALSE(ReadLabCell(*fs, CellFolder("out", experiment->cells[1].name)).ok());
}

TEST_F(LabTest, AChildsSignalIsItsExitCode) {
  auto child = ChildProgram::Start({"sh", "-c", "kill -KILL $$"}, "log", "");
  ASSERT_TRUE(child.ok()) << child.status();
  std::vector<ChildProgram*> children = {&*child};
  while (!child->HasEnded()) WaitForChildren(children, std::chrono::seconds(10));
  EXPECT_EQ(child->exit_code(), 128 + 9);
}

TEST_F(LabTest, OutputAndLogAreTwoFiles) {
  auto child = ChildProgram::Start({"sh", "-c", "echo result; echo words >&2"}, "log", "output");
  ASSERT_TRUE(child.ok());
  std::vector<ChildProgram*> children = {&*child};
  while (!child->HasEnded()) WaitForChildren(children, std::chrono::seconds(10));
  EXPECT_EQ(child->exit_code(), 0);
  EXPECT_EQ(folder_.Read("output"), "result\n");
  EXPECT_EQ(folder_.Read("log"), "words\n");
}

// The obvious twin: one long list of pieces, counted by a map.
TEST_F(LabTest, WordFrequenciesAreThoseOfOneLongListOfPieces) {
  const auto data = DescribeLabData("data", {.directions = {"de-en"}, .test_sentences = 3});
  ASSERT_TRUE(data.ok()) << data.status();
  const auto corpus = Corpus::Open("data");
  ASSERT_TRUE(corpus.ok());
  std::map<int32_t, double> counts;
  double all = 0;
  for (int32_t piece = 0; piece < corpus->vocabulary().size(); ++piece, ++all) counts[piece] = 1;
  for (size_t i = 0; i < corpus->directions().size(); ++i) {
    const Direction& direction = corpus->directions()[i];
    for (int64_t pair = 0; direction.Name() == "de-en" && pair < direction.num_pairs; ++pair) {
      const TokenSpan target = corpus->Tokens(static_cast<int>(i), pair).target;
      for (size_t j = 0; j < target.size(); ++j, ++all) ++counts[target[j]];
      ++counts[kEos], ++all;
    }
  }
  double entropy = 0;
  for (const auto& [piece, count] : counts) entropy -= count / all * std::log(count / all);
  EXPECT_NEAR(data->word_frequency_nll(), entropy, 1e-9);

  const auto text = corpus->Sentences("test", "de", "en");
  ASSERT_TRUE(text.ok());
  std::vector<int32_t> pieces;
  for (int i = 0; i < 3; ++i) {
    for (const int32_t piece : corpus->vocabulary().Encode(text->target[i]))
      pieces.push_back(piece);
    pieces.push_back(kEos);
  }
  double nll = 0;
  for (const int32_t piece : pieces) nll -= std::log(counts[piece] / all);
  EXPECT_NEAR(data->word_frequency_test_nll(), nll / static_cast<double>(pieces.size()), 1e-9);
}

TEST(LabLimits, AsManyAsCoresAndMemoryAllow) {
  std::vector<LabJob> jobs(8);
  for (LabJob& job : jobs) job.bytes = 3;
  std::vector<const LabJob*> pending;
  for (const LabJob& job : jobs) pending.push_back(&job);
  EXPECT_EQ(MakeLabLimits(pending, 4, 100, 0).jobs, 4);
  EXPECT_EQ(MakeLabLimits(pending, 16, 100, 0).jobs, 8);
  EXPECT_EQ(MakeLabLimits(pending, 16, 100, 0).threads, 2);
  EXPECT_EQ(MakeLabLimits(pending, 4, 7, 0).jobs, 2);
  EXPECT_EQ(MakeLabLimits(pending, 4, 1, 0).jobs, 1);  // one runs whatever it needs
  EXPECT_EQ(MakeLabLimits(pending, 4, 7, 5).jobs, 5);
}

TEST(LabLimits, WhatALauncherStartsIsOneAtATimeAndChoosesItsThreads) {
  EXPECT_EQ(MakeLaunchedLimits(0).jobs, 1);
  EXPECT_EQ(MakeLaunchedLimits(0).threads, 0);
  EXPECT_EQ(MakeLaunchedLimits(3).jobs, 3);
  EXPECT_EQ(MakeLaunchedLimits(3).threads, 0);
}

TEST_F(LabTest, InstrumentsOfARunAreALineARecord) {
  std::filesystem::create_directories("some");
  std::ofstream("some/metrics.jsonl")
      << R"({"kind":"train","step":100,"nll":5}
{"kind":"instruments","step":100,"layers":[{"name":"encoder.embedding","gradient_norm":9},)"
      << R"({"name":"encoder.layers.0","gradient_norm":2,"weight_norm":4,"update_norm":1},)"
      << R"({"name":"encoder.layers.1","gradient_norm":3,"weight_norm":4,"update_norm":2},)"
      << R"({"name":"decoder.layers.0","gradient_norm":0},)"
      << R"({"name":"decoder.layers.1","gradient_norm":1}],"sublayers":[{"stream_share":0.5},)"
      << R"({"stream_share":0.75}],"model_update":0.125}
)";
  const Outcome outcome = RunLab({"instruments", "some"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("100               1.5                 -           0.25 to "
                                     "0.5           0.5 to 0.75         0.125\n"));
}

TEST_F(LabTest, InstrumentsOfARunWithoutAnySaysHowToGetThem) {
  std::filesystem::create_directories("some");
  std::ofstream("some/metrics.jsonl") << R"({"kind":"train","step":100,"nll":5})"
                                      << "\n";
  const Outcome outcome = RunLab({"instruments", "some"});
  EXPECT_EQ(outcome.code, 4);
  EXPECT_THAT(outcome.err, HasSubstr("some: no instruments in its metrics.jsonl; a run has them "
                                     "with instruments.every_steps"));
}

TEST(LabCells, ShellTextQuotesWhatAShellWouldRead) {
  EXPECT_EQ(ShellText({"deepnet", "--set", "seed=1"}), "deepnet --set seed=1");
  EXPECT_EQ(ShellText({"a b", "it's", ""}), "'a b' 'it'\\''s' ''");
}

// The published settings of every experiment: valid, and with a plan for devices that one can
// have, as many as the cluster says. Weights of others are only scored.
TEST(LabCells, EveryPaperCellHasAPlanForDevicesOf80GiB) {
  constexpr int64_t kDeviceBytes = int64_t{80} << 30;
  for (const std::string& name : ExperimentNames()) {
    const auto experiment = MakeExperiment(name, {.size = LabSize::kPaper});
    if (name == "tuning") continue;  // small only
    ASSERT_TRUE(experiment.ok()) << experiment.status();
    const auto jobs = PlanLabJobs(*experiment, {.program = "deepnet", .out = "out"}, 40000);
    ASSERT_TRUE(jobs.ok()) << name << ":\n" << jobs.status().message();
    for (const LabJob& job : *jobs) {
      const ClusterSpec& cluster = job.run.cluster();
      EXPECT_EQ(cluster.device_memory_gib(), 80) << name << " " << job.spec.name;
      EXPECT_LE(cluster.devices_per_node(), 8) << name << " " << job.spec.name;
      EXPECT_GT(job.rank_bytes, 0) << name << " " << job.spec.name;
      EXPECT_LE(job.rank_bytes, kDeviceBytes) << name << " " << job.spec.name;
      EXPECT_EQ(job.ranks, job.spec.checkpoint.empty() ? NumRanks(job.run) : 1) << job.spec.name;
    }
  }
}

TEST(LabCells, EverySmallCellFitsALaptop) {
  for (const std::string& name : ExperimentNames()) {
    const auto experiment = MakeExperiment(name, {});
    ASSERT_TRUE(experiment.ok()) << experiment.status();
    const auto jobs = PlanLabJobs(*experiment, {.program = "deepnet", .out = "out"}, 4008);
    ASSERT_TRUE(jobs.ok()) << name << ":\n" << jobs.status().message();
    for (const LabJob& job : *jobs) EXPECT_LT(job.bytes, int64_t{4} << 30) << job.spec.name;
  }
}

}  // namespace
}  // namespace deepnet

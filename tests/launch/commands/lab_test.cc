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
#include <sys/stat.h>

#include "launch/commands/lab_cells.h"
#include "launch/commands/lab_child.h"
#include "launch/commands/lab_corpus.h"
#include "launch/commands/lab_files.h"
#include "launch/commands/lab_list.h"
#include "launch/commands/lab_report.h"
#include "launch/commands/lab_run.h"
#include "launch/commands/lab_schedule.h"
#include "launch/program.h"
#include "tests/trainer/data/prepared_corpus.h"
#include "tests/trainer/data/temp_folder.h"
#include "trainer/data/corpus.h"
#include "trainer/stop_requests.h"

namespace deepnet {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using testing::TempFolder;

// Post-LN from 18 layers on diverges, the run of 50 layers of DeepNet fails as long as there is a
// file "broken". A run that is told to wait says so and waits to be stopped.
constexpr char kStandIn[] = R"(#!/bin/sh
command=$1
echo "$*" >> calls
for word in "$@"; do
  case $word in
    folder=*) folder=${word#folder=} ;;
    *wait-here*) wait=yes ;;
  esac
done
if [ $command = evaluate ]; then
  echo '{"kind":"evaluate","nll":5.8,"directions":[{"direction":"xx-en","nll":5.8}]}'
  exit 0
fi
mkdir -p "$folder"
echo '{"kind":"train","step":10,"nll":8.9,"seconds":1}' > "$folder/metrics.jsonl"
echo '{"kind":"train","step":300,"nll":5.9,"seconds":30}' >> "$folder/metrics.jsonl"
echo weights > "$folder/step-300"
if [ "$wait" = yes ]; then
  trap 'exit 75' TERM
  echo waiting > waiting
  while :; do sleep 0.05; done
fi
case $folder in
  *post-ln-18*|*post-ln-50*) exit 7 ;;
  *deepnet-50*) [ -f broken ] && { echo "error: broken for a test" >&2; exit 6; } ;;
esac
exit 0
)";

struct Outcome {
  int code;
  std::string out, err;
};

class LabTest : public ::testing::Test {
 protected:
  LabTest() : old_(std::filesystem::current_path()) {
    recipes_ = std::filesystem::absolute("launch/recipes");
    testing::WriteOpus(folder_);
    EXPECT_TRUE(
        testing::PrepareIn(folder_, "opus100_folder: \"opus\" output_folder: \"data\"").ok());
    folder_.Write("deepnet.sh", kStandIn);
    chmod(folder_.Path("deepnet.sh").c_str(), 0755);
    std::filesystem::current_path(folder_.path());
  }
  ~LabTest() override { std::filesystem::current_path(old_); }

  Outcome RunLab(std::vector<std::string> words) {
    words.insert(words.begin(), "lab");
    std::istringstream in;
    std::ostringstream out, err;
    // Of `deepnet lab`, what needs no model.
    const Command lab{
        .name = "lab",
        .subcommands = {MakeLabListCommand(), MakeLabRunCommand(), MakeLabReportCommand()}};
    const int code = RunProgram({lab}, words, {in, out, err});
    return {code, out.str(), err.str()};
  }

  // The ablation's DeepNet and Post-LN at 6, 18 and 50 layers: six runs.
  Outcome RunAblation(const std::vector<std::string>& more = {}) {
    std::vector<std::string> words = {"run",       "ablation", "--only",    "deepnet",
                                      "--only",    "post-ln",  "--data",    "data",
                                      "--out",     "out",      "--program", "./deepnet.sh",
                                      "--recipes", recipes_,   "--set",     "data.directions="};
    words.insert(words.end(), more.begin(), more.end());
    return RunLab(words);
  }

  LabResult Result() { return ReadLabResult(*MakePosixFileSystem(), "out").value_or(LabResult()); }

  int NumCalls(const std::string& command) {
    std::istringstream calls(folder_.Read("calls"));
    int count = 0;
    for (std::string line; std::getline(calls, line);) count += line.starts_with(command) ? 1 : 0;
    return count;
  }

  const std::filesystem::path old_;
  std::string recipes_;
  TempFolder folder_;
};

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
      .program = {"./deepnet.sh"}, .recipes = recipes_, .out = "out", .data = "data"};
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

TEST(LabCells, ShellTextQuotesWhatAShellWouldRead) {
  EXPECT_EQ(ShellText({"deepnet", "--set", "seed=1"}), "deepnet --set seed=1");
  EXPECT_EQ(ShellText({"a b", "it's", ""}), "'a b' 'it'\\''s' ''");
}

// The published settings of every experiment: valid, and with a plan that fits what the recipe
// names.
TEST(LabCells, EveryPaperCellHasAPlan) {
  for (const std::string& name : ExperimentNames()) {
    const auto experiment = MakeExperiment(name, {.size = LabSize::kPaper});
    if (name == "tuning") continue;  // small only
    ASSERT_TRUE(experiment.ok()) << experiment.status();
    const auto jobs = PlanLabJobs(*experiment, {.program = {"deepnet"}, .out = "out"}, 40000);
    ASSERT_TRUE(jobs.ok()) << name << ":\n" << jobs.status().message();
    EXPECT_GT(jobs->front().bytes, 0);
  }
}

TEST(LabCells, EverySmallCellFitsALaptop) {
  for (const std::string& name : ExperimentNames()) {
    const auto experiment = MakeExperiment(name, {});
    ASSERT_TRUE(experiment.ok()) << experiment.status();
    const auto jobs = PlanLabJobs(*experiment, {.program = {"deepnet"}, .out = "out"}, 4008);
    ASSERT_TRUE(jobs.ok()) << name << ":\n" << jobs.status().message();
    for (const LabJob& job : *jobs) EXPECT_LT(job.bytes, int64_t{4} << 30) << job.spec.name;
  }
}

}  // namespace
}  // namespace deepnet

// What `deepnet lab run` makes of its flags: methods and depths that an experiment has not itself,
// folders that are gone on with, launchers, weights of others, the commands that a report repeats.
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/launch/commands/lab_rig.h"

namespace deepnet {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::LabRig;
using ::testing::Not;
using testing::Outcome;

class LabRequestTest : public LabRig {
 protected:
  std::vector<std::string> Cells() {
    std::vector<std::string> names;
    const LabResult result = Result();
    for (const LabCell& cell : result.cells()) names.push_back(cell.name());
    return names;
  }
};

TEST_F(LabRequestTest, AMethodThatTheFigureHasNotJoinsThoseOfTheFolder) {
  ASSERT_EQ(RunHere("fig6", {"--only", "deepnet", "--at", "6"}).code, 0);
  const Outcome more = RunHere("fig6", {"--only", "branch-norm", "--at", "6", "--at", "10"});
  ASSERT_EQ(more.code, 0) << more.err;
  EXPECT_THAT(more.err, HasSubstr("fig6: 3 runs, 1 of them done"));
  EXPECT_EQ(NumCalls("train"), 3);
  EXPECT_THAT(Cells(), ElementsAre("deepnet-6-s1", "branch-norm-6-s1", "branch-norm-10-s1"));
  EXPECT_THAT(folder_.Read("out/report.html"),
              AllOf(HasSubstr("DeepNet"), HasSubstr("BranchNorm")));
  // Both requests together make this report.
  EXPECT_THAT(Result().command(), AllOf(HasSubstr("--only deepnet"), HasSubstr("\n"),
                                        HasSubstr("--only branch-norm --at 6 --at 10")));
}

TEST_F(LabRequestTest, MoreSeedsJoinThoseOfTheFolder) {
  ASSERT_EQ(RunHere("fig6", {"--only", "deepnet", "--at", "6", "--seeds", "2"}).code, 0);
  ASSERT_EQ(RunHere("fig6", {"--only", "post-ln", "--at", "6", "--seeds", "1"}).code, 0);
  EXPECT_THAT(Cells(), ElementsAre("deepnet-6-s1", "deepnet-6-s2", "post-ln-6-s1"));
  EXPECT_EQ(Result().seeds(), 2);
}

TEST_F(LabRequestTest, WhatJoinsOtherSettingsIsRefused) {
  ASSERT_EQ(RunHere("fig6", {"--only", "deepnet", "--at", "6"}).code, 0);
  const Outcome other =
      RunHere("fig6", {"--only", "keel", "--at", "6", "--set", "optim.rate=1e-3"});
  EXPECT_EQ(other.code, 2);
  EXPECT_THAT(other.err, HasSubstr("deepnet-6-s1 is of other settings"));
  EXPECT_EQ(NumCalls("train"), 1);
}

TEST_F(LabRequestTest, AFolderOfAnotherExperimentIsRefused) {
  ASSERT_EQ(RunHere("fig6", {"--only", "deepnet", "--at", "6"}).code, 0);
  const Outcome other = RunHere("ablation", {"--only", "neither", "--at", "6"});
  EXPECT_EQ(other.code, 2);
  EXPECT_THAT(other.err, HasSubstr("out holds fig6, size small; name another folder"));
}

TEST_F(LabRequestTest, TheEndSaysWhatTheRunsShow) {
  const Outcome outcome = RunHere("fig6", {"--only", "deepnet", "--at", "6"});
  EXPECT_THAT(outcome.out,
              AllOf(HasSubstr("- 1 run: 1 ended as planned."), HasSubstr("out/report.html\n")));
  EXPECT_THAT(RunLab({"report", "out"}).out, HasSubstr("- 1 run: 1 ended as planned."));
}

TEST_F(LabRequestTest, TheExactCommandHasEveryFlagThatChangesWhatRuns) {
  folder_.Write("launch.sh", "#!/bin/sh\nshift; exec \"$@\"\n");
  chmod("launch.sh", 0755);
  ASSERT_EQ(RunHere("fig6", {"--only", "deepnet", "--at", "6", "--root", ".", "--launcher",
                             "./launch.sh {ranks}"})
                .code,
            0);
  const std::string command = Result().command();
  EXPECT_THAT(command, AllOf(HasSubstr("--recipes " + recipes_), HasSubstr("--root ."),
                             HasSubstr("--program ./deepnet.sh"), HasSubstr("--data data"),
                             HasSubstr("--launcher './launch.sh {ranks}'")));
}

// The launcher counts what it starts: `evaluate` is one process, which no launcher starts that does
// not ask for the number.
TEST_F(LabRequestTest, ALauncherStartsTrainingAndOneProcessScores) {
  folder_.Write("launch.sh", "#!/bin/sh\necho \"$1 $3\" >> launched; shift; exec \"$@\"\n");
  chmod("launch.sh", 0755);
  const Outcome eight =
      RunHere("fig6", {"--only", "deepnet", "--at", "6", "--set", "cluster.devices_per_node=8",
                       "--launcher", "./launch.sh {ranks}"});
  ASSERT_EQ(eight.code, 0) << eight.err;
  EXPECT_EQ(folder_.Read("launched"), "8 train\n1 evaluate\n");
  EXPECT_THAT(folder_.Read("calls"), Not(HasSubstr("threads_per_rank")));
  EXPECT_THAT(eight.err, HasSubstr("1 at once, by the launcher"));
  std::filesystem::remove("launched");
  ASSERT_EQ(RunHere("fig6", {"--only", "deepnet", "--at", "6", "--out", "other", "--launcher",
                             "./launch.sh 2"})
                .code,
            0);
  EXPECT_EQ(folder_.Read("launched"), "2 train\n");
  EXPECT_EQ(NumCalls("evaluate"), 2);
}

TEST_F(LabRequestTest, RunsOfSeveralRanksWantALauncher) {
  const Outcome outcome =
      RunHere("fig6", {"--only", "deepnet", "--at", "6", "--set", "cluster.devices_per_node=8"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("--launcher: required: runs of 8 ranks"));
  EXPECT_EQ(NumCalls("train"), 0);
}

TEST_F(LabRequestTest, CommandsAndListSayHowManyRanks) {
  const Outcome commands =
      RunHere("table2", {"--size", "paper", "--commands", "--launcher", "mpirun -n {ranks}"});
  ASSERT_EQ(commands.code, 0) << commands.err;
  EXPECT_THAT(commands.out, AllOf(HasSubstr("# 128 ranks a run, one for `evaluate`\n"),
                                  HasSubstr("mpirun -n 128 ./deepnet.sh train"),
                                  HasSubstr("mpirun -n 1 ./deepnet.sh evaluate")));
  const Outcome list = RunLab({"list", "--recipes", recipes_});
  EXPECT_THAT(list.out, ::testing::ContainsRegex("fig8 +Figure 8 +[0-9]+ +[0-9]+ +128 "));
  EXPECT_THAT(list.out, ::testing::ContainsRegex("table1 +Table 1 +[0-9]+ +[0-9]+ +8 "));
}

TEST_F(LabRequestTest, APlanIsALineARunAndRunsNothing) {
  const Outcome plan = RunHere("fig6", {"--only", "deepnet", "--at", "6", "--at", "12", "--plan"});
  ASSERT_EQ(plan.code, 0) << plan.err;
  EXPECT_THAT(plan.out,
              ::testing::ContainsRegex("deepnet-6-s1 +any +[0-9,]+ +[0-9.]+ +[0-9.]+e\\+[0-9]+\n"
                                       "deepnet-12-s1 +any "));
  EXPECT_THAT(plan.out, HasSubstr("2 runs, "));
  EXPECT_EQ(NumCalls("train"), 0);
  EXPECT_FALSE(std::filesystem::exists("out"));
}

TEST_F(LabRequestTest, WeightsOfOthersAreOnlyScored) {
  const std::vector<std::string> words = {"--size", "paper", "--only", "M2M-100"};
  const Outcome missing = RunHere("table3", words);
  EXPECT_EQ(missing.code, 5);
  EXPECT_THAT(missing.err, HasSubstr("deepnet checkpoint import FOLDER --output runs/m2m100_12b"));
  std::filesystem::create_directory("imported");
  const Outcome scored =
      RunHere("table3", {"--size", "paper", "--only", "M2M-100", "--m2m100", "imported"});
  ASSERT_EQ(scored.code, 0) << scored.err;
  EXPECT_EQ(NumCalls("train"), 0);
  EXPECT_THAT(folder_.Read("calls"),
              HasSubstr("evaluate --root . --checkpoint imported --json --data data --split test "
                        "--any-to-any"));
  EXPECT_THAT(Cells(), ElementsAre("m2m-100"));
  EXPECT_TRUE(std::filesystem::exists("imported"));
}

}  // namespace
}  // namespace deepnet

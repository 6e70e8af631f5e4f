// The program itself, started as a user would.
#include <cstdio>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include "launch/commands/command.h"

namespace deepnet {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

struct Outcome {
  int code = -1;
  std::string output;  // of stdout and stderr
};

Outcome RunProgram(const std::string& arguments) {
  const std::string command = std::string(DEEPNET_PROGRAM " ") + arguments + " 2>&1";
  Outcome outcome;
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return outcome;
  char buffer[4096];
  while (const size_t count = fread(buffer, 1, sizeof(buffer), pipe)) {
    outcome.output.append(buffer, count);
  }
  const int status = pclose(pipe);
  if (WIFEXITED(status)) outcome.code = WEXITSTATUS(status);
  return outcome;
}

TEST(Main, HelpAndVersionExitWithZero) {
  const Outcome help = RunProgram("--help");
  EXPECT_EQ(help.code, 0) << help.output;
  EXPECT_THAT(help.output, HasSubstr("Usage: deepnet COMMAND"));
  EXPECT_THAT(RunProgram("--version").output, StartsWith("deepnet "));
}

TEST(Main, EveryListedCommandHasHelp) {
  const std::string help = RunProgram("--help").output;
  const size_t start = help.find("Commands:\n") + 10;
  const std::string list = help.substr(start, help.find("\n\n", start) - start);
  for (size_t at = 0; at < list.size(); at = std::min(list.find('\n', at), list.size()) + 1) {
    const std::string name = list.substr(at + 2, list.find(' ', at + 2) - at - 2);
    const Outcome outcome = RunProgram(name + " --help");
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    EXPECT_THAT(outcome.output, StartsWith("deepnet " + name + ": "));
  }
}

TEST(Main, OutputThatCannotBeWrittenIsAnError) {
  const std::string recipe = " --config launch/recipes/quickstart.textproto";
  for (const std::string& command :
       {std::string("--version"), std::string("checkpoint --help"), "train --dump-config" + recipe,
        "describe" + recipe, std::string("checkpoint list --json tests/golden/run-v1/run")}) {
    EXPECT_EQ(RunProgram(command + " >/dev/full").code, 4) << command;
  }
  EXPECT_EQ(RunProgram("--version 2>/dev/null >&- #").code, 4);
}

TEST(Main, TranslationsAndScoresAreNoWordsForATerminal) {
  EXPECT_TRUE(MakeTranslateCommand().prints_data);
  EXPECT_TRUE(MakeScoreCommand().prints_data);
}

TEST(Main, BadUsageExitsWithTwo) {
  EXPECT_EQ(RunProgram("").code, 2);
  EXPECT_EQ(RunProgram("no-such-command").code, 2);
  EXPECT_EQ(RunProgram("prepare --no-such-flag").code, 2);
}

TEST(Main, NumbersOutOfRangeExitWithTwoAndAreAllNamed) {
  const Outcome bench = RunProgram("bench step --steps 0 --beam=-1 --threads 5000000000");
  EXPECT_EQ(bench.code, 2);
  EXPECT_EQ(bench.output,
            "error:\n--steps: 0: must be from 1 to 1000000\n"
            "--beam: -1: must be from 1 to 1000\n"
            "--threads: 5000000000: must be from 0 to 1024\n");
  const Outcome evaluate = RunProgram("evaluate --checkpoint none --sentences=-5");
  EXPECT_EQ(evaluate.code, 2);
  EXPECT_THAT(evaluate.output, HasSubstr("--sentences: -5: must be at least 1, or 0: all"));
  const Outcome translate =
      RunProgram("translate --checkpoint none --from de --to en --chunk-lines 0 </dev/null");
  EXPECT_EQ(translate.code, 2);
  EXPECT_THAT(translate.output, HasSubstr("--chunk-lines: must be 1 to 1000000"));
}

TEST(Main, StepsThatCannotBeTracedExitWithTwo) {
  const std::string train =
      "train --config launch/recipes/quickstart.textproto --set train.steps=50 --trace ";
  for (const char* steps : {"some", "7..5", "0..2"}) {
    const Outcome outcome = RunProgram(train + steps);
    EXPECT_EQ(outcome.code, 2);
    EXPECT_THAT(outcome.output, HasSubstr(std::string("error: --trace: '") + steps));
  }
  const Outcome outcome = RunProgram(train + "50..51");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.output,
              HasSubstr("error: --trace: 50..51: the run ends with step 50 (train.steps)"));
}

TEST(Main, ABadRunSpecExitsWithTwoBeforeAnythingIsWritten) {
  const Outcome outcome =
      RunProgram("prepare --config launch/recipes/quickstart.textproto --set prepare.threads=-1");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_EQ(outcome.output, "error: prepare.threads: -1: must be at least 1\n");
  const Outcome doctor =
      RunProgram("doctor --config launch/recipes/quickstart.textproto --set train.steps=-1");
  EXPECT_EQ(doctor.code, 2);
  EXPECT_EQ(doctor.output, "error: train.steps: -1: must be at least 1, or 0: no limit\n");
}

}  // namespace
}  // namespace deepnet

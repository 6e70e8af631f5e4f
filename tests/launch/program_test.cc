#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launch/commands/command.h"
#include "launch/validate.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"

namespace deepnet {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// Prints what it got; fails as its --fail says.
absl::Status RunEcho(const CommandLine& line) {
  ASSIGN_OR_RETURN(const RunSpec run, LoadRunSpec(line));
  line.out << run.model().d_model() << " " << ResolvePath(line, "a/b") << "\n";
  const std::string& fail = line.flags.Text("fail");
  if (fail == "plain") return absl::InternalError("something broke");
  if (fail == "throw") throw std::runtime_error("thrown");
  if (fail == "diverged") {
    return WithExitCode(absl::AbortedError("ten non-finite steps"), ExitCode::kDiverged);
  }
  return absl::OkStatus();
}

// In pieces, as tables are printed, without an end of the last line.
absl::Status Say(const CommandLine& line) {
  line.out << "a\x1b" << '[' << "2J\tb é中\n\n"
           << '\x07' << "\xc2"
           << "\x9b" << 5 << std::flush << "c\r";
  return absl::DataLossError("data\x1b]0;T\a: wrong\n  \tmore\x9b");
}

std::vector<Command> Commands() {
  return {{.name = "echo",
           .summary = "Print a width.",
           .description = "Only for tests.",
           .spec = SpecUse::kOptional,
           .flags = {{.name = "fail", .value = "HOW", .help = "Fail."}},
           .run = RunEcho},
          {.name = "check",
           .summary = "Check a RunSpec.",
           .spec = SpecUse::kRequired,
           .validate = ValidateForTrain,
           .flags = {JsonFlag()},
           .run = [](const CommandLine& line) { return LoadRunSpec(line).status(); }},
          {.name = "say", .summary = "Say what a file has.", .flags = {JsonFlag()}, .run = Say},
          {.name = "write", .summary = "Write data.", .prints_data = true, .run = Say}};
}

struct Outcome {
  int code;
  std::string out, err;
};

Outcome RunWords(const std::vector<std::string>& words) {
  std::istringstream in;
  std::ostringstream out, err;
  const int code = RunProgram(Commands(), words, {in, out, err});
  return {code, out.str(), err.str()};
}

TEST(Program, HelpListsTheCommandsAndExitsWithZero) {
  for (const char* word : {"--help", "-h", "help"}) {
    const Outcome outcome = RunWords({word});
    EXPECT_EQ(outcome.code, 0);
    EXPECT_THAT(outcome.out, HasSubstr("  echo        Print a width.\n"));
  }
}

TEST(Program, VersionIsPrinted) {
  EXPECT_THAT(RunWords({"--version"}).out, StartsWith("deepnet 0."));
}

TEST(Program, NoCommandIsAMistake) {
  const Outcome outcome = RunWords({});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("no command given"));
}

TEST(Program, AnUnknownCommandGetsTheNearestName) {
  const Outcome outcome = RunWords({"ecoh"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_EQ(outcome.err, "error: ecoh: unknown command; did you mean 'echo'?\n");
}

TEST(Program, AnUnknownFlagGetsTheNearestName) {
  const Outcome outcome = RunWords({"echo", "--sett", "a=1"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("--sett: unknown flag; did you mean '--set'?"));
}

TEST(Program, CommandHelpShowsItsFlagsAndTheCommonOnes) {
  const Outcome outcome = RunWords({"echo", "--fail", "x", "--help"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.out, StartsWith("deepnet echo: Print a width.\n\nUsage: deepnet echo "));
  for (const char* flag : {"--fail HOW", "--config FILE", "--set FIELD=VALUE", "--root FOLDER"}) {
    EXPECT_THAT(outcome.out, HasSubstr(flag));
  }
}

TEST(Program, SetsAndRootReachTheCommand) {
  const Outcome outcome = RunWords({"echo", "--set", "model.d_model=48", "--root=/data"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "48 /data/a/b\n");
}

TEST(Program, AStatusBecomesItsExitCode) {
  EXPECT_EQ(RunWords({"echo", "--fail=diverged"}).code, 7);
  EXPECT_EQ(RunWords({"echo", "--fail=diverged"}).err, "error: ten non-finite steps\n");
  EXPECT_EQ(RunWords({"echo", "--fail=plain"}).code, 1);
  EXPECT_EQ(RunWords({"echo", "--fail=throw"}).code, 1);
  EXPECT_EQ(RunWords({"echo", "--fail=throw"}).err, "error: thrown\n");
  std::istringstream in;
  std::ostringstream out, err;
  const auto explain = [] {
    return WithExitCode(absl::ResourceExhaustedError("full"), ExitCode::kDoesNotFit);
  };
  EXPECT_EQ(RunProgram(Commands(), {"echo", "--fail=throw"}, {in, out, err, nullptr, explain}), 6);
  EXPECT_EQ(err.str(), "error: full\n");
}

// Other programs' output goes through a stream of its own: nothing else may get lost on the way.
TEST(Program, ACommandGetsItsWholeEnvironment) {
  const Command command = {
      .name = "look", .summary = "Look.", .run = [](const CommandLine& line) -> absl::Status {
        Inventory inventory;
        line.describe_work({}, {}, {}, inventory);
        line.out << line.has_cuda() << inventory.layers.size() << line.in.rdbuf();
        return line.status_of_exception();
      }};
  std::istringstream in(" input");
  std::ostringstream out, err;
  const Environment environment = {
      in,
      out,
      err,
      [] { return true; },
      [] { return WithExitCode(absl::AbortedError("a peer is lost"), ExitCode::kPeerLost); },
      [](const ModelSpec&, const MicrobatchSpec&, const ComputeSpec&, Inventory& inventory) {
        inventory.layers.resize(7);
      }};
  EXPECT_EQ(RunProgram({command}, {"look"}, environment), 9);
  EXPECT_EQ(out.str(), "17 input");
}

TEST(Program, ATerminalGetsNamesOutOfFilesAsText) {
  const Outcome outcome = RunWords({"say"});
  EXPECT_EQ(outcome.out, "a\uFFFD[2J\tb é中\n\n\uFFFD\uFFFD5c\uFFFD");
  EXPECT_EQ(outcome.err, "error:\ndata\uFFFD]0;T\uFFFD: wrong\n  \tmore\uFFFD\n");
  EXPECT_THAT(RunWords({"\x1b[2J"}).err, StartsWith("error: \uFFFD[2J: unknown command"));
  EXPECT_EQ(RunWords({"echo", "--set", "model.\x1b[2J=1"}).err.find('\x1b'), std::string::npos);
}

TEST(Program, DataKeepsItsBytes) {
  const std::string bytes =
      "a\x1b[2J\tb é中\n\n\x07\xc2\x9b"
      "5c\r";
  EXPECT_EQ(RunWords({"write"}).out, bytes);
  EXPECT_EQ(RunWords({"say", "--json"}).out, bytes);
}

TEST(Program, ARequiredConfigIsAskedFor) {
  const Outcome outcome = RunWords({"check"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("--config: required"));
}

TEST(Program, SeveralMistakesStandBelowTheWordError) {
  const Outcome outcome =
      RunWords({"check", "--config", "launch/recipes/quickstart.textproto", "--set",
                "model.num_heads=3", "--set", "optim.learning_rate=-1"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_EQ(outcome.err,
            "error:\nmodel.num_heads: 3: must divide model.d_model (128)\n"
            "optim.learning_rate: -1: required, above 0\n");
}

TEST(Program, DumpConfigPrintsTheCompleteRunAndDoesNothingElse) {
  const Outcome outcome =
      RunWords({"check", "--config", "launch/recipes/quickstart.textproto", "--dump-config"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("beta2: 0.98"));  // a default
  EXPECT_THAT(outcome.out, HasSubstr("name: \"quickstart\""));
  EXPECT_THAT(outcome.out, HasSubstr("dtype: DATA_TYPE_UNSPECIFIED"));  // so is what is left open
  EXPECT_THAT(outcome.out, HasSubstr("device: \"auto\""));
}

}  // namespace
}  // namespace deepnet

// Jobs of the program under mpirun that must not run: each ends soon, with the documented code and
// with a text that says what to change. A job that hangs is ended by mpirun and fails its test. And
// what one process makes of signals, exceptions and Slurm's variables.
#include "launch/job.h"

#include <unistd.h>

#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include "launch/commands/command.h"
#include "parallel/base/clock.h"
#include "trainer/stop_requests.h"

namespace deepnet {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ExitedWithCode;
using ::testing::HasSubstr;

namespace fs = std::filesystem;

constexpr char kProgram[] = DEEPNET_PROGRAM;
constexpr int kLimitSeconds = 60;  // of a job; mpirun ends it

constexpr char kRun[] = R"(# proto-file: proto/run.proto
# proto-message: deepnet.RunSpec
seed: 3
model { encoder_layers: 1 decoder_layers: 1 d_model: 32 ffn_dim: 64 num_heads: 2 residual: DEEPNORM }
data { folder: "corpus" max_sentence_tokens: 150 microbatch { max_target_tokens: 300 max_sentences: 16 }
       global_microbatches: 4 }
optim { learning_rate: 1e-3 warmup_steps: 4 virtual_replicas: 2 }
compute { dtype: FLOAT32 threads_per_rank: 1 }
train { steps: 2 validate_every_steps: -1 checkpoint_every_steps: 1000 }
prepare { table { file: "$udhr" languages: "de" languages: "fr" }
          tokenizer { vocab_size: 300 } }
)";

struct Outcome {
  int code = -1;
  std::string output;  // of stdout and stderr
};

std::string ReadAll(FILE* pipe) {
  std::string text;
  char buffer[4096];
  while (const size_t count = fread(buffer, 1, sizeof(buffer), pipe)) text.append(buffer, count);
  return text;
}

int CodeOf(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : -1; }

Outcome RunCommand(const std::string& command) {
  Outcome outcome;
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return outcome;
  outcome.output = ReadAll(pipe);
  outcome.code = CodeOf(pclose(pipe));
  return outcome;
}

class JobTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    root_ = fs::path(::testing::TempDir()) / absl::StrCat("deepnet_job_", getpid());
    fs::create_directories(root_);
    fs::copy_file("tests/trainer/data/testdata/udhr.tsv", root_ / "udhr.tsv");
    Write("run.textproto", absl::StrReplaceAll(kRun, {{"$udhr", (root_ / "udhr.tsv").string()}}));
    const Outcome prepared = RunCommand(absl::StrCat(kProgram, " prepare", Config("run")));
    ASSERT_EQ(prepared.code, 0) << prepared.output;
  }
  static void TearDownTestSuite() { fs::remove_all(root_); }

  static void Write(const std::string& file, const std::string& text) {
    std::ofstream(root_ / file) << text;
  }
  static std::string Read(const std::string& file) {
    std::ifstream in(root_ / file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static std::string Config(const std::string& name, const std::string& root = "") {
    return absl::StrCat(" --config ", (root_ / name).string(), ".textproto --root ",
                        (root_ / root).string());
  }
  // One part of a job: so many ranks of `program`, as mpirun takes it after "-n".
  static std::string Ranks(int ranks, const std::string& config, const std::string& more = "",
                           const std::string& program = kProgram) {
    return absl::StrCat(ranks, " ", program, " train", config, " --set folder=",
                        ::testing::UnitTest::GetInstance()->current_test_info()->name(), more);
  }
  static std::string Command(const std::string& parts) {
    return absl::StrCat("MPIEXEC_TIMEOUT=", kLimitSeconds, " tests/mpi/mpirun.sh ", parts);
  }
  static Outcome RunJob(const std::string& parts) { return RunCommand(Command(parts)); }

  static void ExpectRefused(const Outcome& outcome, int code,
                            const ::testing::Matcher<std::string>& text) {
    EXPECT_EQ(outcome.code, code) << outcome.output;
    EXPECT_THAT(outcome.output, text);
  }

  static inline fs::path root_;
};

TEST_F(JobTest, MoreStagesThanLayersEndWithTwo) {
  const Outcome refused =
      RunJob(Ranks(6, Config("run"), " --set parallel.pipeline_parallel_size=6"));
  const std::string error = "error: parallel.pipeline_parallel_size: 6: must be at most the number";
  ExpectRefused(refused, 2, HasSubstr(error + " of layers (2)"));
  EXPECT_EQ(refused.output.find(error), refused.output.rfind(error));  // one rank says it
}

TEST_F(JobTest, ANumberOfRanksThatNoLayoutFitsEndsWithTwo) {
  ExpectRefused(RunJob(Ranks(3, Config("run"), " --set parallel.pipeline_parallel_size=2")), 2,
                HasSubstr("pipeline_parallel_size 2 x data_parallel_size 1 = 2 ranks, but cluster "
                          "has 3"));
  ExpectRefused(
      RunJob(Ranks(5, Config("run"), " --set parallel.data_parallel_size=5")), 2,
      HasSubstr("parallel.data_parallel_size: 5: must be at most data.global_microbatches (4)"));
}

TEST_F(JobTest, AFolderThatIsNotEmptyEndsWithFiveWhereItHasToBe) {
  fs::create_directories(root_ / "full/of");
  ExpectRefused(
      RunCommand(absl::StrCat(kProgram, " train --require-empty --set folder=full", Config("run"))),
      5, HasSubstr("full is not empty; name another run folder"));
}

TEST_F(JobTest, AClusterThatIsNotTheJobsEndsWithTwo) {
  ExpectRefused(
      RunJob(Ranks(2, Config("run"), " --set cluster.nodes=2 --set cluster.devices_per_node=2")), 2,
      AllOf(HasSubstr("= 4 ranks, but this job has 2"), HasSubstr("mpirun -n 4")));
}

TEST_F(JobTest, AnotherMpiThanThatOfTheLauncherEndsWithThree) {
  for (const char* variable : {"PMI_SIZE", "OMPI_COMM_WORLD_SIZE"}) {
    ExpectRefused(
        RunCommand(absl::StrCat(variable, "=3 ", kProgram, " train", Config("run"))), 3,
        HasSubstr(absl::StrCat(variable, " is 3, but MPI has 1 ranks: the program is linked to ")));
  }
}

TEST_F(JobTest, AnotherConfigOnOneRankEndsWithThreeAndTheLine) {
  fs::create_directories(root_ / "other");
  Write("other/run.textproto", absl::StrReplaceAll(Read("run.textproto"), {{"1e-3", "2e-3"}}));
  ExpectRefused(RunJob(Ranks(2, Config("run")) + " : -n " + Ranks(1, Config("other/run"))), 3,
                AllOf(HasSubstr("RunSpec is not the same on all ranks: rank 2 (host "),
                      HasSubstr("'learning_rate: 0.002', the others 'learning_rate: 0.001'")));
}

TEST_F(JobTest, AnotherProgramOnOneRankEndsWithThree) {
  fs::copy_file(kProgram, root_ / "other_program");
  std::ofstream(root_ / "other_program", std::ios::app) << '\n';  // changes nothing but the file
  const std::string other = (root_ / "other_program").string();
  ExpectRefused(RunJob(Ranks(2, Config("run")) + " : -n " + Ranks(1, Config("run"), "", other)), 3,
                HasSubstr("the program file is not the same on all ranks: rank 2 (host "));
}

// The same file, prepared from a text with one other letter.
TEST_F(JobTest, AnotherCorpusOnOneRankEndsWithThree) {
  fs::create_directories(root_ / "elsewhere");
  const std::string udhr = (root_ / "udhr.tsv").string();
  std::string text = Read("udhr.tsv");
  const size_t at = text.find("Menschen");
  ASSERT_NE(at, text.npos);
  text[at] = 'N';
  Write("elsewhere/udhr.tsv", text);
  Write("elsewhere/prepare.textproto",
        absl::StrReplaceAll(Read("run.textproto"),
                            {{udhr, (root_ / "elsewhere/udhr.tsv").string()}}));
  const Outcome prepared =
      RunCommand(absl::StrCat(kProgram, " prepare", Config("elsewhere/prepare", "elsewhere")));
  ASSERT_EQ(prepared.code, 0) << prepared.output;
  ExpectRefused(RunJob(Ranks(2, Config("run")) + " : -n " + Ranks(1, Config("run", "elsewhere"))),
                3, HasSubstr("corpus is not the same on all ranks: rank 2 (host "));
}

TEST_F(JobTest, ADamagedCorpusOnOneRankEndsWithFourAndNamesIt) {
  fs::create_directories(root_ / "damaged");
  fs::copy(root_ / "corpus", root_ / "damaged/corpus");
  std::string manifest = Read("corpus/manifest.textproto");
  const size_t hash = manifest.find("content_hash: \"") + 15;
  manifest[hash] = manifest[hash] == '0' ? '1' : '0';
  Write("damaged/corpus/manifest.textproto", manifest);
  ExpectRefused(RunJob(Ranks(2, Config("run")) + " : -n " + Ranks(1, Config("run", "damaged"))), 4,
                AllOf(HasSubstr("rank 2: "), HasSubstr("manifest.textproto")));
}

TEST_F(JobTest, ARunFolderThatOneRankDoesNotSeeEndsWithThree) {
  fs::create_directories(root_ / "far");
  fs::copy(root_ / "corpus", root_ / "far/corpus");
  ExpectRefused(RunJob(Ranks(1, Config("run")) + " : -n " + Ranks(1, Config("run", "far"))), 3,
                AllOf(HasSubstr("rank 1 (host "), HasSubstr("does not see what rank 0 wrote")));
}

TEST_F(JobTest, ABrokenScheduleFileEndsWithTwoAndNamesTheWord) {
  Write("broken.txt", "rank 0: 0F0 0F1 0B0 0B1\nrank 1: 1F0 1Q0 1F1 1B1\n");
  const std::string use = " --set data.global_microbatches=2 --set parallel.schedule=";
  ExpectRefused(RunJob(Ranks(2, Config("run"), use + "broken.txt")), 2,
                AllOf(HasSubstr("parallel.schedule: "), HasSubstr("line 2"), HasSubstr("1Q0")));
}

TEST_F(JobTest, AScheduleFileThatCannotRunEndsWithTwoAndNamesTheAction) {
  Write("stuck.txt", "rank 0: 0F0 0B0 0F1 0B1\nrank 1: 1F0 1F1 1B0 1B1\n");
  const std::string use = " --set data.global_microbatches=2 --set parallel.schedule=";
  ExpectRefused(RunJob(Ranks(2, Config("run"), use + "stuck.txt")), 2,
                AllOf(HasSubstr("parallel.schedule: "), AnyOf(HasSubstr("0B0"), HasSubstr("1F1"))));
  ExpectRefused(RunJob(Ranks(2, Config("run"), use + "missing.txt")), 2,
                HasSubstr("parallel.schedule: \"missing.txt\" is unknown"));
}

TEST_F(JobTest, ARankThatIsKilledWhileTrainingEndsTheJob) {
  Write("victim.sh", absl::StrCat("echo victim $$\nexec ", kProgram, " \"$@\"\n"));
  const std::string victim = absl::StrCat("bash ", (root_ / "victim.sh").string());
  const std::string more =
      " --set train.steps=1000000 --set train.log_every_steps=1 --log-seconds 0";
  FILE* pipe = popen(
      (Command(Ranks(1, Config("run"), more) + " : -n " + Ranks(1, Config("run"), more, victim)) +
       " 2>&1")
          .c_str(),
      "r");
  ASSERT_NE(pipe, nullptr);
  int process = 0;
  bool killed = false;
  std::string output;
  char line[4096];
  while (fgets(line, sizeof(line), pipe) != nullptr) {
    output += line;
    sscanf(line, "victim %d", &process);
    if (killed || process == 0 || std::string(line).find("loss") == std::string::npos) continue;
    kill(process, SIGKILL);  // it is past its first step
    killed = true;
  }
  const int code = CodeOf(pclose(pipe));
  EXPECT_TRUE(killed) << output;
  EXPECT_EQ(code, 128 + SIGKILL) << output;
}

// Sends itself the signals in turn, each handled before the next; exits with what was requested.
[[noreturn]] void EndAfter(void (*listen)(), std::initializer_list<int> signals) {
  listen();
  for (const int signal : signals) raise(signal);
  _exit(SignalRequests());
}

TEST(Signals, AreRequestsToARunAndASecondInterruptEndsIt) {
  for (const int signal : {SIGTERM, SIGUSR1}) {
    EXPECT_EXIT(EndAfter(ListenToSignals, {signal, signal}), ExitedWithCode(kStopRequest), "^$");
  }
  EXPECT_EXIT(EndAfter(ListenToSignals, {SIGINT}), ExitedWithCode(kStopRequest), "^$");
  EXPECT_EXIT(EndAfter(ListenToSignals, {SIGINT, SIGINT}), ::testing::KilledBySignal(SIGINT), "^$");
  EXPECT_EXIT(EndAfter(ListenToSignals, {SIGUSR2, SIGUSR2}), ExitedWithCode(kSaveRequest), "^$");
  EXPECT_EXIT(EndAfter(ListenToSignals, {SIGUSR2, SIGTERM}),
              ExitedWithCode(kSaveRequest | kStopRequest), "^$");
  EXPECT_EXIT(EndAfter(ListenToSignals, {}), ExitedWithCode(0), "^$");
}

TEST(Signals, BeforeTrainingEndTheProcessButASaveIsKept) {
  for (const int signal : {SIGTERM, SIGUSR1, SIGINT}) {
    EXPECT_EXIT(EndAfter(EndAtSignals, {signal}), ExitedWithCode(75),
                "^ended by a signal before training began: there is nothing to save\n$");
  }
  EXPECT_EXIT(EndAfter(EndAtSignals, {SIGUSR2}), ExitedWithCode(kSaveRequest), "^$");
}

TEST(JobVariables, AreThoseThatSlurmSets) {
  for (const char* variable : {"SLURM_JOB_ID", "SLURM_RESTART_COUNT", "SLURM_JOB_END_TIME"}) {
    unsetenv(variable);
  }
  EXPECT_EQ(JobId(), "");
  EXPECT_EQ(JobRestarts(), 0);
  EXPECT_EQ(JobDeadline(), std::numeric_limits<double>::infinity());
  setenv("SLURM_JOB_ID", "88_3", 1);
  setenv("SLURM_RESTART_COUNT", "4", 1);
  EXPECT_EQ(JobId(), "88_3");
  EXPECT_EQ(JobRestarts(), 4);
  // A hundred years ahead: more than an int holds.
  constexpr double kAhead = 3.2e9;
  setenv("SLURM_JOB_END_TIME",
         absl::StrCat(static_cast<int64_t>(time(nullptr)) + static_cast<int64_t>(kAhead)).c_str(),
         1);
  EXPECT_NEAR(JobDeadline() - SecondsNow(), kAhead, 60);
  setenv("SLURM_JOB_END_TIME", "0", 1);
  EXPECT_TRUE(std::isinf(JobDeadline()));
  for (const char* variable : {"SLURM_JOB_ID", "SLURM_RESTART_COUNT", "SLURM_JOB_END_TIME"}) {
    unsetenv(variable);
  }
}

TEST(RunOnRanks, AnExceptionIsTheStatusThatTheEnvironmentGivesIt) {
  const Command command{.name = "test"};
  std::istringstream in;
  std::ostringstream out, err;
  const auto run = [&](absl::Status (*status_of_exception)()) {
    const CommandLine line = {
        {.in = in, .out = out, .err = err, .status_of_exception = status_of_exception},
        command,
        {}};
    return RunOnRanks(line, [](const CommandLine&, Communicator& world) -> absl::Status {
      EXPECT_EQ(world.size(), 1);
      throw std::runtime_error("of a library");
    });
  };
  EXPECT_EQ(run([] { return absl::DataLossError("said our way"); }),
            absl::DataLossError("said our way"));
  EXPECT_THROW(run(nullptr).IgnoreError(), std::runtime_error);
}

}  // namespace
}  // namespace deepnet

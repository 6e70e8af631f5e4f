// Jobs under mpirun that are hit at random moments: killed, or asked to stop by every signal there
// is, while they start, train, validate and save. What is left always goes on, and at the end the
// weights are those of a run that nobody disturbed.
//
// Environment: DEEPNET_ROUNDS, how often each kind of job is hit (default 20).
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/running_job.h"

namespace deepnet {
namespace {

using deepnet::testing::AwaitHandlers;
using deepnet::testing::RunningJob;
using ::testing::HasSubstr;

namespace fs = std::filesystem;

constexpr char kProgram[] = DEEPNET_PROGRAM;
constexpr int kRanks = 2;
constexpr int kLimitSeconds = 120;  // of a job; mpirun ends it
constexpr int kInterval = 4;        // steps between checkpoints
constexpr int kSavedRunAgain = 75;

constexpr char kRun[] = R"(# proto-file: proto/run.proto
# proto-message: deepnet.RunSpec
seed: 3
model { encoder_layers: 1 decoder_layers: 1 d_model: 32 ffn_dim: 64 num_heads: 2 residual: DEEPNORM
        dropout: 0.1 }
data { folder: "corpus" max_sentence_tokens: 150 microbatch { max_target_tokens: 300 max_sentences: 16 }
       global_microbatches: 4 }
optim { learning_rate: 1e-3 warmup_steps: 4 virtual_replicas: 2 }
compute { dtype: FLOAT32 threads_per_rank: 1 }
train { steps: $steps validate_every_steps: 6 validate_sentences: 2 log_every_steps: 1
        checkpoint_every_steps: $interval }
decode { beam_size: 2 max_tokens: 8 }
prepare { table { file: "$udhr" languages: "de" languages: "fr" }
          tokenizer { vocab_size: 300 } }
)";

// launch/job.sh, on a machine with fewer cores than ranks, by root.
constexpr char kScript[] =
    "OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none "
    "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 launch/job.sh";

int Rounds() {
  const char* const text = std::getenv("DEEPNET_ROUNDS");
  return text != nullptr ? std::atoi(text) : 20;
}

class EnduranceTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    root_ = fs::path(::testing::TempDir()) / absl::StrCat("deepnet_endurance_", getpid());
    fs::create_directories(root_);
    fs::copy_file("tests/trainer/data/testdata/udhr.tsv", root_ / "udhr.tsv");
    std::ofstream(root_ / "run.textproto")
        << absl::StrReplaceAll(kRun, {{"$udhr", (root_ / "udhr.tsv").string()},
                                      {"$steps", absl::StrCat(10 * Rounds() + 40)},
                                      {"$interval", absl::StrCat(kInterval)}});
    std::ofstream(root_ / "rank.sh") << "echo process $$\nexec " << kProgram << " \"$@\"\n";
    RunningJob prepare(absl::StrCat(kProgram, " prepare", Config()));
    ASSERT_EQ(prepare.End(), 0) << prepare.output();
    RunningJob alone(absl::StrCat(kProgram, " train", Config(), " --set folder=alone"));
    ASSERT_EQ(alone.End(), 0) << alone.output();
    undisturbed_ = Weights(alone.output());
    ASSERT_NE(undisturbed_, "");
  }
  static void TearDownTestSuite() { fs::remove_all(root_); }

  static std::string Config() {
    return absl::StrCat(" --config ", (root_ / "run.textproto").string(), " --root ",
                        root_.string());
  }
  // Runs the program on kRanks ranks, on the folder of the test. `environment`: "NAME=VALUE ..."
  static std::string Job(const std::string& more = "", const std::string& environment = "") {
    return absl::StrCat("env MPIEXEC_TIMEOUT=", kLimitSeconds, " ", environment,
                        " tests/mpi/mpirun.sh ", kRanks, " bash ", (root_ / "rank.sh").string(),
                        " train", Config(),
                        " --log-seconds 0 --set folder=", Folder().filename().string(), more);
  }
  // The same under the script that turns SIGTERM into what mpirun passes on.
  static std::string ScriptedJob() {
    return absl::StrReplaceAll(Job(), {{"tests/mpi/mpirun.sh", kScript}});
  }
  static fs::path Folder() {
    return root_ / ::testing::UnitTest::GetInstance()->current_test_info()->name();
  }
  // A job that saves and validates only when it is asked to.
  static constexpr char kOnlyWhenAsked[] =
      " --set train.checkpoint_every_steps=1000000 --set train.validate_every_steps=-1";
  // `job` under a shell that says its number, which is then the launcher's.
  static std::string Announced(const std::string& job) {
    return absl::StrCat("bash -c 'echo launcher $$; exec ", job, "'");
  }
  static int Launcher(const RunningJob& job) {
    int launcher = 0;
    const size_t at = job.output().find("launcher ");
    EXPECT_EQ(sscanf(job.output().c_str() + at, "launcher %d", &launcher), 1) << job.output();
    return launcher;
  }
  static std::string Weights(const std::string& output) {
    const size_t at = output.rfind("weights ");
    return at == output.npos ? "" : output.substr(at, 24);
  }
  // The step of the newest complete checkpoint, which a run continues at; 0: there is none. The
  // pointer `latest` may name an older one, if the kill came before it was written.
  static int LatestStep() {
    int latest = 0;
    std::error_code missing;
    for (const auto& entry : fs::directory_iterator(Folder(), missing)) {
      int step = 0, length = 0;
      const std::string name = entry.path().filename();
      if (sscanf(name.c_str(), "step-%d%n", &step, &length) != 1) continue;
      if (length == static_cast<int>(name.size())) latest = std::max(latest, step);
    }
    return latest;
  }
  // Somewhere between two lines of output.
  void WaitAMoment() { usleep(std::uniform_int_distribution<>(0, 20000)(random_)); }
  int Roll(int sides) { return std::uniform_int_distribution<>(0, sides - 1)(random_); }

  // The job is let alone and ends as it should.
  static void ExpectEndsUndisturbed() {
    RunningJob job(Job());
    EXPECT_EQ(job.End(), 0) << job.output();
    EXPECT_EQ(Weights(job.output()), undisturbed_) << job.output();
  }

  static inline fs::path root_;
  static inline std::string undisturbed_;
  std::mt19937 random_{7};
};

// When a checkpoint is due, the one due before is on disk, or training waits for it: behind the
// newest due step at most one interval is lost.
TEST_F(EnduranceTest, ARankThatIsKilledCostsAtMostAnIntervalBeforeTheNewestDueStep) {
  for (int round = 0; round < Rounds(); ++round) {
    SCOPED_TRACE(round);
    const int before = LatestStep();
    RunningJob job(Job());
    // Two in ten while it starts, the others in training.
    const bool starting = Roll(10) < 2;
    ASSERT_TRUE(job.ReadUntil("process ", kRanks)) << job.output();
    if (!starting) job.ReadUntil("loss ", 4 + Roll(2 * kInterval));
    WaitAMoment();
    kill(job.ranks()[Roll(kRanks)], SIGKILL);
    const int code = job.End();
    if (code == 0) break;  // it had come to its end
    EXPECT_NE(code, kSavedRunAgain) << job.output();
    EXPECT_GE(LatestStep(), before);
    // A step is reported before it is saved or waited for, so that its own save does not count.
    const int newest_due = std::max(job.last_step() - 1, 0) / kInterval * kInterval;
    EXPECT_GE(LatestStep(), newest_due - kInterval) << job.output();
  }
  ExpectEndsUndisturbed();
}

TEST_F(EnduranceTest, EverySignalAtAnyMomentSavesAndEndsWithSeventyFive) {
  for (int round = 0; round < Rounds(); ++round) {
    RunningJob job(Job());
    ASSERT_TRUE(job.ReadUntil("process ", kRanks)) << job.output();
    const int where = Roll(4);
    SCOPED_TRACE(::testing::Message() << "round " << round << ", where " << where);
    // While it starts; at a step; in a validation; while a checkpoint is written.
    bool running = where == 0 || job.ReadUntil("parameters, ", 1);
    if (where == 1) running = job.ReadUntil("loss ", 1 + Roll(3));
    if (where == 2) running = job.ReadUntil("validate ", 1);
    if (where == 3) running = job.ReadUntil("saved ", 1);
    WaitAMoment();
    const int rank = job.ranks()[Roll(kRanks)];
    AwaitHandlers(rank, {SIGTERM, SIGUSR1, SIGUSR2});
    std::vector<int> signals;
    for (int i = Roll(2); i >= 0; --i) signals.push_back(Roll(2) == 0 ? SIGTERM : SIGUSR1);
    for (const int signal : signals) kill(rank, signal);
    const int code = job.End();
    if (!running || code == 0) break;  // it had come to its end
    ASSERT_EQ(code, kSavedRunAgain) << job.output();
    const bool begun = job.output().find("before training began") == std::string::npos;
    if (where != 0 || begun) {
      EXPECT_THAT(job.output(),
                  HasSubstr(absl::StrCat("stopped and saved at step ", LatestStep(), ";")));
    }
    EXPECT_GE(LatestStep(), job.last_step());
    EXPECT_FALSE(fs::exists(Folder() / "lock"));
  }
  ExpectEndsUndisturbed();
}

TEST_F(EnduranceTest, OneSignalToMpirunOrToTheScriptStopsAllRanks) {
  struct Case {
    std::string job;
    int signal;
  };
  for (const Case& hit :
       {Case{Job(), SIGUSR1}, Case{ScriptedJob(), SIGUSR1}, Case{ScriptedJob(), SIGTERM}}) {
    RunningJob job(Announced(hit.job));
    ASSERT_TRUE(job.ReadUntil("loss ", 2)) << job.output();
    kill(Launcher(job), hit.signal);
    EXPECT_EQ(job.End(), kSavedRunAgain) << job.output();
  }
  ExpectEndsUndisturbed();
}

// Open MPI passes it on and kills the ranks a second later: they save if they can.
TEST_F(EnduranceTest, ABareTermToMpirunCostsAtMostAnIntervalBeforeTheNewestDueStep) {
  RunningJob job(Announced(Job()));
  ASSERT_TRUE(job.ReadUntil("loss ", 3 * kInterval)) << job.output();
  kill(Launcher(job), SIGTERM);
  EXPECT_NE(job.End(), 0) << job.output();
  const int newest_due = std::max(job.last_step() - 1, 0) / kInterval * kInterval;
  EXPECT_GE(LatestStep(), newest_due - kInterval) << job.output();
  ExpectEndsUndisturbed();
}

TEST_F(EnduranceTest, ASaveRequestToARankOrTheScriptSavesAndGoesOn) {
  const std::string scripted =
      absl::StrReplaceAll(Job(kOnlyWhenAsked), {{"tests/mpi/mpirun.sh", kScript}});
  for (const bool to_script : {false, true}) {
    RunningJob job(Announced(to_script ? scripted : Job(kOnlyWhenAsked)));
    ASSERT_TRUE(job.ReadUntil("loss ", 2)) << job.output();
    const int before = job.last_step();
    kill(to_script ? Launcher(job) : job.ranks()[1], SIGUSR2);
    ASSERT_TRUE(job.ReadUntil("saved step ", 1)) << job.output();
    const int saved = LatestStep();
    EXPECT_GE(saved, before);
    ASSERT_TRUE(job.ReadUntil("loss ", 2)) << job.output();
    EXPECT_GT(job.last_step(), saved);
    kill(job.ranks()[0], SIGTERM);
    EXPECT_EQ(job.End(), kSavedRunAgain) << job.output();
  }
  ExpectEndsUndisturbed();
}

TEST_F(EnduranceTest, SlurmsEndOfTheJobIsKeptTo) {
  constexpr int kSeconds = 9;
  const time_t end = time(nullptr) + kSeconds;
  RunningJob job(Job(absl::StrCat(kOnlyWhenAsked, " --set train.steps=1000000"),
                     absl::StrCat("SLURM_JOB_END_TIME=", end)));
  EXPECT_EQ(job.End(), kSavedRunAgain) << job.output();
  EXPECT_LE(time(nullptr), end);
  EXPECT_GT(LatestStep(), 0) << job.output();
}

TEST_F(EnduranceTest, ASecondInterruptEndsAtOnce) {
  RunningJob job(Job());
  ASSERT_TRUE(job.ReadUntil("loss ", 2)) << job.output();
  kill(job.ranks()[0], SIGINT);
  kill(job.ranks()[0], SIGINT);
  EXPECT_NE(job.End(), 0) << job.output();
  ExpectEndsUndisturbed();
}

}  // namespace
}  // namespace deepnet

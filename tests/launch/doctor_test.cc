// `deepnet doctor` and `train --check` as a user starts them, on hosts that are crippled for real.
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include <gmock/gmock.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include "parallel/base/clock.h"
#include "parallel/base/host.h"
#include "proto/doctor.pb.h"
#include "tests/parity/training_runs.h"
#include "tests/support/running_job.h"

namespace deepnet {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::RunningJob;

constexpr char kProgram[] = DEEPNET_PROGRAM;
constexpr char kRun[] = R"(# proto-file: proto/run.proto
# proto-message: deepnet.RunSpec
folder: "run"
model { encoder_layers: 1 decoder_layers: 1 d_model: 16 ffn_dim: 32 num_heads: 2 residual: DEEPNORM
        max_positions: 300 }
data { folder: "corpus" max_sentence_tokens: 80 global_microbatches: 2
       microbatch { max_source_tokens: 82 max_target_tokens: 82 max_sentences: 2 } }
optim { learning_rate: 1e-3 warmup_steps: 4 }
compute { dtype: FLOAT32 }
train { steps: 1 validate_every_steps: -1 validate_sentences: 1 }
)";

class DoctorProgramTest : public testing::CorpusTest {
 protected:
  struct Outcome {
    int code;
    std::string output;
  };
  static Outcome Run(const std::string& command) {
    RunningJob job(command);
    const int code = job.End();
    return {code, job.output()};
  }
  // Ranks that run `first`, and one behind them that runs `last`.
  static Outcome RunRanks(int ranks, const std::string& first, const std::string& last) {
    return Run(absl::StrCat("env MPIEXEC_TIMEOUT=60 tests/mpi/mpirun.sh ", ranks, " ", first,
                            " : -n 1 ", last));
  }
  static std::string Doctor(const std::string& program = kProgram) {
    return absl::StrCat(program, " doctor --root ", root_.string());
  }
  // A script that runs `command` and stops it for four fifths of the time.
  static std::string Slowed(const std::string& command) {
    return absl::StrCat(command, " &\np=$!\n",
                        "while read -r _ < /proc/$p/maps; do\n",  // as long as it has memory
                        "  kill -STOP $p; sleep 0.04; kill -CONT $p; sleep 0.01\n",
                        "done 2>/dev/null\nwait $p\n");
  }
  static std::string Train(const std::string& more) {
    std::ofstream(root_ / "run.textproto") << kRun;
    return absl::StrCat(kProgram, " train --check --config ", (root_ / "run.textproto").string(),
                        " --root ", root_.string(), more);
  }
};

TEST_F(DoctorProgramTest, AloneItFindsNothingAndItsJsonHoldsTheWholeReport) {
  const Outcome json = Run(Doctor() + " --json");
  EXPECT_EQ(json.code, 0) << json.output;
  DoctorReport report;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(json.output, &report).ok())
      << json.output;
  EXPECT_EQ(report.kind(), "doctor");
  ASSERT_EQ(report.ranks_size(), 1);
  EXPECT_EQ(report.ranks(0).host(), HostName());
  EXPECT_GE(report.checks_size(), 40);
  EXPECT_EQ(report.findings_size(), 0);
}

TEST_F(DoctorProgramTest, AnotherBuildOnOneRankIsNamed) {
  std::filesystem::copy_file(kProgram, root_ / "other");
  std::ofstream(root_ / "other", std::ios::app) << '\n';  // changes nothing but the file
  const Outcome outcome = RunRanks(2, Doctor(), Doctor((root_ / "other").string()));
  EXPECT_EQ(outcome.code, 3) << outcome.output;
  EXPECT_THAT(outcome.output,
              ContainsRegex("FAILED   rank 2 \\(host .*\\): program build .*, that of most is "));
}

TEST_F(DoctorProgramTest, UnderTorchrunItJoinsByTcpAndNamesTheRankAndItsHost) {
  const std::string ranks = "tests/mpi/torchrun.sh ";
  // Not its code: on a busy machine it may find a rank slow.
  const Outcome sound = Run(absl::StrCat(ranks, "4 ", Doctor()));
  EXPECT_THAT(sound.output, AllOf(HasSubstr("4 ranks by TCP (torchrun's variables)"),
                                  ContainsRegex(absl::StrCat("\n3 +", HostName(), " +")),
                                  HasSubstr("2 stages x 2 replicas"), Not(HasSubstr("FAILED"))));
  std::filesystem::copy_file(kProgram, root_ / "program_0");
  std::filesystem::copy_file(kProgram, root_ / "program_1");
  std::ofstream(root_ / "program_1", std::ios::app) << '\n';  // changes nothing but the file
  const Outcome outcome =
      Run(absl::StrCat(ranks, "2 ", Doctor((root_ / "program_@RANK@").string())));
  EXPECT_EQ(outcome.code, 3) << outcome.output;
  EXPECT_THAT(outcome.output, ContainsRegex(absl::StrCat("FAILED   rank [01] \\(host ", HostName(),
                                                         ".*program build")));
}

TEST_F(DoctorProgramTest, LessMemoryOnOneRankIsNamed) {
  const int64_t half_kib = UsableMemoryBytes() / 2048;
  const Outcome outcome = RunRanks(
      2, Doctor(), absl::StrCat("bash -c 'ulimit -v ", half_kib, "; exec ", Doctor(), "'"));
  EXPECT_EQ(outcome.code, 3) << outcome.output;
  EXPECT_THAT(outcome.output,
              ContainsRegex(
                  "OUTLIER  rank 2 \\(host .*\\): memory [0-9.]+ GiB, the median of cpu ranks is"));
}

// Rank 1 is stopped for four fifths of the time, whatever else the machine does.
TEST_F(DoctorProgramTest, ASlowCoreIsNamed) {
  std::ofstream(root_ / "slow.sh") << Slowed(Doctor());
  const Outcome outcome =
      RunRanks(1, Doctor(), absl::StrCat("bash ", (root_ / "slow.sh").string()));
  EXPECT_EQ(outcome.code, 3) << outcome.output;
  EXPECT_THAT(outcome.output, ContainsRegex("OUTLIER  rank 1 \\(host .*\\): matrix products .*, "
                                            "the median of cpu ranks is"));
}

// The same in training: fifty steps, and the rank is in log and metrics. The model is large enough
// that nearly all of a step is computing: only what stops that counts.
TEST_F(DoctorProgramTest, AStragglerIsNamed) {
  const std::string train = Train(
      " --set folder=straggler --set train.steps=50 --set parallel.data_parallel_size=2"
      " --set model.encoder_layers=3 --set model.decoder_layers=3 --set model.d_model=64"
      " --set model.ffn_dim=256 --set compute.threads_per_rank=1");
  std::ofstream(root_ / "slow_train.sh") << Slowed(train);
  const Outcome outcome =
      RunRanks(1, train, absl::StrCat("bash ", (root_ / "slow_train.sh").string()));
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output,
              HasSubstr(absl::StrCat("straggler: rank 1 on ", HostName(), " computes ")));
  std::ifstream file(root_ / "straggler/metrics.jsonl");
  const std::string metrics{std::istreambuf_iterator<char>(file), {}};
  EXPECT_THAT(metrics, ContainsRegex("\"kind\":\"straggler\",\"step\":\"?50\"?,\"rank\":1,"));
}

// All packets between hosts 2 and 3 are lost, as behind a firewall; both reach host 1.
TEST_F(DoctorProgramTest, AWayBetweenTwoHostsThatIsCutIsNamed) {
  const std::string hosts =
      "env TH_PREFIX=d TH_NET=10.78.0 MPIEXEC_TIMEOUT=120 "
      "tests/mpi/testhosts.sh ";
  Run(hosts + "down");
  ASSERT_EQ(Run(hosts + "up 3").code, 0);
  const Outcome whole = Run(absl::StrCat(hosts, "mpirun -np 3 ", Doctor()));
  EXPECT_THAT(whole.output, AllOf(HasSubstr("1 -> 2  between hosts"), Not(HasSubstr("FAILED"))));
  ASSERT_EQ(Run(hosts + "part d2 d3").code, 0);
  const double start = SecondsNow();
  const Outcome parted = Run(absl::StrCat(hosts, "mpirun -np 3 ", Doctor()));
  const double seconds = SecondsNow() - start;
  Run(hosts + "down");
  EXPECT_EQ(parted.code, 3) << parted.output;
  EXPECT_THAT(parted.output,
              ContainsRegex("rank [12] \\(host d[23]\\) heard nothing from rank [12] within 10"));
  RecordProperty("seconds", absl::StrCat(seconds));
  EXPECT_LT(seconds, 60);  // less than TCP's own patience
}

TEST_F(DoctorProgramTest, CheckGoesBeforeTrainingOrEndsIt) {
  const Outcome good = Run(Train(""));
  EXPECT_EQ(good.code, 0) << good.output;
  EXPECT_THAT(good.output,
              AllOf(HasSubstr("--check: "), HasSubstr(" checks passed"), HasSubstr("weights ")));
  const Outcome bad = Run(Train(" --set folder=/proc/run"));
  EXPECT_EQ(bad.code, 3) << bad.output;
  EXPECT_THAT(bad.output,
              AllOf(HasSubstr("--check: rank 0 (host "),
                    HasSubstr("folder /proc: write and fsync: "), Not(HasSubstr("weights "))));
}

TEST_F(DoctorProgramTest, ADamagedCorpusIsNamedAndNotTrainedOn) {
  const std::string train = Train(" --set data.folder=bad");
  std::filesystem::copy(root_ / "corpus", root_ / "bad");
  const std::filesystem::path text = root_ / "bad/test.de-en.en";
  std::fstream(text, std::ios::in | std::ios::out) << "\x01";
  const std::string doctor = absl::StrCat(
      Doctor(), " --config ", (root_ / "run.textproto").string(), " --set data.folder=bad");
  const Outcome examined = RunRanks(1, doctor, doctor);
  EXPECT_EQ(examined.code, 4) << examined.output;
  EXPECT_THAT(examined.output,
              AllOf(HasSubstr("FAILED   data.folder: rank "),
                    HasSubstr("bad/test.de-en.en: damaged: "), Not(HasSubstr("all is well"))));
  const Outcome trained = Run(train);
  EXPECT_EQ(trained.code, 4) << trained.output;
  EXPECT_THAT(trained.output,
              AllOf(HasSubstr("--check: data.folder: "), Not(HasSubstr("weights "))));
}

}  // namespace
}  // namespace deepnet

// `deepnet train` with compute.device "cuda" on one, two and four ranks, each a process with an
// emulated GPU: it trains, validates, saves, resumes, and ends as it does on CPUs when it is
// asked to, when a rank is killed and when one stands still.
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include <gmock/gmock.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include "proto/report.pb.h"
#include "tests/parity/training_runs.h"
#include "tests/support/running_job.h"

namespace deepnet {
namespace {

using deepnet::testing::AwaitHandlers;
using deepnet::testing::ReadSteps;
using deepnet::testing::RunningJob;
using deepnet::testing::WeightsLine;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

namespace fs = std::filesystem;

constexpr char kProgram[] = DEEPNET_PROGRAM;
constexpr int kSteps = 6;
constexpr char kOnCpu[] = " --set compute.device=cpu --set compute.matmul=NATIVE";
constexpr int kInternal = 1;  // exit codes
constexpr int kPreflight = 3;
constexpr int kCheckpoint = 5;
constexpr int kDoesNotFit = 6;
constexpr int kDiverged = 7;
constexpr int kHang = 8;
constexpr int kSavedRunAgain = 75;

constexpr char kRun[] = R"(# proto-file: proto/run.proto
# proto-message: deepnet.RunSpec
seed: 3
model { encoder_layers: 1 decoder_layers: 1 d_model: 16 ffn_dim: 32 num_heads: 2 residual: DEEPNORM
        max_positions: 300 dropout: 0.1 }
data { folder: "corpus" max_sentence_tokens: 80 global_microbatches: 4
       microbatch { max_source_tokens: 82 max_target_tokens: 82 max_sentences: 2 } }
optim { learning_rate: 2e-3 warmup_steps: 4 clip_norm: 1 virtual_replicas: 2 }
compute { device: "cuda" dtype: FLOAT32 threads_per_rank: 1 }
train { validate_every_steps: -1 validate_sentences: 1 log_every_steps: 1
        checkpoint_every_steps: 1000 }
decode { beam_size: 2 max_tokens: 4 }
)";

struct Layout {
  int stages = 1, replicas = 1;
  std::string schedule = "";  // empty: the planner's choice
};

class GpuProgramTest : public testing::CorpusTest {
 protected:
  static void SetUpTestSuite() {
    CorpusTest::SetUpTestSuite();
    std::ofstream(root_ / "run.textproto") << kRun;
    std::ofstream(root_ / "rank.sh")
        << "echo process $$\n[ \"$OMPI_COMM_WORLD_RANK\" = 1 ] && "
        << "[ \"$ON_RANK_1\" ] && export $ON_RANK_1\nexec " << kProgram << " \"$@\"\n";
    whole_ = Train("whole", kSteps, {});
    ASSERT_NE(WeightsLine(whole_), "none") << whole_;
  }

  static std::string Command(const std::string& folder, int steps, const Layout& layout,
                             const std::string& more = "") {
    std::string command = absl::StrCat(
        "tests/mpi/mpirun.sh ", layout.stages * layout.replicas, " bash ",
        (root_ / "rank.sh").string(), " train --config ", (root_ / "run.textproto").string(),
        " --root ", root_.string(), " --log-seconds 0 --set folder=", folder,
        " --set train.steps=", steps, " --set parallel.pipeline_parallel_size=", layout.stages,
        " --set parallel.data_parallel_size=", layout.replicas, more);
    if (!layout.schedule.empty()) {
      absl::StrAppend(&command, " --set parallel.schedule=", layout.schedule);
    }
    return command;
  }
  // Everything that the ranks printed.
  static std::string Train(const std::string& folder, int steps, const Layout& layout,
                           const std::string& more = "") {
    RunningJob job("env MPIEXEC_TIMEOUT=60 " + Command(folder, steps, layout, more));
    EXPECT_EQ(job.End(), 0) << job.output();
    return job.output();
  }
  static auto Steps(const std::string& folder) {
    return ReadSteps(root_ / folder / "metrics.jsonl");
  }

  // The line of the validation, without times.
  static std::string Validation(const std::string& log) {
    const size_t begin = log.find("validation at step");
    return begin == log.npos ? "none" : log.substr(begin, log.find(" directions", begin) - begin);
  }

  // What is left of a run goes on and ends as one that nobody disturbed.
  static void ExpectGoesOn(const std::string& folder, const Layout& layout) {
    EXPECT_EQ(WeightsLine(Train(folder, kSteps, layout)), WeightsLine(whole_));
  }

  static inline std::string whole_;  // what the run on one rank printed
};

TEST_F(GpuProgramTest, TwoAndFourRanksTrainAndValidateAsOneDoes) {
  const Layout layouts[] = {{2, 1, "zb-h1"}, {1, 2}, {2, 2, "1f1b"}};
  for (const Layout& layout : layouts) {
    const std::string folder = absl::StrCat("on-", layout.stages, "x", layout.replicas);
    SCOPED_TRACE(folder);
    const std::string log = Train(folder, kSteps, layout);
    EXPECT_EQ(WeightsLine(log), WeightsLine(whole_)) << log;
    EXPECT_EQ(Validation(log), Validation(whole_));
    EXPECT_EQ(Steps(folder), Steps("whole"));
  }
}

// NCCL's number goes over the connections of the ranks, whoever made them.
TEST_F(GpuProgramTest, RanksThatTorchrunStartsTrainAsThoseOfMpirunDo) {
  const Layout layouts[] = {{2, 1, "zb-h1"}, {1, 2}};
  for (const Layout& layout : layouts) {
    const std::string folder = absl::StrCat("torchrun-", layout.stages, "x", layout.replicas);
    SCOPED_TRACE(folder);
    RunningJob job(absl::StrReplaceAll(Command(folder, kSteps, layout),
                                       {{"tests/mpi/mpirun.sh", "tests/mpi/torchrun.sh"}}));
    EXPECT_EQ(job.End(), 0) << job.output();
    EXPECT_THAT(job.output(), HasSubstr("2 ranks by TCP (torchrun's variables)"));
    EXPECT_EQ(WeightsLine(job.output()), WeightsLine(whole_));
    EXPECT_EQ(Validation(job.output()), Validation(whole_));
    EXPECT_EQ(Steps(folder), Steps("whole"));
  }
}

TEST_F(GpuProgramTest, ARunGoesOnBitForBitOnOtherRanksThanItWasSavedBy) {
  Train("links", 2, {1, 2});
  EXPECT_THAT(Train("links", 4, {2, 2, "gpipe"}), HasSubstr("continuing at step 2"));
  ExpectGoesOn("links", {2, 1, "1f1b"});
  EXPECT_EQ(Steps("links"), Steps("whole"));
}

// A run keeps its arithmetic; a new one begins with weights of the other device. Losses differ by
// rounding.
TEST_F(GpuProgramTest, WeightsGoFromTheCpuToGpusAndBack) {
  Train("cpu", 2, {}, kOnCpu);
  RunningJob refused(Command("cpu", 4, {}));
  EXPECT_EQ(refused.End(), kCheckpoint) << refused.output();
  EXPECT_THAT(refused.output(), AllOf(HasSubstr("goes on with the arithmetic it started with"),
                                      HasSubstr("device: \"cuda\"")));
  for (const std::string from : {"cpu", "whole"}) {
    const std::string begin = absl::StrCat(" --init-from ", (root_ / from).string());
    Train(from + "-to-cpu", 2, {}, begin + kOnCpu);
    Train(from + "-to-gpus", 2, {2, 1, "zb-h1"}, begin);
    const auto on_cpu = Steps(from + "-to-cpu"), on_gpus = Steps(from + "-to-gpus");
    ASSERT_EQ(on_gpus.size(), 2u);
    for (size_t i = 0; i < on_gpus.size(); ++i) {
      EXPECT_NEAR(std::get<1>(on_gpus[i]), std::get<1>(on_cpu[i]), 1e-5 * std::get<1>(on_cpu[i]));
    }
  }
}

TEST_F(GpuProgramTest, ItsCheckpointsAreTranslatedFromOnTheGpu) {
  const auto translate = [](const std::string& program, const std::string& more) {
    return absl::StrCat("bash -c 'echo Jeder hat das Recht. | ", program, " translate --root ",
                        root_.string(), " --checkpoint whole --from de --to fr --nbest 2 ",
                        "--set decode.beam_size=2 --set decode.max_tokens=6", more,
                        " 2>/dev/null'");
  };
  RunningJob on_gpu(translate(kProgram, "")), on_cpu(translate(kProgram, kOnCpu));
  EXPECT_EQ(on_gpu.End(), 0) << on_gpu.output();
  EXPECT_EQ(on_cpu.End(), 0) << on_cpu.output();
  EXPECT_NE(on_gpu.output(), "");
  EXPECT_EQ(on_gpu.output(), on_cpu.output());
  RunningJob too_large(translate(absl::StrCat("DEEPNET_EMULATED_MEMORY_MIB=128 ", kProgram),
                                 " --set decode.batch_tokens=1048576"));
  EXPECT_EQ(too_large.End(), 6);
  RunningJob with_error(
      translate(absl::StrCat("DEEPNET_EMULATED_FAIL=cudaMemcpyAsync:1:700 ", kProgram), ""));
  EXPECT_NE(with_error.End(), 0);  // so it was on the GPU
}

TEST_F(GpuProgramTest, BenchmarksMeasureTheGpu) {
  std::ofstream(root_ / "lengths.json") << "[[9, 8], [7, 11], [12, 5], [6, 6]]";
  const auto bench = [](const std::string& what, auto record) {
    RunningJob job(absl::StrCat("bash -c '", kProgram, " bench ", what,
                                " --device cuda --layers 1 --width 16 --json --lengths ",
                                (root_ / "lengths.json").string(), "'"));
    EXPECT_EQ(job.End(), 0) << job.output();
    const std::string json =
        job.output().substr(std::min(job.output().find('{'), job.output().size()));
    EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(json, &record).ok()) << job.output();
    EXPECT_THAT(record.device(), HasSubstr("Emulated GPU"));
    return record;
  };
  for (const char* what :
       {"step --steps 2 --tokens 30", "step --steps 2 --tokens 30 --microbatches 2 --graphs",
        "step --steps 1 --tokens 30 --attention OWN", "decode --sentences 2 --beam 2"}) {
    const BenchRecord record = bench(what, BenchRecord());
    EXPECT_GT(record.tokens_per_second(), 0) << what;
    EXPECT_GT(record.ceiling_gflops(), 0) << what;
    EXPECT_GT(record.peak_device_bytes(), 1 << 20) << what;
    EXPECT_EQ(record.dtype(), "BFLOAT16") << what;
  }
  const ProductsRecord products = bench("products --tokens 30 --repeats 3", ProductsRecord());
  EXPECT_EQ(products.products_size(), 21);
  for (const ProductRecord& product : products.products()) {
    EXPECT_EQ(product.ways(0).way(), "first") << product.name();
    EXPECT_GT(product.ways(1).seconds_per_call(), 0) << product.name();
    for (const ProductTime& way : product.ways()) EXPECT_EQ(way.unequal(), 0) << product.name();
  }
  std::map<std::string, double> calls;
  const KernelsRecord record =
      bench("kernels --steps 2 --tokens 30 --device-model A100", KernelsRecord());
  EXPECT_EQ(record.device_model(), "A100");
  double predicted = 0.0, launches = 0.0;
  for (const KernelRecord& kernel : record.kernels()) {
    predicted += kernel.predicted_seconds_per_step();
    // The table knows every kernel of the passes; others belong to the step.
    if (kernel.predicted_seconds_per_step() > 0) {
      launches += kernel.calls_per_step();
    } else {
      EXPECT_THAT(kernel.name(), AnyOf("Adam", "SumSquares", "Add", "Upload", "ReadBack"));
    }
    calls[kernel.name()] = kernel.calls_per_step();
    EXPECT_GT(kernel.seconds_per_call(), 0) << kernel.name();
  }
  EXPECT_EQ(calls["CrossEntropy"], 1);
  EXPECT_EQ(calls["FlashAttentionForward"] + calls["AttentionForward"], 3);
  EXPECT_GT(calls["cublasLtMatmul"], 20);
  double of_products = 0;
  for (const KernelRecord& product : record.products()) {
    of_products += product.calls_per_step();
    EXPECT_GT(product.predicted_seconds_per_step(), 0) << product.name();
  }
  EXPECT_EQ(of_products, calls["cublasLtMatmul"]);
  // So small a step is bound by its launches.
  constexpr double kLaunchSeconds = 5e-6;
  EXPECT_GE(record.predicted_seconds_per_step(), kLaunchSeconds * launches);
  EXPECT_LE(predicted, record.predicted_seconds_per_step());
}

TEST_F(GpuProgramTest, SignalsSaveAndEndWithSeventyFive) {
  for (const int signal : {SIGTERM, SIGUSR1}) {
    const std::string folder = absl::StrCat("signal-", signal);
    RunningJob job(Command(folder, 1000000, {2, 1, "1f1b"}));
    ASSERT_TRUE(job.ReadUntil("loss ", 2)) << job.output();
    ASSERT_EQ(job.ranks().size(), 2u) << job.output();
    kill(job.ranks()[1], signal);
    EXPECT_EQ(job.End(), kSavedRunAgain) << job.output();
    EXPECT_THAT(job.output(), HasSubstr("stopped and saved at step "));
  }
}

TEST_F(GpuProgramTest, ASaveRequestSavesAndGoesOn) {
  RunningJob job(Command("asked", 1000000, {1, 2}));
  ASSERT_TRUE(job.ReadUntil("loss ", 1)) << job.output();
  kill(job.ranks()[1], SIGUSR2);
  ASSERT_TRUE(job.ReadUntil("saved step ", 1)) << job.output();
  ASSERT_TRUE(job.ReadUntil("loss ", 2)) << job.output();
  kill(job.ranks()[0], SIGTERM);
  EXPECT_EQ(job.End(), kSavedRunAgain) << job.output();
}

TEST_F(GpuProgramTest, ARankThatIsKilledEndsTheJobWhichGoesOnFromItsCheckpoint) {
  RunningJob job(
      Command("killed", kSteps, {2, 1, "1f1b"}, " --set train.checkpoint_every_steps=2"));
  ASSERT_TRUE(job.ReadUntil("saved step 2", 1)) << job.output();
  kill(job.ranks()[1], SIGKILL);
  EXPECT_NE(job.End(), 0) << job.output();
  ExpectGoesOn("killed", {1, 2});
}

TEST_F(GpuProgramTest, ARankThatStandsStillIsNamedAndEndsTheJob) {
  RunningJob job(
      Command("stuck", 1000000, {2, 1, "1f1b"}, " --set parallel.comm_timeout_seconds=1"));
  ASSERT_TRUE(job.ReadUntil("loss ", 2)) << job.output();
  // Rank 1 is the one that rank 0 waits for.
  for (const int process : job.ranks()) {
    std::ifstream environment(absl::StrCat("/proc/", process, "/environ"));
    const std::string variables{std::istreambuf_iterator<char>(environment), {}};
    if (variables.find("OMPI_COMM_WORLD_RANK=1") != variables.npos) kill(process, SIGSTOP);
  }
  EXPECT_EQ(job.End(), kHang) << job.output();
  EXPECT_THAT(job.output(), HasSubstr("rank 1"));
}

// Rates of an emulated device say nothing, so outliers are left alone.
TEST_F(GpuProgramTest, DoctorFindsEveryKernelEveryMessageAndTheLayoutRight) {
  RunningJob job(absl::StrCat("env MPIEXEC_TIMEOUT=180 tests/mpi/mpirun.sh 2 ", kProgram,
                              " doctor --root ", root_.string()));
  job.End();
  EXPECT_THAT(job.output(), AllOf(HasSubstr("Emulated GPU"), HasSubstr("; NCCL "),
                                  HasSubstr("\nResidualNormBackward, float16 "),
                                  HasSubstr("\nflash beside own attention, cross, bfloat16 "),
                                  HasSubstr("\nreduce-scatter of 4096 KiB "),
                                  HasSubstr("\ntiny model on 2 stages x 1 replicas, 1f1b "),
                                  Not(HasSubstr("FAILED")), Not(HasSubstr("error: rank"))));
}

// A run whose rank 1 alone has `variable` in its environment: its code and what it printed.
std::pair<int, std::string> TrainWith(const std::string& command, const std::string& variable) {
  RunningJob job(absl::StrCat("env MPIEXEC_TIMEOUT=60 ON_RANK_1=", variable, " ", command));
  const int code = job.End();
  return {code, job.output()};
}

// Returns what the log says of the first value that was not finite, without its rank's host.
std::string NonFinite(const std::string& log) {
  const size_t begin = log.find("first in the ");
  return begin == log.npos ? log : log.substr(begin, log.find(" on ", begin) - begin);
}

TEST_F(GpuProgramTest, AValueThatIsNotFiniteIsFoundWhereTheCpuFindsIt) {
  const std::string diverges = " --set optim.learning_rate=1e30 --set optim.clip_norm=0";
  const auto end = [&](const std::string& folder, const Layout& layout, const std::string& more) {
    RunningJob job(Command(folder, 20, layout, diverges + more));
    EXPECT_EQ(job.End(), kDiverged) << job.output();
    return NonFinite(job.output());
  };
  const std::string on_cpu = end("diverged-on-cpu", {}, kOnCpu);
  EXPECT_THAT(on_cpu, AllOf(HasSubstr(" pass of "), HasSubstr("(rank 0")));
  EXPECT_EQ(end("diverged", {}, ""), on_cpu);
  EXPECT_EQ(end("diverged-graphs", {}, " --set compute.cuda_graphs=true"), on_cpu);
}

// Returns whether the averages that two runs kept are equal, bit for bit.
bool HaveOneAverage(const fs::path& root, const std::string& a, const std::string& b) {
  const std::string folder = absl::StrCat(a, "-", b), tool = absl::StrCat(kProgram, " checkpoint ");
  std::string command = absl::StrCat("mkdir ", (root / folder).string(), " && cd ", root.string());
  for (const std::string& run : {a, b}) {
    absl::StrAppend(&command, " && ", tool, "average ", run, " --ema --output ", folder, "/", run);
  }
  RunningJob job(absl::StrCat("bash -c '", command, " && ", tool, "diff ", folder, "/", a, " ",
                              folder, "/", b, "'"));
  const int code = job.End();
  EXPECT_TRUE(code == 0 || code == kCheckpoint) << job.output();
  return code == 0;
}

TEST_F(GpuProgramTest, TheAverageOfWeightsIsOneOnAllLayouts) {
  const std::string ema = " --set optim.ema_decay=0.5";
  EXPECT_EQ(WeightsLine(Train("ema", kSteps, {}, ema)), WeightsLine(whole_));
  Train("ema-spread", 3, {2, 2, "1f1b"}, ema);
  Train("ema-spread", kSteps, {1, 2}, ema);
  EXPECT_TRUE(HaveOneAverage(root_, "ema", "ema-spread"));
  Train("ema-of-others", kSteps, {}, " --set optim.ema_decay=0.6");
  EXPECT_FALSE(HaveOneAverage(root_, "ema", "ema-of-others"));
}

// The host of rank 1 is as fast as the other: only its GPU's own clock tells.
TEST_F(GpuProgramTest, ASlowGpuIsNamed) {
  const auto [code, log] =
      TrainWith(Command("straggler", 50, {1, 2}), "DEEPNET_EMULATED_DELAY_US=3000");
  EXPECT_EQ(code, 0) << log;
  EXPECT_THAT(log, AllOf(HasSubstr("straggler: rank 1 on "), Not(HasSubstr("straggler: rank 0"))));
}

TEST_F(GpuProgramTest, WhatFailsOnTheGpuOfOneRankEndsAllWithItsCodeAndText) {
  const auto command = [](const std::string& folder) {
    return Command(folder, kSteps, {2, 1, "1f1b"}, " --set cluster.device_memory_gib=64");
  };
  const auto [full, memory] = TrainWith(command("full"), "DEEPNET_EMULATED_MEMORY_MIB=50");
  EXPECT_EQ(full, kDoesNotFit) << memory;
  EXPECT_THAT(memory, AllOf(HasSubstr("error: rank 1: GPU 1 of "), HasSubstr("out of memory: "),
                            HasSubstr("; the plan of this rank has ")));
  // 700 is cudaErrorIllegalAddress.
  const auto [broken, cuda] =
      TrainWith(command("broken"), "DEEPNET_EMULATED_FAIL=later:CrossEntropy:2:700");
  EXPECT_EQ(broken, kInternal) << cuda;
  EXPECT_THAT(cuda, AllOf(HasSubstr("[1/2] error: rank 1, action "), HasSubstr("GPU 1 of "),
                          HasSubstr("an illegal memory access"), HasSubstr("last launched")));
  const auto [hidden, devices] = TrainWith(command("hidden"), "CUDA_VISIBLE_DEVICES=-1");
  EXPECT_EQ(hidden, kPreflight) << devices;
  EXPECT_THAT(devices, HasSubstr("error: rank 1: compute.device: \"cuda\": CUDA_VISIBLE_DEVICES "
                                 "is \"-1\": no CUDA device is visible"));
}

}  // namespace
}  // namespace deepnet

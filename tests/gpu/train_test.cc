// Whole training runs on the emulated GPU, ranks being threads: every layout gives the same bits,
// and the losses of a CPU within rounding.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <span>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include <google/protobuf/text_format.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include "launch/defaults.h"
#include "launch/device_group.h"
#include "parallel/base/check.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/communicator.h"
#include "proto/report.pb.h"
#include "tests/gpu/emulated/device.h"
#include "tests/parity/train_in_threads.h"
#include "tests/parity/training_runs.h"
#include "tests/support/forwarding_communicator.h"
#include "tests/support/run_ranks.h"
#include "tests/support/trace_file.h"
#include "trainer/async_checkpointer.h"
#include "trainer/kernels/aten.h"
#include "trainer/rank_snapshot.h"
#include "trainer/resolve_run.h"
#include "trainer/train_session.h"
#include "trainer/train_step.h"

namespace deepnet {
namespace {

constexpr int kSteps = 4;

// Bytes a second: a rank's share of the model takes longer than the passes of a step, or ten times
// as long.
constexpr double kSlowCopies = 2e5, kSlowestCopies = 1e4;

struct Degrees {
  int stages = 1, replicas = 1;
  std::string schedule = "";  // empty: the planner's choice
};

// Notes how many launches of this rank's GPU stand before each sum of gradients.
class WatchedCommunicator final : public ForwardingCommunicator {
 public:
  WatchedCommunicator(std::unique_ptr<Communicator> inner, std::vector<int64_t>* sums)
      : ForwardingCommunicator(std::move(inner)), sums_(sums) {}

  TransferOr ReduceScatter(Buffer blocks) override {
    if (sums_ != nullptr) sums_->push_back(emulated_gpu::ReadCounters().launches);
    return inner().ReduceScatter(blocks);
  }
  absl::StatusOr<std::unique_ptr<Communicator>> Split(int color, int key) override {
    ASSIGN_OR_RETURN(auto part, inner().Split(color, key));
    if (part == nullptr) return nullptr;
    return std::make_unique<WatchedCommunicator>(std::move(part), sums_);
  }

 private:
  std::vector<int64_t>* const sums_;
};

class GpuTrainTest : public testing::CorpusTest {
 protected:
  static RunSpec Run(const std::string& folder, const Degrees& degrees, const std::string& device,
                     DataType dtype) {
    RunSpec run;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(
        R"(seed: 3
           model { encoder_layers: 2 decoder_layers: 2 d_model: 16 ffn_dim: 32 num_heads: 2
                   residual: DEEPNORM max_positions: 300
                   dropout: 0.1 attention_dropout: 0.1 activation_dropout: 0.1 }
           data { folder: 'corpus' max_sentence_tokens: 60 global_microbatches: 4
                  microbatch { max_source_tokens: 62 max_target_tokens: 62 max_sentences: 2 } }
           optim { learning_rate: 2e-3 warmup_steps: 4 clip_norm: 1 virtual_replicas: 2 }
           compute { threads_per_rank: 1 }
           train { checkpoint_every_steps: 1000 log_every_steps: 1 })",
        &run));
    run.set_folder(folder);
    run.mutable_cluster()->set_device_memory_gib(8);  // LibTorch keeps the memory of earlier runs
    run.mutable_compute()->set_device(device);
    run.mutable_compute()->set_dtype(dtype);
    run.mutable_train()->set_steps(kSteps);
    run.mutable_parallel()->set_pipeline_parallel_size(degrees.stages);
    run.mutable_parallel()->set_data_parallel_size(degrees.replicas);
    run.mutable_parallel()->set_schedule(degrees.schedule);
    run = WithDefaults(run);
    run.mutable_train()->set_validate_every_steps(0);
    return run;
  }

  // `sums`: the launches of rank 0's GPU before each sum of gradients.
  static testing::TrainOutcome Outcome(const RunSpec& run, std::vector<int64_t>* sums = nullptr,
                                       StepRange trace = {}) {
    std::vector<std::unique_ptr<Communicator>> joined(static_cast<size_t>(
        run.parallel().pipeline_parallel_size() * run.parallel().data_parallel_size()));
    return testing::TrainInThreads(
        run, {.root = root_.string(), .trace = trace}, [&](int rank, TrainOptions& options) {
          auto devices = JoinDevices(run.compute(), *options.world);
          DEEPNET_CHECK(devices.ok()) << devices.status();
          if (*devices == nullptr) return;
          joined[static_cast<size_t>(rank)] = std::make_unique<WatchedCommunicator>(
              *std::move(devices), rank == 0 ? sums : nullptr);
          options.world = joined[static_cast<size_t>(rank)].get();
        });
  }
  // Returns the log of rank 0.
  static std::string Train(const RunSpec& run, std::vector<int64_t>* sums = nullptr) {
    const testing::TrainOutcome outcome = Outcome(run, sums);
    EXPECT_TRUE(outcome.status.ok()) << outcome.status;
    return outcome.log;
  }
  static std::vector<StepRecord> Records(const std::string& folder) {
    std::ifstream file(root_ / folder / "metrics.jsonl");
    std::vector<StepRecord> records;
    for (std::string line; std::getline(file, line);) {
      if (line.find(R"("kind":"train")") == std::string::npos) continue;
      EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(line, &records.emplace_back()).ok());
    }
    return records;
  }
  // The bytes of the tensors' files in a checkpoint, by name.
  static std::map<std::string, std::string> Shards(const std::string& folder, int step) {
    std::map<std::string, std::string> shards;
    for (const auto& file :
         std::filesystem::directory_iterator(root_ / folder / CheckpointName(step))) {
      const std::string name = file.path().filename().string();
      if (name.find("manifest") != name.npos) continue;  // which has times
      std::ifstream stream(file.path(), std::ios::binary);
      shards[name].assign(std::istreambuf_iterator<char>(stream), {});
    }
    return shards;
  }
  static std::vector<testing::StepFigures> Steps(const std::string& folder) {
    return testing::ReadSteps(root_ / folder / "metrics.jsonl");
  }
};

TEST_F(GpuTrainTest, LossesAreTheCpusWithinRounding) {
  Train(Run("cpu", {}, "cpu", FLOAT32));
  RunSpec on_gpu = Run("gpu", {}, "cuda", FLOAT32);
  on_gpu.mutable_cluster()->set_device_model("A100");
  EXPECT_NE(Train(on_gpu).find("  MFU 0.0 %"), std::string::npos);
  EXPECT_EQ(Records("cpu").back().mfu(), 0.0);
  EXPECT_GT(Records("gpu").back().mfu(), 0.0);
  const auto cpu = Steps("cpu"), gpu = Steps("gpu");
  ASSERT_EQ(gpu.size(), static_cast<size_t>(kSteps));
  for (size_t i = 0; i < gpu.size(); ++i) {
    EXPECT_NEAR(std::get<1>(gpu[i]), std::get<1>(cpu[i]), 1e-5 * std::get<1>(cpu[i])) << i;
    EXPECT_NEAR(std::get<3>(gpu[i]), std::get<3>(cpu[i]), 1e-4 * std::get<3>(cpu[i])) << i;
  }
}

TEST_F(GpuTrainTest, ARunThatIsResumedGivesTheSameBits) {
  RunSpec run = Run("resumed", {2, 1, "zb-h1"}, "cuda", FLOAT32);
  run.mutable_train()->set_steps(kSteps / 2);
  Train(run);
  run.mutable_train()->set_steps(kSteps);
  const std::string alone = testing::WeightsLine(Train(Run("at-once", {}, "cuda", FLOAT32)));
  EXPECT_EQ(testing::WeightsLine(Train(run)), alone);
}

TEST_F(GpuTrainTest, RecomputedLayersGiveTheSameBits) {
  const std::string kept = testing::WeightsLine(Train(Run("kept", {}, "cuda", FLOAT32)));
  for (const Recompute level : {SELECTIVE_FFN, SELECTIVE_GEMM, FULL}) {
    RunSpec run = Run("recomputed" + Recompute_Name(level), {2, 1, "1f1b"}, "cuda", FLOAT32);
    run.mutable_parallel()->set_recompute(level);
    EXPECT_EQ(testing::WeightsLine(Train(run)), kept) << Recompute_Name(level);
  }
}

// Losses of the validation are the CPU's within rounding; beam search on the device finds the same.
TEST_F(GpuTrainTest, ValidatesAsTheCpuDoes) {
  const auto validated = [](const std::string& device) {
    RunSpec run = Run("validated-" + device, {}, device, FLOAT32);
    run.mutable_train()->set_validate_every_steps(kSteps);
    run.mutable_train()->set_validate_sentences(2);
    run.mutable_decode()->set_beam_size(2);
    run.mutable_decode()->set_max_tokens(5);
    const std::string log = Train(run);
    const size_t at = log.find("nll ", log.find("validation at step"));
    const size_t bleu = log.find("BLEU", at), end = log.find(" directions", at);
    if (end == log.npos) return std::pair(-1.0, log);
    return std::pair(std::atof(log.c_str() + at + 4), log.substr(bleu, end - bleu));
  };
  const auto [cpu, cpu_scores] = validated("cpu");
  const auto [gpu, gpu_scores] = validated("cuda");
  EXPECT_GT(cpu, 0.0);
  EXPECT_NEAR(gpu, cpu, 1e-3 + 1e-5 * cpu);  // three digits are printed
  EXPECT_EQ(gpu_scores, cpu_scores);
}

// The copy is slower than the next step's passes, whose update it must hold up.
TEST_F(GpuTrainTest, SavesBesideTheStepsAreThoseThatStopThem) {
  const auto train = [](const std::string& folder, bool blocking) {
    RunSpec run = Run(folder, {1, 2}, "cuda", BFLOAT16);
    run.mutable_parallel()->set_blocking_saves(blocking);
    run.mutable_train()->set_checkpoint_every_steps(1);
    run.mutable_train()->set_keep_checkpoints(kSteps);
    return testing::WeightsLine(Train(run));
  };
  const std::string stopped = train("stopped", /*blocking=*/true);
  emulated_gpu::SetHostCopySpeed(kSlowCopies);
  emulated_gpu::SetDelays(1000, /*seed=*/7);
  EXPECT_EQ(train("beside", /*blocking=*/false), stopped);
  emulated_gpu::SetHostCopySpeed(0);
  emulated_gpu::SetDelays(100, /*seed=*/1);
  for (int step = 1; step <= kSteps; ++step) {
    const auto shards = Shards("stopped", step);
    EXPECT_EQ(shards.size(), 2u);
    EXPECT_TRUE(Shards("beside", step) == shards) << step;
  }
}

// A rank's weights and moments, on the host.
std::vector<at::Tensor> StateOf(const RankContext& context) {
  const Parameters& parameters = context.model->parameters();
  return {parameters.weights().cpu(), parameters.moment1().cpu(), parameters.moment2().cpu()};
}

bool Equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const at::Tensor& x, const at::Tensor& y) { return x.equal(y); });
}

// Saves twice. Where `slow`, the first copy has not ended when the next step has run up to its
// update, which waits on the device.
absl::Status SaveBesideAStep(bool slow, const ResolvedRun& resolved, const TrainSession& session) {
  RankContext& context = *session.context;
  const auto files = MakePosixFileSystem();
  AsyncCheckpointer saver(*files, {.folder = resolved.folder, .keep = {.keep_latest = 2}}, context);
  RETURN_IF_ERROR(saver.Open());
  const auto step = [&](int64_t number) -> absl::Status {
    ASSIGN_OR_RETURN(const StepBatch batch, session.batches->ForStep(number));
    const auto before_update = [&] {
      EXPECT_FALSE(slow && saver.busy() && saver.Ready());
      saver.AwaitCopy();
    };
    return RunTrainStep(batch, number, number + 1, context, {.before_update = before_update})
        .status();
  };
  RETURN_IF_ERROR(step(0));
  const std::vector<at::Tensor> saved = StateOf(context);
  Manifest state = resolved.state;
  state.set_step(1);
  RETURN_IF_ERROR(context.world->Barrier());  // all have taken their state
  if (slow) emulated_gpu::SetHostCopySpeed(kSlowestCopies);
  saver.Begin(state);
  RETURN_IF_ERROR(step(1));
  EXPECT_FALSE(slow && saver.Ready());
  RETURN_IF_ERROR(context.world->Barrier());
  emulated_gpu::SetHostCopySpeed(0);
  RETURN_IF_ERROR(saver.Finish());

  const emulated_gpu::Counters before = emulated_gpu::ReadCounters();
  state.set_step(2);
  saver.Begin(state);
  RETURN_IF_ERROR(saver.Finish());
  const emulated_gpu::Counters after = emulated_gpu::ReadCounters();
  EXPECT_EQ(after.to_host_bytes - before.to_host_bytes, saver.bytes());
  EXPECT_EQ(after.pinned - before.pinned, 0);

  EXPECT_FALSE(Equal(StateOf(context), saved));
  const std::string folder = absl::StrCat(resolved.folder, "/", CheckpointName(1));
  ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(*files, folder));
  RETURN_IF_ERROR(LoadRankState(*files, folder, manifest, context));
  EXPECT_TRUE(Equal(StateOf(context), saved));
  return absl::OkStatus();
}

TEST_F(GpuTrainTest, ASaveCopiesTheRanksOwnShareBesideTheNextStep) {
  const auto save = [](Communicator& hosts, const Degrees& degrees) -> absl::Status {
    const std::string folder = "shares" + degrees.schedule;
    const RunSpec run = Run(folder, degrees, "cuda", FLOAT32);
    ASSIGN_OR_RETURN(const auto world, JoinDevices(run.compute(), hosts));
    std::ostringstream text;
    Logger log({.stream = &text});
    const auto files = MakePosixFileSystem();
    ASSIGN_OR_RETURN(const ResolvedRun resolved,
                     ResolveRun(run, {.root = root_.string()}, *world, *files, log));
    ASSIGN_OR_RETURN(const TrainSession session,
                     MakeTrainSession(resolved, {}, *world, *files, log));
    double elements = 0;  // of the model
    for (const Parameter& p : resolved.inventory.parameters) {
      elements += static_cast<double>(p.NumElements());
    }
    double bytes = static_cast<double>(RankSnapshot(*session.context, /*copies=*/false).bytes());
    RETURN_IF_ERROR(hosts.AllReduceSum(std::span(&bytes, 1)));
    EXPECT_EQ(bytes, 12 * elements);  // the weight and both moments, once
    // Replicas tell each other new weights, and with them wait for the copy.
    return SaveBesideAStep(/*slow=*/degrees.replicas == 1, resolved, session);
  };
  // Streams that share a hardware queue wait for each other; as many as the program asks for.
  emulated_gpu::Settings settings = emulated_gpu::SettingsOfEnvironment();
  settings.connections = 32;
  emulated_gpu::Restart(settings);
  for (const Degrees& degrees : {Degrees{2, 1, "1f1b"}, Degrees{1, 2}}) {
    const auto statuses = RunRanks(2, [&](Communicator& hosts) { return save(hosts, degrees); });
    EXPECT_TRUE(FirstError(statuses).ok()) << FirstError(statuses);
  }
}

// FAST sums are NCCL's own: in its order, on the way, and beside the backward pass.
TEST_F(GpuTrainTest, FastSumsAreDeterministicAndBesideTheBackwardPass) {
  const auto run = [](const std::string& folder, const Degrees& degrees, GradientSum sum) {
    RunSpec made = Run(folder, degrees, "cuda", FLOAT32);
    made.mutable_parallel()->set_gradient_sum(sum);
    made.mutable_optim()->set_virtual_replicas(4);
    made.mutable_train()->set_steps(2);
    return made;
  };
  for (const Degrees& degrees : {Degrees{1, 4}, Degrees{2, 2, "1f1b"}}) {
    const std::string name = std::to_string(degrees.replicas);
    const std::string strict = testing::WeightsLine(Train(run("strict" + name, degrees, STRICT)));
    std::vector<int64_t> sums;
    const std::string fast = testing::WeightsLine(Train(run("fast" + name, degrees, FAST), &sums));
    EXPECT_EQ(testing::WeightsLine(Train(run("again" + name, degrees, FAST))), fast);
    // The emulated NCCL adds in another order; two numbers have only one.
    EXPECT_EQ(fast == strict, degrees.replicas == 2);
    const auto by_strict = Steps("strict" + name), by_fast = Steps("fast" + name);
    ASSERT_EQ(by_fast.size(), 2u);
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_NEAR(std::get<1>(by_fast[i]), std::get<1>(by_strict[i]),
                  1e-5 * std::get<1>(by_strict[i]));
    }
    ASSERT_GE(sums.size(), 8u);
    const int64_t beside = sums[sums.size() / 2 - 1] - sums[0];  // of the first step
    std::printf("%zu sums in two steps; %d launches between the first and the last of one\n",
                sums.size(), static_cast<int>(beside));
    EXPECT_GT(beside, 60 / degrees.stages);  // a layer's backward pass has about 20
  }
}

// The scale that begins too large overflows until it fits; what is skipped, resumed or cut into
// stages does not change the bits.
TEST_F(GpuTrainTest, Float16ScalesItsLossAndGivesTheSameBitsInEveryLayout) {
  constexpr double kTooLarge = 0x1p18;  // float16 ends at 2^16
  const auto run = [](const std::string& folder, const Degrees& degrees, int steps) {
    RunSpec spec = Run(folder, degrees, "cuda", FLOAT16);
    spec.mutable_optim()->set_fp16_init_scale(kTooLarge);
    spec.mutable_train()->set_steps(steps);
    spec.mutable_train()->set_checkpoint_every_steps(2);
    return Train(spec);
  };
  const std::string alone = run("half-alone", {}, 2 * kSteps);
  run("half-resumed", {2, 1, "zb-h1"}, 2);
  EXPECT_EQ(testing::WeightsLine(run("half-resumed", {1, 2}, 2 * kSteps)),
            testing::WeightsLine(alone));
  const std::vector<StepRecord> records = Records("half-alone"), other = Records("half-resumed");
  ASSERT_EQ(records.size(), static_cast<size_t>(2 * kSteps));
  ASSERT_EQ(other.size(), records.size());
  for (size_t i = 0; i < records.size(); ++i) {
    EXPECT_EQ(other[i].loss_scale(), records[i].loss_scale()) << i;
  }
  const int skipped = static_cast<int>(records.back().skipped_steps());
  EXPECT_EQ(records.front().loss_scale(), kTooLarge);
  EXPECT_GE(skipped, 2);
  EXPECT_LE(skipped, kSteps);
  EXPECT_EQ(records.back().loss_scale(), std::ldexp(kTooLarge, -skipped));
}

TEST_F(GpuTrainTest, Float16LossesAreTheCpusWithinItsRounding) {
  Train(Run("whole-cpu", {}, "cpu", FLOAT32));
  Train(Run("half", {}, "cuda", FLOAT16));
  const auto cpu = Steps("whole-cpu"), gpu = Steps("half");
  ASSERT_EQ(gpu.size(), cpu.size());
  for (size_t i = 0; i < gpu.size(); ++i) {
    EXPECT_NEAR(std::get<1>(gpu[i]), std::get<1>(cpu[i]), 1e-3 * std::get<1>(cpu[i])) << i;
    EXPECT_NEAR(std::get<3>(gpu[i]), std::get<3>(cpu[i]), 1e-2 * std::get<3>(cpu[i])) << i;
  }
}

TEST_F(GpuTrainTest, ARunThatNeedsTheLeastLossScaleEndsAsDiverged) {
  RunSpec run = Run("exploded", {}, "cuda", FLOAT16);
  run.mutable_optim()->set_fp16_init_scale(0x1p40);
  run.mutable_optim()->set_min_loss_scale(0x1p38);
  const absl::Status status = Outcome(run).status;
  EXPECT_EQ(GetExitCode(status), ExitCode::kDiverged) << status;
  EXPECT_NE(status.message().find("minimum loss scale reached"), status.message().npos) << status;
}

TEST_F(GpuTrainTest, LibTorchsAttentionIsChosenWhereItCanAndGivesTheSameBitsInEveryLayout) {
  const auto log = [](const std::string& folder, const Degrees& degrees) {
    RunSpec run = Run(folder, degrees, "cuda", BFLOAT16);
    run.mutable_model()->set_attention_dropout(0.0);
    run.mutable_train()->set_steps(kSteps / 2);
    return Train(run);
  };
  const std::string alone = log("flash-alone", {});
  EXPECT_NE(alone.find("attention FLASH"), alone.npos) << alone;
  EXPECT_EQ(testing::WeightsLine(log("flash-cut", {2, 1, "zb-h1"})), testing::WeightsLine(alone));
}

TEST_F(GpuTrainTest, ATraceHasEveryKernelInsideItsActionAndChangesNoBits) {
  const auto run = [](const std::string& folder) {
    return Run(folder, {2, 2, "1f1b"}, "cuda", FLOAT32);
  };
  const testing::TrainOutcome traced = Outcome(run("traced"), nullptr, {2, 3});
  ASSERT_TRUE(traced.status.ok()) << traced.status;
  const auto events = testing::ReadTrace(root_ / "traced" / "trace-2-3.json");
  testing::ExpectWholeTrace(
      events, {.stages = 2, .replicas = 2, .microbatches = 2, .from = 2, .to = 3, .on_gpu = true});
  std::map<std::string, int> kernels;
  for (const testing::FileEvent& event : events) {
    if (event.category == "kernel") ++kernels[event.name];
  }
  for (const char* kernel :
       {"cublasLtMatmul", "AttentionKeyGradient", "Adam", "Upload", "ReadBack"}) {
    EXPECT_GT(kernels[kernel], 0) << kernel;
  }
  EXPECT_EQ(testing::WeightsLine(traced.log), testing::WeightsLine(Train(run("not-traced"))));
}

// Every schedule; one to four stages, one or two replicas. Six layers, so that a rank of three has
// two chunks.
TEST_F(GpuTrainTest, EveryLayoutGivesTheSameBits) {
  constexpr int kFewSteps = 2;
  const auto train = [](const std::string& folder, const Degrees& degrees, DataType dtype) {
    RunSpec run = Run(folder, degrees, "cuda", dtype);
    run.mutable_model()->set_encoder_layers(3);
    run.mutable_model()->set_decoder_layers(3);
    run.mutable_train()->set_steps(kFewSteps);
    return testing::WeightsLine(Train(run));
  };
  const std::vector<Degrees> layouts = {{2, 1, "1f1b"}, {2, 2, "gpipe"},          {3, 1, "zb-h1"},
                                        {4, 1, "1f1b"}, {3, 1, "interleaved"},    {2, 1, "zb-v"},
                                        {2, 2, "zb-v"}, {3, 1, "zb-interleaved"}, {4, 2, "zb-h1"},
                                        {1, 2}};
  for (const DataType dtype : {FLOAT32, BFLOAT16}) {
    const std::string type = DataType_Name(dtype);
    const std::string alone = train(type + "alone", {}, dtype);
    // The order of messages and sums is the same in all types.
    const size_t count = dtype == FLOAT32 ? layouts.size() : 2;
    for (const Degrees& degrees : std::span(layouts).first(count)) {
      const std::string folder =
          absl::StrCat(type, "-", degrees.stages, "x", degrees.replicas, "-", degrees.schedule);
      EXPECT_EQ(train(folder, degrees, dtype), alone) << folder;
      EXPECT_EQ(Steps(folder), Steps(type + "alone")) << folder;
    }
  }
}

}  // namespace
}  // namespace deepnet

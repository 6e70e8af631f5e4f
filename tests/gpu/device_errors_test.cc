// A failure on the device of one rank ends all ranks, with the documented code and a text that says
// where and why.
#include "trainer/kernels/device_errors.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iostream>
#include <memory>
#include <ostream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include "launch/defaults.h"
#include "launch/device_group.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/file_system.h"
#include "parallel/base/logging.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/agreement.h"
#include "parallel/plan/memory.h"
#include "tests/gpu/emulated/device.h"
#include "tests/gpu/emulated/torch_device.h"
#include "tests/parity/training_runs.h"
#include "tests/support/run_ranks.h"
#include "trainer/kernels/aten.h"
#include "trainer/kernels/compute.h"
#include "trainer/kernels/cuda/devices.h"
#include "trainer/kernels/cuda/linear.h"
#include "trainer/resolve_run.h"
#include "trainer/telemetry/tensor_memory.h"
#include "trainer/train_session.h"
#include "trainer/train_step.h"
#include "trainer/trainer.h"

namespace deepnet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

static_assert(kProductsBytes == cuda::kMatmulWorkspaceBytes);

constexpr char kBeforeTheFirstStep[] = "product ceiling";  // of the last line before it

class DeviceErrorsTest : public testing::CorpusTest {
 protected:
  void SetUp() override {
    emulated_gpu::Restart(emulated_gpu::SettingsOfEnvironment());
    std::filesystem::remove_all(root_ / "run");
  }

  // Two stages; a rank that is left alone waits a second.
  static RunSpec Run() {
    RunSpec run;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(
        R"(seed: 3 folder: 'run'
           model { encoder_layers: 1 decoder_layers: 1 d_model: 32 ffn_dim: 64 num_heads: 2
                   residual: DEEPNORM max_positions: 300 }
           data { folder: 'corpus' max_sentence_tokens: 150 global_microbatches: 4
                  microbatch { max_source_tokens: 152 max_target_tokens: 152 max_sentences: 8 } }
           optim { learning_rate: 2e-3 warmup_steps: 4 clip_norm: 1 virtual_replicas: 1 }
           compute { device: 'cuda' dtype: FLOAT32 threads_per_rank: 1 }
           parallel { pipeline_parallel_size: 2 data_parallel_size: 1 schedule: '1f1b'
                      comm_timeout_seconds: 0.25 }
           train { steps: 3 checkpoint_every_steps: 100 log_every_steps: 1 })",
        &run));
    run = WithDefaults(run);
    run.mutable_train()->set_validate_every_steps(0);
    return run;
  }

  // Trains; `before_step` is called by rank 1 when it has all that is made before the first step.
  // Returns how each rank ended.
  static std::vector<absl::Status> Train(
      const RunSpec& run, const std::function<void()>& before_step = [] {}) {
    return RunRanks(2, [&](Communicator& hosts) -> absl::Status {
      ASSIGN_OR_RETURN(const auto world, JoinDevices(run.compute(), hosts));
      testing::ActingBuffer log(kBeforeTheFirstStep, [&, rank = hosts.rank()] {
        if (rank == 1) before_step();
      });
      std::ostream stream(&log);
      Logger logger({.stream = &stream});
      return deepnet::Train(run, {.root = root_.string(), .world = world.get()}, logger);
    });
  }
};

TEST_F(DeviceErrorsTest, MemoryThatOneDeviceLacksEndsAllRanksBeforeTheFirstStep) {
  RunSpec run = Run();
  run.mutable_cluster()->set_device_memory_gib(64);  // which is not true
  emulated_gpu::SetMemoryLimit(1, 50 << 20);
  for (const absl::Status& status : Train(run)) {
    EXPECT_EQ(GetExitCode(status), ExitCode::kDoesNotFit) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("rank 1: GPU 1 of "), HasSubstr("out of memory: "),
                      HasSubstr("Tried to allocate"), HasSubstr("the plan of this rank has ")));
  }
}

TEST_F(DeviceErrorsTest, APlanIsHeldToTheMemoryThatTheFullestGpuHasLeft) {
  emulated_gpu::SetMemoryLimit(1, 60 << 20);
  for (const absl::Status& status : Train(Run())) {
    EXPECT_EQ(GetExitCode(status), ExitCode::kDoesNotFit) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("does not fit"), HasSubstr("1.50 GiB for CUDA's context, "),
                      HasSubstr(" and has 1.56 GiB, ")));
  }
  for (const int device : {0, 1}) {
    ASSERT_EQ(cudaSetDevice(device), cudaSuccess);
    EXPECT_EQ(emulated_gpu::ReadCounters().allocations, 0);
  }
}

// The memory that a rank has when its model is made is enough for all that steps allocate.
TEST_F(DeviceErrorsTest, StepsAllocateNoMoreThanThePlanHas) {
  struct Layout {
    int stages, replicas;
    const char* schedule;
    DataType dtype;
    Recompute recompute = NONE;
  };
  for (const Layout& layout :
       {Layout{1, 1, "", FLOAT32}, Layout{2, 1, "1f1b", BFLOAT16}, Layout{2, 1, "zb-v", FLOAT32},
        Layout{1, 2, "", BFLOAT16}, Layout{2, 1, "gpipe", BFLOAT16, FULL}}) {
    SCOPED_TRACE(std::string(layout.schedule) + DataType_Name(layout.dtype));
    SetUp();
    emulated_gpu::SetDelays(0, /*seed=*/1);
    RunSpec run = Run();
    run.mutable_model()->set_encoder_layers(2);
    run.mutable_model()->set_decoder_layers(2);
    run.mutable_parallel()->set_pipeline_parallel_size(layout.stages);
    run.mutable_parallel()->set_data_parallel_size(layout.replicas);
    run.mutable_parallel()->set_schedule(layout.schedule);
    run.mutable_parallel()->set_recompute(layout.recompute);
    run.mutable_parallel()->set_comm_timeout_seconds(10);
    run.mutable_optim()->set_virtual_replicas(2);
    run.mutable_compute()->set_dtype(layout.dtype);
    const auto statuses =
        RunRanks(layout.stages * layout.replicas, [&](Communicator& hosts) -> absl::Status {
          ASSIGN_OR_RETURN(const auto devices, JoinDevices(run.compute(), hosts));
          Communicator& world = devices != nullptr ? *devices : hosts;
          std::ostringstream text;
          Logger log({.stream = &text});
          const auto files = MakePosixFileSystem();
          ASSIGN_OR_RETURN(const ResolvedRun resolved,
                           ResolveRun(run, {.root = root_.string()}, world, *files, log));
          ASSIGN_OR_RETURN(const TrainSession session,
                           MakeTrainSession(resolved, {}, world, *files, log));
          TensorMemory memory("cuda");
          memory.ForgetPeak();
          const int64_t reserved = emulated_gpu::ReadCounters().allocations;
          for (int step = 0; step < 2; ++step) {
            ASSIGN_OR_RETURN(const StepBatch batch, session.batches->ForStep(step));
            RETURN_IF_ERROR(RunTrainStep(batch, step, step + 1, *session.context).status());
          }
          const MemoryEstimate& planned = session.context->planned;
          EXPECT_LE(memory.peak_bytes(), TensorBytes(planned)) << planned.DebugString();
          EXPECT_EQ(emulated_gpu::ReadCounters().allocations, reserved);
          return world.Barrier();
        });
    EXPECT_TRUE(FirstError(statuses).ok()) << FirstError(statuses);
  }
}

// The rank has transfers under way when it fails; they do not hide the error.
TEST_F(DeviceErrorsTest, MemoryThatEndsInAStepEndsAllRanks) {
  std::vector<at::Tensor> taken;
  const auto statuses = Train(Run(), [&] {
    emulated_gpu::SetMemoryLimit(1, 0);  // what is left is enough for batches, not for logits
    const auto bytes = at::TensorOptions(emulated_gpu::TorchDevice(1)).dtype(at::kByte);
    for (int64_t size = 64 << 20; size >= 512 << 10; size /= 2) {
      const absl::Status full = CatchErrors([&]() -> absl::Status {
        while (true) taken.push_back(at::empty({size}, bytes));
      });
      EXPECT_EQ(GetExitCode(full), ExitCode::kDoesNotFit) << full;
    }
  });
  EXPECT_EQ(GetExitCode(statuses[1]), ExitCode::kDoesNotFit) << statuses[1];
  EXPECT_THAT(std::string(statuses[1].message()),
              AllOf(HasSubstr("rank 1, action "), HasSubstr(": GPU 1 of "),
                    HasSubstr("out of memory: "), HasSubstr("Tried to allocate"),
                    HasSubstr("; the plan of this rank has "), HasSubstr("its tensors hold ")));
  EXPECT_FALSE(statuses[0].ok());
}

// Only the last rank computes losses.
TEST_F(DeviceErrorsTest, AnErrorOfCudaEndsAllRanksAndNamesTheLastLaunch) {
  const auto statuses =
      Train(Run(), [] { emulated_gpu::FailLater("CrossEntropy", 2, cudaErrorIllegalAddress); });
  EXPECT_EQ(GetExitCode(statuses[1]), ExitCode::kInternal) << statuses[1];
  EXPECT_THAT(std::string(statuses[1].message()),
              AllOf(HasSubstr("rank 1, action "), HasSubstr("GPU 1 of "), HasSubstr("CUDA error"),
                    HasSubstr("an illegal memory access"), HasSubstr("last launched"),
                    Not(HasSubstr(": none"))));
  EXPECT_FALSE(statuses[0].ok());
}

TEST_F(DeviceErrorsTest, CheckedLaunchesNameTheKernelThatFailed) {
  RunSpec run = Run();
  run.mutable_compute()->set_check_launches(true);
  const auto statuses =
      Train(run, [] { emulated_gpu::FailLater("CrossEntropy", 2, cudaErrorIllegalAddress); });
  EXPECT_EQ(GetExitCode(statuses[1]), ExitCode::kInternal) << statuses[1];
  EXPECT_THAT(std::string(statuses[1].message()),
              HasSubstr("CUDA error in CrossEntropy: an illegal memory access was encountered "
                        "(cudaErrorIllegalAddress)"));
}

TEST_F(DeviceErrorsTest, PinnedMemoryThatAHostLacksEndsAllRanksBeforeTheFirstStep) {
  emulated_gpu::FailAt("cudaHostRegister", 1, cudaErrorMemoryAllocation);
  for (const absl::Status& status : Train(Run())) {
    EXPECT_EQ(GetExitCode(status), ExitCode::kDoesNotFit) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("rank "), HasSubstr(": host "),
                      HasSubstr(" of pinned memory for the copy of a save "
                                "(parallel.blocking_saves: true does without)")));
  }
  RunSpec run = Run();
  run.mutable_parallel()->set_blocking_saves(true);
  run.mutable_parallel()->set_comm_timeout_seconds(10);  // a busy host is no failure here
  emulated_gpu::FailAt("cudaHostRegister", 1, cudaErrorMemoryAllocation);
  const auto statuses = Train(run);
  EXPECT_TRUE(FirstError(statuses).ok()) << FirstError(statuses);
}

// Each rank has asked for its GPU's properties once when it joined.
TEST_F(DeviceErrorsTest, AGpuThatNoLongerTellsItsNameEndsAllRanksBeforeTheFirstStep) {
  emulated_gpu::FailAt("cudaGetDeviceProperties", 3, cudaErrorUnknown);
  for (const absl::Status& status : Train(Run())) {
    EXPECT_TRUE(IsAgreed(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("rank "), HasSubstr(": cudaGetDeviceProperties: ")));
  }
}

TEST_F(DeviceErrorsTest, ACopyOfASaveThatFailsEndsAllRanks) {
  RunSpec run = Run();
  run.mutable_train()->set_checkpoint_every_steps(1);
  run.mutable_parallel()->set_comm_timeout_seconds(10);  // a busy host is no failure here
  emulated_gpu::FailAt("cudaEventSynchronize", 1, cudaErrorLaunchFailure);
  const auto statuses = Train(run);
  const absl::Status status = FirstError(statuses);
  EXPECT_EQ(GetExitCode(status), ExitCode::kInternal) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("GPU "),
                    HasSubstr("CUDA error in cudaEventSynchronize of a save: unspecified launch "
                              "failure (cudaErrorLaunchFailure)"),
                    HasSubstr("last launched: ")));
  for (const absl::Status& rank : statuses) EXPECT_FALSE(rank.ok());
}

// Returns what JoinDevices says to all of `ranks` ranks of this host, which is the same.
std::string TextOfJoining(int ranks) {
  ComputeSpec compute;
  compute.set_device("cuda");
  std::vector<absl::Status> statuses(static_cast<size_t>(ranks));
  const auto ended = RunRanks(ranks, [&](Communicator& hosts) {
    statuses[static_cast<size_t>(hosts.rank())] = JoinDevices(compute, hosts).status();
    return absl::OkStatus();  // an error would end ranks that are still being told
  });
  EXPECT_TRUE(FirstError(ended).ok()) << FirstError(ended);
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(GetExitCode(status), ExitCode::kPreflight) << status;
    EXPECT_EQ(status.message(), statuses[0].message());
  }
  return std::string(statuses[0].message());
}

// The same on a host as the settings say, with CUDA_VISIBLE_DEVICES where that is given.
std::string TextOnHost(int ranks, const emulated_gpu::Settings& settings,
                       const char* visible = nullptr) {
  if (visible != nullptr) setenv("CUDA_VISIBLE_DEVICES", visible, /*overwrite=*/1);
  emulated_gpu::Restart(settings);
  std::string text = TextOfJoining(ranks);
  unsetenv("CUDA_VISIBLE_DEVICES");
  return text;
}

TEST_F(DeviceErrorsTest, HostsThatCannotCarryARunAreRefusedByName) {
  constexpr char kField[] = "compute.device: \"cuda\": ";
  const auto devices = [](int count) {
    emulated_gpu::Settings settings;
    settings.devices = count;
    return settings;
  };
  EXPECT_EQ(TextOnHost(2, devices(0)), std::string(kField) + "this host has no CUDA device");
  EXPECT_THAT(TextOnHost(3, devices(2)),
              AllOf(HasSubstr(kField), HasSubstr(" has 2 GPUs for 3 ranks")));
  EXPECT_THAT(TextOnHost(2, devices(1)),
              AllOf(HasSubstr("ranks 0 and 1 of "), HasSubstr(" would share GPU 0000:00:00.0")));
  for (const char* none : {"-1", ""}) {
    EXPECT_EQ(TextOnHost(1, devices(4), none), std::string(kField) + "CUDA_VISIBLE_DEVICES is \"" +
                                                   none + "\": no CUDA device is visible");
  }
  EXPECT_THAT(TextOnHost(3, devices(4), "1,3"),
              AllOf(HasSubstr(" has 2 GPUs for 3 ranks (CUDA_VISIBLE_DEVICES is \"1,3\")")));
  emulated_gpu::Settings old = devices(2);
  old.driver_version = 12040;
  EXPECT_THAT(TextOnHost(2, old),
              AllOf(HasSubstr("the driver of this host is for CUDA 12.4, this build needs 13.")));
  emulated_gpu::Settings old_nccl = devices(2);
  for (const auto& [version, text] :
       {std::pair(21403, "NCCL 2.14.3 is loaded, this build needs 2."),
        std::pair(22807, "NCCL 2.28.7 is loaded, this build needs 2.")}) {
    old_nccl.nccl_version = version;
    EXPECT_THAT(TextOnHost(2, old_nccl), HasSubstr(text));
  }
  emulated_gpu::Settings small = devices(2);
  small.capability = 75;
  EXPECT_THAT(TextOnHost(2, small),
              AllOf(HasSubstr(" (Emulated GPU) has compute capability 7.5, this build has kernels "
                              "for 80-real, 90-real, 100-real, 100-virtual")));
}

TEST_F(DeviceErrorsTest, VariablesWithWhichRanksWouldHangAreRefusedByName) {
  emulated_gpu::Settings settings;
  settings.devices = 2;
  for (const auto& [name, value] :
       {std::pair("CUDA_DEVICE_MAX_CONNECTIONS", "1"), std::pair("CUDA_LAUNCH_BLOCKING", "1"),
        std::pair("CUDA_MODULE_LOADING", "LAZY"), std::pair("NCCL_COMM_BLOCKING", "0"),
        std::pair("NCCL_LAUNCH_ORDER_IMPLICIT", "1"), std::pair("NCCL_MAX_CTAS", "16"),
        std::pair("NCCL_MIN_NRINGS", "4"), std::pair("NCCL_MIN_NCHANNELS", "32"),
        std::pair("NCCL_MIN_P2P_NCHANNELS", "32"), std::pair("NCCL_NCHANNELS_PER_NET_PEER", "4"),
        std::pair("NCCL_NVLS_ENABLE", "2")}) {
    SetCudaDefaults();
    ASSERT_NE(std::getenv(name), nullptr) << name;
    const std::string before = std::getenv(name);
    setenv(name, value, /*overwrite=*/1);
    EXPECT_EQ(TextOnHost(2, settings),
              absl::StrCat("compute.device: \"cuda\": ", name, " is \"", value,
                           "\": ranks would hang or differ: unset it"));
    setenv(name, before.c_str(), /*overwrite=*/1);
  }
}

TEST(DeviceVariablesDeathTest, ThoseThatAreSetToNothingAreSet) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";  // a process where nothing has set them
  EXPECT_EXIT(
      {
        setenv("CUDA_DEVICE_MAX_CONNECTIONS", "", /*overwrite=*/1);
        setenv("CUDA_MODULE_LOADING", "LAZY", /*overwrite=*/1);
        SetCudaDefaults();
        std::cerr << std::getenv("CUDA_DEVICE_MAX_CONNECTIONS")
                  << std::getenv("CUDA_MODULE_LOADING") << "\n";
        _exit(0);
      },
      ::testing::ExitedWithCode(0), "32LAZY");
}

TEST_F(DeviceErrorsTest, SlicesOfOneGpuAreToldApart) {
  emulated_gpu::Settings settings;
  settings.devices = 2;
  settings.slices = true;
  emulated_gpu::Restart(settings);
  const auto ended =
      RunRanks(2, [](Communicator& hosts) { return JoinDevices(Run().compute(), hosts).status(); });
  EXPECT_TRUE(FirstError(ended).ok()) << FirstError(ended);
}

TEST(HasKernelsFor, ComparesGenerationsAndVirtualCode) {
  constexpr char kBuilt[] = "80-real,90-real,100-real,100-virtual";
  for (const int fine : {80, 86, 89, 90, 100, 103, 120}) {
    EXPECT_TRUE(HasKernelsFor(fine, kBuilt)) << fine;
  }
  EXPECT_FALSE(HasKernelsFor(75, kBuilt));
  EXPECT_FALSE(HasKernelsFor(100, "90-real"));
  EXPECT_FALSE(HasKernelsFor(80, "86-real"));
  EXPECT_TRUE(HasKernelsFor(120, "90"));
}

TEST_F(DeviceErrorsTest, AreStatusesWithAPlaceWhereThereIsOne) {
  const auto gpu = [](const absl::Status& status) {
    const std::unique_ptr<Ops> ops =
        MakeCudaOps(emulated_gpu::TorchDevice(0), at::kFloat, /*check_launches=*/false);
    return CatchErrors([&] { return status; }, {ops.get(), 5 << 20});
  };
  const absl::Status message = gpu(absl::InternalError("NCCL: unhandled cuda error"));
  EXPECT_THAT(std::string(message.message()),
              AllOf(HasSubstr("GPU 0 of "), HasSubstr("last launched: none")));
  EXPECT_EQ(gpu(absl::InternalError("NCCL: x")), absl::InternalError("NCCL: x"));
  const absl::Status host = CatchErrors([]() -> absl::Status { throw std::bad_alloc(); });
  EXPECT_EQ(GetExitCode(host), ExitCode::kDoesNotFit);
  EXPECT_THAT(std::string(host.message()), Not(HasSubstr("GPU")));
  const absl::Status tensor = CatchErrors([]() -> absl::Status {
    at::empty({int64_t{1} << 60}, at::kByte);
    return absl::OkStatus();
  });
  EXPECT_EQ(GetExitCode(tensor), ExitCode::kDoesNotFit) << tensor;
  const absl::Status other = CatchErrors([]() -> absl::Status { throw std::runtime_error("so"); });
  EXPECT_EQ(other, absl::InternalError("so"));
}

}  // namespace
}  // namespace deepnet

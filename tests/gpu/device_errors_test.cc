// What fails on the device of one rank ends all of them, with the documented code and a text that
// says where and why.
#include "trainer/kernels/device_errors.h"

#include <unistd.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <ostream>
#include <sstream>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include "launch/defaults.h"
#include "launch/device_group.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/logging.h"
#include "parallel/base/status_macros.h"
#include "tests/gpu/emulated/device.h"
#include "tests/gpu/emulated/torch_device.h"
#include "tests/parity/training_runs.h"
#include "tests/support/run_ranks.h"
#include "trainer/kernels/compute.h"
#include "trainer/trainer.h"

namespace deepnet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kBeforeTheFirstStep[] = "product ceiling";  // of the last line before it

class DeviceErrorsTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    root_ = std::filesystem::path(::testing::TempDir()) /
            ("deepnet_device_errors_" + std::to_string(getpid()));
    std::filesystem::create_directories(root_);
    const absl::Status made = testing::MakeCorpus(root_, "corpus", {"de", "fr"}, 300);
    ASSERT_TRUE(made.ok()) << made;
  }
  static void TearDownTestSuite() { std::filesystem::remove_all(root_); }

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

  static inline std::filesystem::path root_;
};

TEST_F(DeviceErrorsTest, MemoryThatOneDeviceLacksEndsAllRanksBeforeTheFirstStep) {
  emulated_gpu::SetMemoryLimit(1, 60 << 20);
  for (const absl::Status& status : Train(Run())) {
    EXPECT_EQ(GetExitCode(status), ExitCode::kDoesNotFit) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("rank 1: GPU 1 of "), HasSubstr("out of memory: "),
                      HasSubstr("Tried to allocate"), HasSubstr("the plan of this rank has ")));
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
                    HasSubstr("an illegal memory access"), HasSubstr("last launched")));
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

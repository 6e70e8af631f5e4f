#include "trainer/kernels/compute.h"

#include <string>

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel/base/exit_code.h"
#include "tests/support/thread_limit.h"
#include "trainer/kernels/aten.h"
#include "trainer/kernels/device_errors.h"
#include "trainer/kernels/native/isa.h"

namespace deepnet {
namespace {

using ::testing::HasSubstr;

ComputeSpec OnCpu(DataType dtype, Isa isa) {
  ComputeSpec compute;
  compute.set_device("cpu");
  compute.set_dtype(dtype);
  compute.set_isa(isa);
  return compute;
}

TEST(ResolveCompute, LeavesNothingOpen) {
  const ComputeSpec compute = ResolveCompute({});
  EXPECT_EQ(compute.device(), "cpu");
  EXPECT_NE(compute.dtype(), DATA_TYPE_UNSPECIFIED);
  EXPECT_EQ(compute.residual_dtype(), FLOAT32);
  EXPECT_EQ(compute.matmul(), NATIVE);
  EXPECT_NE(compute.isa(), ISA_UNSPECIFIED);
  EXPECT_GE(compute.threads_per_rank(), 1);
  EXPECT_TRUE(CheckCompute(compute).ok());
}

// The measured choice is stored with the run and must survive being resolved again.
TEST(ResolveCompute, ChangesNothingTheSecondTime) {
  ComputeSpec library = OnCpu(BFLOAT16, BASELINE);
  library.set_matmul(LIBRARY);
  library.set_threads_per_rank(3);
  for (const ComputeSpec& asked : {ComputeSpec{}, OnCpu(FLOAT32, ISA_UNSPECIFIED),
                                   OnCpu(BFLOAT16, ISA_UNSPECIFIED), library}) {
    const ComputeSpec once = ResolveCompute(asked);
    EXPECT_EQ(ResolveCompute(once).SerializeAsString(), once.SerializeAsString());
    if (asked.dtype() != DATA_TYPE_UNSPECIFIED) {
      EXPECT_EQ(once.dtype(), asked.dtype());
    }
    if (asked.isa() != ISA_UNSPECIFIED) {
      EXPECT_EQ(once.isa(), asked.isa());
    }
    if (asked.threads_per_rank() != 0) {
      EXPECT_EQ(once.threads_per_rank(), asked.threads_per_rank());
    }
  }
}

// So that more hosts can resume a run.
TEST(ResolveCompute, AnOpenFloat32RunDoesNotAskForProductsInBfloat16) {
  EXPECT_NE(ResolveCompute(OnCpu(FLOAT32, ISA_UNSPECIFIED)).isa(), AVX512_BF16);
  EXPECT_EQ(ResolveCompute(OnCpu(BFLOAT16, ISA_UNSPECIFIED)).isa(),
            static_cast<Isa>(native::BestIsa()));
}

TEST(Measurements, LeaveLibTorchItsThreads) {
  ComputeSpec compute = ResolveCompute(OnCpu(FLOAT32, ISA_UNSPECIFIED));
  compute.set_threads_per_rank(2);
  compute.set_matmul(LIBRARY);
  const auto ops = MakeOps(compute);
  ASSERT_TRUE(ops.ok()) << ops.status();
  EXPECT_EQ(at::get_num_threads(), 2);
  compute.set_matmul(NATIVE);
  at::set_num_threads(1);
  MeasureProductCeiling(compute, /*d=*/8, /*seconds=*/0.001);
  EXPECT_EQ(at::get_num_threads(), 1);
}

// LibTorch's own pool ends the process where it gets no thread.
TEST(MeasureProductCeiling, DoesWithoutLibTorchWhereTheSystemGivesNoThreads) {
  ComputeSpec compute = OnCpu(FLOAT32, ISA_UNSPECIFIED);
  compute.set_threads_per_rank(7);
  const testing::ThreadLimit one(1);
  EXPECT_GT(MeasureProductCeiling(compute, /*d=*/32, /*seconds=*/0.01), 0.0);
  compute.set_matmul(LIBRARY);
  const absl::Status refused = MakeOps(ResolveCompute(compute)).status();
  EXPECT_EQ(GetExitCode(refused), ExitCode::kDoesNotFit);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("compute.threads_per_rank: 2 of 7 threads run"));
}

TEST(CheckCompute, RefusesInstructionsThatTheHostLacksByName) {
  for (const Isa isa : {BASELINE, AVX2, AVX512, AVX512_BF16}) {
    const absl::Status status = CheckCompute(OnCpu(FLOAT32, isa));
    if (native::Supports(static_cast<native::Isa>(isa))) {
      EXPECT_TRUE(status.ok()) << status;
      continue;
    }
    EXPECT_EQ(GetExitCode(status), ExitCode::kBadConfig);
    EXPECT_THAT(std::string(status.message()), HasSubstr("compute.isa: " + Isa_Name(isa)));
    EXPECT_FALSE(MakeOps(OnCpu(FLOAT32, isa)).ok());
  }
}

// A number that no host of today has stands for one from a later version of this program.
TEST(CheckCompute, RefusesInstructionsThatItDoesNotKnowAndNamesTheBestHere) {
  const absl::Status status = CheckCompute(OnCpu(FLOAT32, static_cast<Isa>(9)));
  EXPECT_EQ(GetExitCode(status), ExitCode::kBadConfig);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(Isa_Name(static_cast<Isa>(static_cast<int>(native::BestIsa())))));
}

TEST(CheckCompute, RefusesOnACpuWhatOnlyGpusHave) {
  EXPECT_THAT(std::string(CheckCompute(OnCpu(FLOAT16, BASELINE)).message()),
              HasSubstr("compute.dtype: FLOAT16"));
  ComputeSpec compute = OnCpu(FLOAT32, BASELINE);
  compute.set_attention(FLASH);
  EXPECT_THAT(std::string(CheckCompute(compute).message()), HasSubstr("compute.attention: FLASH"));
}

TEST(CheckCompute, RefusesDevicesByName) {
  ComputeSpec compute = OnCpu(FLOAT32, BASELINE);
  compute.set_device("abacus");
  EXPECT_THAT(std::string(CheckCompute(compute).message()),
              HasSubstr("compute.device: \"abacus\""));

  compute.set_device("cuda");
  compute.set_matmul(NATIVE);
  EXPECT_THAT(std::string(CheckCompute(compute).message()), HasSubstr("compute.matmul: NATIVE"));
  compute.set_matmul(LIBRARY);
  EXPECT_EQ(CheckCompute(compute).ok(), at::hasCUDA());
}

TEST(CatchErrors, AnErrorThatNamesCudaKeepsItsExitCode) {
  const absl::Status lost =
      WithExitCode(absl::InternalError("NCCL: unhandled cuda error"), ExitCode::kPeerLost);
  EXPECT_EQ(CatchErrors([&] { return lost; }), lost);
}

TEST(MakeOps, GivesTheTypesThatWereAskedFor) {
  for (const Matmul matmul : {NATIVE, LIBRARY}) {
    for (const DataType dtype : {FLOAT32, BFLOAT16}) {
      ComputeSpec compute = ResolveCompute(OnCpu(dtype, BASELINE));
      compute.set_matmul(matmul);
      const auto ops = MakeOps(compute);
      ASSERT_TRUE(ops.ok()) << ops.status();
      EXPECT_EQ((*ops)->ResidualOptions().dtype(), at::kFloat);
      EXPECT_EQ((*ops)->OperandOptions().dtype(), dtype == FLOAT32 ? at::kFloat : at::kBFloat16);
    }
  }
}

}  // namespace
}  // namespace deepnet

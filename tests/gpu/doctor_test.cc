// `deepnet doctor` on a GPU, as `train --check` runs it before a run takes its memory.
#include "trainer/doctor/doctor.h"

#include <algorithm>
#include <memory>
#include <utility>

#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launch/defaults.h"
#include "tests/gpu/emulated/device.h"
#include "tests/trainer/data/temp_folder.h"
#include "trainer/doctor/diagnosis.h"
#include "trainer/kernels/compute.h"
#include "trainer/telemetry/tensor_memory.h"

namespace deepnet {
namespace {

using ::testing::HasSubstr;

constexpr char kGraphs[] = "CUDA graphs beside single launches";

class GpuDoctorTest : public ::testing::Test {
 protected:
  GpuDoctorTest() : guard_(GpuType().value()) { guard_.setDevice({guard_.type(), 0}); }

  DoctorReport Examine() {
    RunSpec run = WithDefaults(RunSpec());
    run.mutable_compute()->set_device("cuda");
    auto report = RunDoctor(
        {.world = &world_, .run = run, .root = folder_.path(), .folder = {.files = files_.get()}});
    EXPECT_TRUE(report.ok()) << report.status();
    return report.ok() ? *std::move(report) : DoctorReport();
  }

 private:
  const c10::impl::VirtualGuardImpl guard_;
  const testing::TempFolder folder_;
  const std::unique_ptr<FileSystem> files_ = MakePosixFileSystem();
  SelfCommunicator world_;
};

TEST_F(GpuDoctorTest, FindsAllWellAndGivesTheMemoryBackThatItUsed) {
  const int64_t before = FreeGpuBytes();
  const int64_t replayed = emulated_gpu::ReadCounters().replayed;
  const DoctorReport report = Examine();
  EXPECT_FALSE(std::ranges::any_of(report.findings(), &DoctorFinding::failure))
      << DoctorTable(report);
  EXPECT_THAT(DoctorTable(report), HasSubstr(kGraphs));
  EXPECT_GT(emulated_gpu::ReadCounters().replayed, replayed);
  EXPECT_EQ(FreeGpuBytes(), before);
}

// The first graph leaves out a kernel.
TEST_F(GpuDoctorTest, NamesAGraphThatHasOtherBits) {
  emulated_gpu::FailAt("last node of a graph", 1, 1);
  const DoctorReport report = Examine();
  EXPECT_TRUE(std::ranges::any_of(report.findings(), &DoctorFinding::failure));
  EXPECT_THAT(DoctorTable(report), HasSubstr(kGraphs));
  EXPECT_THAT(DoctorTable(report), HasSubstr("CUDA graphs of chunk 0, the forward pass, slot 0"));
}

}  // namespace
}  // namespace deepnet

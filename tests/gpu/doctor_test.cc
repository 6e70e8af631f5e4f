// `deepnet doctor` on a GPU, as `train --check` runs it before a run takes its memory.
#include "trainer/doctor/doctor.h"

#include <memory>

#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include "launch/defaults.h"
#include "tests/trainer/data/temp_folder.h"
#include "trainer/doctor/diagnosis.h"
#include "trainer/kernels/compute.h"
#include "trainer/tensor_memory.h"

namespace deepnet {
namespace {

TEST(GpuDoctor, FindsAllWellAndGivesTheMemoryBackThatItUsed) {
  const c10::impl::VirtualGuardImpl guard(GpuType().value());
  guard.setDevice({guard.type(), 0});
  RunSpec run = WithDefaults(RunSpec());
  run.mutable_compute()->set_device("cuda");
  const testing::TempFolder folder;
  const auto files = MakePosixFileSystem();
  SelfCommunicator world;
  const int64_t before = FreeGpuBytes();
  const auto report = RunDoctor(
      {.world = &world, .run = run, .root = folder.path(), .folder = {.files = files.get()}});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_FALSE(HasFailures(*report)) << DoctorTable(*report);
  EXPECT_EQ(FreeGpuBytes(), before);
}

}  // namespace
}  // namespace deepnet

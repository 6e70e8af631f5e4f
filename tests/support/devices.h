// Tests of code that runs on any device: a suite derived from OnDevice runs once on the CPU and,
// where this build and this machine have one, once on a GPU, be it emulated. A missing device is
// not a skipped test: the suite just has one device less.
//
// Example:
//   using testing::OnDevice;
//   TEST_P(OnDevice, AddsTwoNumbers) { ... MakeFloat32Ops() ... }
//   INSTANTIATE_TEST_SUITE_P(Adding, OnDevice, ::testing::ValuesIn(testing::Devices()),
//                            testing::DeviceName);
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include "trainer/kernels/aten.h"
#include "trainer/kernels/compute.h"

namespace deepnet::testing {

inline std::vector<at::DeviceType> Devices() {
  std::vector<at::DeviceType> devices = {at::kCPU};
  if (GpuType()) devices.push_back(*GpuType());
  return devices;
}

// "CPU" or "GPU", the end of the test's name.
inline std::string DeviceName(const ::testing::TestParamInfo<at::DeviceType>& info) {
  return info.param == at::kCPU ? "CPU" : "GPU";
}

class OnDevice : public ::testing::TestWithParam<at::DeviceType> {
 protected:
  // Returns the device's operations in float32: the reference on the CPU, CudaOps on a GPU.
  std::unique_ptr<Ops> MakeFloat32Ops() const {
    if (GetParam() == at::kCPU) return MakeAtenOps(at::kFloat, at::kFloat);
    const c10::impl::VirtualGuardImpl guard(GetParam());
    guard.setDevice({GetParam(), 0});
    return MakeCudaOps(guard.getDevice(), at::kFloat, /*check_launches=*/false);
  }
};

}  // namespace deepnet::testing

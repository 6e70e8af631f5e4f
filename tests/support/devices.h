// Tests of code that runs on any device: a suite derived from OnDevice runs once on the CPU and,
// where this build and this machine have one, once on a CUDA device. A missing device is not a
// skipped test: the suite just has one device less.
//
// Example:
//   using testing::OnDevice;
//   TEST_P(OnDevice, AddsTwoNumbers) { ... MakeReference() ... }
//   INSTANTIATE_TEST_SUITE_P(Adding, OnDevice, ::testing::ValuesIn(testing::Devices()),
//                            testing::DeviceName);
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "trainer/kernels/compute.h"

namespace deepnet::testing {

inline std::vector<at::DeviceType> Devices() {
  std::vector<at::DeviceType> devices = {at::kCPU};
  if (at::hasCUDA()) devices.push_back(at::kCUDA);
  return devices;
}

// "CPU" or "CUDA", the end of the test's name.
inline std::string DeviceName(const ::testing::TestParamInfo<at::DeviceType>& info) {
  return at::DeviceTypeName(info.param);
}

class OnDevice : public ::testing::TestWithParam<at::DeviceType> {
 protected:
  at::Device device() const { return at::Device(GetParam()); }

  // Returns the reference operations on that device; operands and stream have one type.
  std::unique_ptr<Ops> MakeReference(at::ScalarType type = at::kDouble) const {
    return MakeAtenOps(device(), type, type);
  }
};

}  // namespace deepnet::testing

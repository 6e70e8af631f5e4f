// Devices by name, for plans and utilisation: peaks, bandwidths, what a launch costs. Every figure
// has its source in docs/design/roofline.md. Results never depend on any of it.
#pragma once

#include <string>

#include "absl/status/statusor.h"

#include "proto/plan.pb.h"

namespace deepnet {

// The model that a GPU is taken for where cluster.device_model says nothing.
inline constexpr char kDefaultDeviceModel[] = "H100";

// Returns the model called `name` (capitals do not matter), or the one that `name` holds as text,
// which is recognised by its ':'. InvalidArgument (kBadConfig) naming the field and what is
// missing.
absl::StatusOr<DeviceModel> FindDeviceModel(const std::string& name);

// Returns cluster.device_model, `stated`, or where that is empty the model of the GPU that CUDA
// calls `device`, "NVIDIA H100 80GB HBM3"; "" if neither says one that the table has.
std::string DeviceModelOf(const std::string& stated, const std::string& device);

// "'X' is none of A100, ...".
std::string UnknownDeviceModel(const std::string& name);

// Operations a second, at most, in products of operands of that type: what utilisation (MFU) is
// over. FLOAT32 means float32 products; everything else 16 bits.
double PeakFlops(const DeviceModel& device, DataType operands);

}  // namespace deepnet

// Seconds of kernels on a device, and of layers and plans made of them: of each kernel the longer
// of its arithmetic and its memory traffic, and for each pass of a layer the longer of what the
// device and what the host needs (docs/design/roofline.md).
#pragma once

#include <string>
#include <vector>

#include "parallel/plan/inventory.h"
#include "parallel/plan/plan_accessors.h"
#include "proto/data.pb.h"
#include "proto/plan.pb.h"

namespace deepnet {

struct KernelTime {
  double seconds = 0;           // of all launches
  const char* bound = "start";  // what decides them, as KernelPrediction says it
};

// `operands`: the type of products' operands.
KernelTime TimeOf(const KernelWork& kernel, const DeviceModel& device, DataType operands);

// Seconds of one full microbatch.
struct LayerSeconds {
  double forward = 0, backward_input = 0, backward_weight = 0;
  ByRecompute<double> recompute = {};  // beside backward_input
};

// Returns the seconds of each layer. Where the inventory knows no work, or the cluster states a
// rate for all products, they are operations of matrix products over speeds.flops_per_second, as
// many forward as in both parts of the backward pass each; a loss does all in its forward pass.
std::vector<LayerSeconds> MakeLayerSeconds(const Inventory& inventory, const Speeds& speeds);

// Returns what is said of a plan beyond its step: MFU, tokens, and the kernels that its slowest
// rank spends most on. `plan` has stages of all ranks. Only where the speeds have a device.
Prediction Predict(const Plan& plan, const Inventory& inventory, const DataSpec& data,
                   const Speeds& speeds);

// One or two lines: what is predicted for which device.
std::string PredictionText(const Prediction& prediction);
// One row a kernel of the slowest rank, the longest first.
std::string KernelsText(const Plan& plan);

}  // namespace deepnet

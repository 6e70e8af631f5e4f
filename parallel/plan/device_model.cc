#include "parallel/plan/device_model.h"

#include <algorithm>
#include <initializer_list>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

#include "parallel/base/check.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/messages.h"

namespace deepnet {
namespace {

// Links as their makers state them, of one direction; kLinkShare of that is what messages reach.
// GiB are those that drivers report. docs/design/roofline.md has the sources.
constexpr char kModels[] = R"(
  name: "A100" memory_gib: 79.3
  flops_16bit: 312e12 flops_32bit: 19.5e12 product_share: 0.87 fused_share: 0.50
  memory_bytes_per_second: 2.039e12 multiprocessors: 108
  inside_node { bytes_per_second: 300e9 } between_nodes { bytes_per_second: 25e9 }
|
  name: "A100-40GB" memory_gib: 39.6
  flops_16bit: 312e12 flops_32bit: 19.5e12 product_share: 0.87 fused_share: 0.50
  memory_bytes_per_second: 1.555e12 multiprocessors: 108
  inside_node { bytes_per_second: 300e9 } between_nodes { bytes_per_second: 25e9 }
|
  name: "H100" memory_gib: 79.6
  flops_16bit: 989.4e12 flops_32bit: 66.9e12 product_share: 0.80 fused_share: 0.35
  memory_bytes_per_second: 3.35e12 multiprocessors: 132
  inside_node { bytes_per_second: 450e9 } between_nodes { bytes_per_second: 50e9 }
|
  name: "H100-PCIe" memory_gib: 79.6
  flops_16bit: 756e12 flops_32bit: 51.2e12 product_share: 0.70 fused_share: 0.35
  memory_bytes_per_second: 2.0e12 multiprocessors: 114
  inside_node { bytes_per_second: 64e9 } between_nodes { bytes_per_second: 25e9 }
|
  name: "H200" memory_gib: 140.4
  flops_16bit: 989.4e12 flops_32bit: 66.9e12 product_share: 0.80 fused_share: 0.35
  memory_bytes_per_second: 4.8e12 multiprocessors: 132
  inside_node { bytes_per_second: 450e9 } between_nodes { bytes_per_second: 50e9 }
|
  name: "B200" memory_gib: 179.0
  flops_16bit: 2250e12 flops_32bit: 75e12 product_share: 0.78 fused_share: 0.20
  memory_bytes_per_second: 8.0e12 multiprocessors: 148
  inside_node { bytes_per_second: 900e9 } between_nodes { bytes_per_second: 50e9 }
)";

// These do not differ enough between models to be stated for each.
constexpr double kLinkShare = 0.8;
constexpr char kOfAll[] = R"(
  memory_share: 0.9 launch_seconds: 5e-6 kernel_seconds: 2e-6
  inside_node { latency_seconds: 1e-5 } between_nodes { latency_seconds: 2e-5 }
)";

const std::vector<DeviceModel>& Models() {
  static const auto* const models = [] {
    auto* const made = new std::vector<DeviceModel>();
    for (const absl::string_view text : absl::StrSplit(kModels, '|')) {
      DeviceModel& device = made->emplace_back();
      DEEPNET_CHECK(ParseTextProto(absl::StrCat(text, kOfAll), &device, {.merges = true}));
      for (LinkSpec* link : {device.mutable_inside_node(), device.mutable_between_nodes()}) {
        link->set_bytes_per_second(link->bytes_per_second() * kLinkShare);
      }
    }
    return made;
  }();
  return *models;
}

absl::Status BadModel(const std::string& what) {
  return ConfigError("cluster.device_model: ", what);
}

// Everything of a device that a user writes must be there: a speed of 0 would be a silent mistake.
absl::StatusOr<DeviceModel> ParseModel(const std::string& text) {
  DeviceModel device;
  if (!ParseTextProto(text, &device)) {
    return BadModel("the file is no text of a DeviceModel (proto/plan.proto)");
  }
  for (const auto& [value, field] : std::initializer_list<std::pair<double, const char*>>{
           {device.memory_gib(), "memory_gib"},
           {device.flops_16bit(), "flops_16bit"},
           {device.flops_32bit(), "flops_32bit"},
           {device.product_share(), "product_share"},
           {device.fused_share(), "fused_share"},
           {device.memory_bytes_per_second(), "memory_bytes_per_second"},
           {device.memory_share(), "memory_share"},
           {device.multiprocessors(), "multiprocessors"},
           {device.launch_seconds(), "launch_seconds"},
           {device.kernel_seconds(), "kernel_seconds"},
           {device.inside_node().bytes_per_second(), "inside_node.bytes_per_second"},
           {device.between_nodes().bytes_per_second(), "between_nodes.bytes_per_second"}}) {
    if (!(value > 0)) return BadModel(absl::StrCat("the file's ", field, " must be above 0"));
  }
  if (std::max({device.product_share(), device.fused_share(), device.memory_share()}) > 1) {
    return BadModel("the file's shares must be at most 1");
  }
  return device;
}

}  // namespace

std::string UnknownDeviceModel(const std::string& name) {
  const auto add = [](std::string* out, const DeviceModel& model) { out->append(model.name()); };
  return absl::StrCat("'", name, "' is none of ", absl::StrJoin(Models(), ", ", add));
}

absl::StatusOr<DeviceModel> FindDeviceModel(const std::string& name) {
  if (name.find(':') != std::string::npos) return ParseModel(name);
  for (const DeviceModel& model : Models()) {
    if (absl::EqualsIgnoreCase(model.name(), name)) return model;
  }
  return BadModel(UnknownDeviceModel(name));
}

std::string DeviceModelOf(const std::string& stated, const std::string& device) {
  if (!stated.empty()) return stated;
  const auto has = [&](const char* part) { return absl::StrContains(device, part); };
  if (has("NVL") || has("MIG") || has("GH200") || has("GB200")) return "";  // of other speeds
  if (has("A100")) return has("40GB") ? "A100-40GB" : "A100";
  if (has("H100")) return has("PCIe") ? "H100-PCIe" : "H100";
  if (has("H200")) return "H200";
  return has("B200") ? "B200" : "";
}

double PeakFlops(const DeviceModel& device, DataType operands) {
  return operands == FLOAT32 ? device.flops_32bit() : device.flops_16bit();
}

}  // namespace deepnet

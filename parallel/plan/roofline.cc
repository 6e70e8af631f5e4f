#include "parallel/plan/roofline.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "parallel/plan/device_model.h"
#include "parallel/plan/shard.h"

namespace deepnet {
namespace {

// Tiles of a product's result that one multiprocessor works on at a time, with the share of its
// best rate that it keeps at each.
struct Tile {
  int rows, columns;
  double share;
};
constexpr Tile kTiles[] = {{256, 128, 1.0}, {128, 256, 1.0}, {128, 128, 0.9},
                           {128, 64, 0.75}, {64, 128, 0.75}, {64, 64, 0.55}};
constexpr double kFloat32Share = 0.85;  // of the peak, that float32 products reach with such tiles
constexpr size_t kMaxNamed = 12;        // kernels in a Prediction

// CUDA graphs (docs/design/gpu.md): launches that one takes at most, and what noting a launch for
// one costs the host.
constexpr double kGraphLaunches = 256, kNoteSeconds = 0.5e-6;

double Ceil(double a, double b) { return std::ceil(a / b); }

// Tiles are dealt to multiprocessors in waves; the last wave takes as long as a full one.
double ProductSeconds(const ProductShape& product, const DeviceModel& device, DataType operands) {
  const double peak =
      PeakFlops(device, operands) * (operands == FLOAT32 ? kFloat32Share : device.product_share());
  const double of_one = peak / device.multiprocessors();
  double least = 0;
  for (const Tile& tile : kTiles) {
    const double tiles = Ceil(static_cast<double>(product.rows), tile.rows) *
                         Ceil(static_cast<double>(product.columns), tile.columns);
    const double flops = 2.0 * tile.rows * tile.columns * static_cast<double>(product.depth);
    const double seconds = Ceil(tiles, device.multiprocessors()) * flops / (of_one * tile.share);
    if (least == 0 || seconds < least) least = seconds;
  }
  return least;
}

double ArithmeticSeconds(const KernelWork& kernel, const DeviceModel& device, DataType operands) {
  if (kernel.flops == 0) return 0;
  if (kernel.product.depth > 0) {
    return ProductSeconds(kernel.product, device, operands) * kernel.launches;
  }
  const double rate = kernel.unit == ComputeUnit::kTensor
                          ? device.flops_16bit() * device.fused_share()
                          : device.flops_32bit();
  return kernel.flops / (rate * kernel.reaches);
}

// The sums over a list of kernels: seconds of the device, launches by the host.
struct ListTime {
  double device = 0;
  double launches = 0;
  double alone = 0;  // of them, those that no graph takes

  // At most: a graph ends before each launch that it cannot take.
  double graph_launches() const { return 2 * alone + (launches - alone) / kGraphLaunches; }
  double host(const Speeds& speeds) const {
    const double launch = speeds.device->launch_seconds();
    if (!speeds.graphs) return launches * launch;
    return graph_launches() * launch + (launches - alone) * kNoteSeconds;
  }
};

ListTime TimeOfList(const std::vector<KernelWork>& kernels, const Speeds& speeds) {
  ListTime time;
  for (const KernelWork& kernel : kernels) {
    time.device += TimeOf(kernel, *speeds.device, speeds.operands).seconds;
    time.launches += kernel.launches;
    if (kernel.alone) time.alone += kernel.launches;
  }
  return time;
}

LayerSeconds SecondsOf(const LayerWork& work, const Speeds& speeds) {
  const auto of = [&](const std::vector<KernelWork>& kernels) {
    const ListTime time = TimeOfList(kernels, speeds);
    return std::max(time.device, time.host(speeds));
  };
  LayerSeconds seconds = {.forward = of(work.forward),
                          .backward_input = of(work.backward_input),
                          .backward_weight = of(work.backward_weight)};
  for (size_t level = 0; level < work.recompute.size(); ++level) {
    seconds.recompute[level] = of(work.recompute[level]);
  }
  return seconds;
}

LayerSeconds SecondsByOperations(const Layer& layer, double flops_per_second) {
  const double forward = layer.forward_flops / flops_per_second;
  LayerSeconds seconds{.forward = forward, .backward_input = forward, .backward_weight = forward};
  if (layer.computes_loss) seconds = {.forward = 3 * forward};
  for (size_t level = 0; level < layer.recompute_flops.size(); ++level) {
    seconds.recompute[level] = layer.recompute_flops[level] / flops_per_second;
  }
  return seconds;
}

// Kernels by the names that people read, with what they take in a step of one rank.
class Ledger {
 public:
  explicit Ledger(const Speeds& speeds) : speeds_(speeds) {}

  // `pass`: what the kernels are part of; `times`: of the list, in a step.
  void Add(const std::vector<KernelWork>& kernels, const char* pass, double times) {
    const ListTime list = TimeOfList(kernels, speeds_);
    for (const KernelWork& kernel : kernels) {
      const KernelTime time = TimeOf(kernel, *speeds_.device, speeds_.operands);
      AddTo(kernel.label.empty() ? kernel.name : absl::StrCat(kernel.label, " (", pass, ")"),
            time.seconds * times, time.bound, kernel.launches * times);
    }
    launches_ += list.launches * times;
    graph_launches_ += list.graph_launches() * times;
    // The device waits for what the host has not launched yet.
    const double host = list.host(speeds_) - list.device;
    if (host > 0) AddTo("launches by the host", host * times, "host", 0);
  }

  // Sets launches and the kernels that take most, the most first.
  void WriteTo(Prediction& prediction) const {
    prediction.set_launches(std::llround(launches_));
    prediction.set_graph_launches(std::llround(graph_launches_));
    std::vector<KernelPrediction> all;
    for (const auto& [name, kernel] : kernels_) all.push_back(kernel);
    std::ranges::stable_sort(all, std::greater<>(), &KernelPrediction::seconds);
    all.resize(std::min(kMaxNamed, all.size()));
    prediction.mutable_kernels()->Assign(all.begin(), all.end());
  }

 private:
  void AddTo(const std::string& name, double seconds, const char* bound, double launches) {
    KernelPrediction& kernel = kernels_[name];
    kernel.set_name(name);
    // Launches of one name may be bound by different things: the longest of them says by what.
    if (seconds > longest_[name]) {
      longest_[name] = seconds;
      kernel.set_bound(bound);
    }
    kernel.set_seconds(kernel.seconds() + seconds);
    kernel.set_launches(kernel.launches() + std::llround(launches));
  }

  const Speeds& speeds_;
  std::map<std::string, KernelPrediction> kernels_;
  std::map<std::string, double> longest_;
  double launches_ = 0, graph_launches_ = 0;
};

bool KnowsWork(const Inventory& inventory, const Speeds& speeds) {
  return speeds.device.has_value() && !speeds.states_flops && !inventory.work.empty();
}

}  // namespace

KernelTime TimeOf(const KernelWork& kernel, const DeviceModel& device, DataType operands) {
  const double arithmetic = ArithmeticSeconds(kernel, device, operands);
  const double memory = kernel.bytes / (device.memory_bytes_per_second() * device.memory_share());
  const double start = kernel.launches * device.kernel_seconds();
  const double work = std::max(arithmetic, memory);
  const char* const of_work = arithmetic >= memory ? "arithmetic" : "memory";
  return {.seconds = work + start, .bound = start > work ? "start" : of_work};
}

std::vector<LayerSeconds> MakeLayerSeconds(const Inventory& inventory, const Speeds& speeds) {
  std::vector<LayerSeconds> of_work, seconds;
  const bool known = KnowsWork(inventory, speeds);
  for (const LayerWork& work : inventory.work) {
    if (known) of_work.push_back(SecondsOf(work, speeds));
  }
  for (const Layer& layer : inventory.layers) {
    seconds.push_back(known ? of_work[layer.work]
                            : SecondsByOperations(layer, speeds.flops_per_second));
  }
  return seconds;
}

Prediction Predict(const Plan& plan, const Inventory& inventory, const DataSpec& data,
                   const Speeds& speeds) {
  Prediction prediction;
  prediction.set_device_model(speeds.device->name());
  double flops = 0;
  for (const StagePlan& stage : plan.stages()) flops += stage.flops_per_step();
  const double peak = PeakFlops(*speeds.device, speeds.operands) * plan.stages_size();
  prediction.set_mfu(flops / peak / plan.step_seconds());
  const MicrobatchSpec& microbatch = data.microbatch();
  const double tokens = static_cast<double>(microbatch.max_source_tokens()) +
                        static_cast<double>(microbatch.max_target_tokens());
  prediction.set_tokens_per_second(tokens * plan.global_microbatches() / plan.step_seconds());
  if (!KnowsWork(inventory, speeds)) return prediction;
  const auto first = plan.stages().begin();
  const auto slowest = std::ranges::max_element(first, first + plan.pipeline_parallel_size(), {},
                                                &StagePlan::busy_seconds);
  const int microbatches =
      MicrobatchesOf(plan.global_microbatches(), plan.data_parallel_size(), 0).Count();
  Ledger ledger(speeds);
  for (const ChunkPlan& chunk : plan.chunks()) {
    if (chunk.rank() != slowest->rank()) continue;
    for (int l = chunk.first_layer(); l < chunk.end_layer(); ++l) {
      const LayerWork& work = inventory.work[inventory.layers[l].work];
      ledger.Add(work.forward, "forward", microbatches);
      ledger.Add(work.backward_input, "input gradients", microbatches);
      ledger.Add(work.backward_weight, "weight gradients", microbatches);
      ledger.Add(work.recompute[chunk.recompute()], "computed again", microbatches);
    }
  }
  prediction.set_rank(slowest->rank());
  ledger.WriteTo(prediction);
  return prediction;
}

std::string PredictionText(const Prediction& prediction) {
  std::string text =
      absl::StrFormat("predicted for %s: MFU %.1f %%, %.4g tokens/s\n", prediction.device_model(),
                      100 * prediction.mfu(), prediction.tokens_per_second());
  if (prediction.kernels().empty()) return text;
  absl::StrAppendFormat(
      &text, "%d launches on rank %d (%d with compute.cuda_graphs), most of whose step is",
      prediction.launches(), prediction.rank(), prediction.graph_launches());
  constexpr int kNamed = 3;
  for (int i = 0; i < std::min(kNamed, prediction.kernels_size()); ++i) {
    const KernelPrediction& kernel = prediction.kernels(i);
    absl::StrAppendFormat(&text, "%s %s: %.3g s (%s)", i == 0 ? "" : ",", kernel.name(),
                          kernel.seconds(), kernel.bound());
  }
  return absl::StrCat(text, "\n");
}

std::string KernelsText(const Plan& plan) {
  if (plan.prediction().kernels().empty()) {
    return "no kernels are known: they are of GPUs without cluster.flops_per_second\n";
  }
  std::string text = absl::StrFormat("rank %d, a step of %.4g s\n%9s %7s %9s  %-10s  %s\n",
                                     plan.prediction().rank(), plan.step_seconds(), "s", "of step",
                                     "launches", "bound by", "kernel");
  for (const KernelPrediction& kernel : plan.prediction().kernels()) {
    absl::StrAppendFormat(&text, "%9.4g %6.1f%% %9d  %-10s  %s\n", kernel.seconds(),
                          100 * kernel.seconds() / plan.step_seconds(), kernel.launches(),
                          kernel.bound(), kernel.name());
  }
  return text;
}

}  // namespace deepnet

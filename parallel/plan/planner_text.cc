#include "parallel/plan/planner_text.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "parallel/base/units.h"
#include "parallel/plan/candidate.h"
#include "parallel/plan/planner_request.h"
#include "parallel/plan/roofline.h"
#include "parallel/plan/shard.h"

namespace deepnet {
namespace {

constexpr size_t kMaxChunksNamed = 2;

std::string Plural(int count, const char* what) {
  return absl::StrCat(count, " ", what, count == 1 ? "" : "s");
}

std::string RangeText(const Inventory& inventory, const ChunkPlan& chunk) {
  const std::string& first = inventory.layers[chunk.first_layer()].name;
  const std::string& last = inventory.layers[chunk.end_layer() - 1].name;
  return first == last ? first : absl::StrCat(first, " .. ", last);
}

std::string LevelText(const ChunkPlan& chunk) {
  std::string name = Recompute_Name(chunk.recompute());
  if (chunk.recompute_segment() <= 1) return name;
  return absl::StrCat(name, "/", chunk.recompute_segment());
}

std::vector<const ChunkPlan*> ChunksOf(const Plan& plan, int rank) {
  std::vector<const ChunkPlan*> chunks;
  for (const ChunkPlan& chunk : plan.chunks()) {
    if (chunk.rank() == rank) chunks.push_back(&chunk);
  }
  return chunks;
}

// Weights and everything that lives as long as they do.
int64_t StateBytes(const MemoryEstimate& m) {
  return m.weights() + m.working_copies() + m.gradients() + m.partial_sums() + m.moments();
}

// " (17 or 16 a replica)" where that does not follow from the two numbers before it.
std::string ShareText(const Plan& plan) {
  if (plan.global_microbatches() % plan.data_parallel_size() == 0) return "";
  return absl::StrCat(" (", MicrobatchesText(plan.global_microbatches(), plan.data_parallel_size()),
                      " a replica)");
}

std::string Head(const Plan& plan) {
  std::string text =
      absl::StrCat(Plural(plan.pipeline_parallel_size(), "stage"), " x ",
                   Plural(plan.data_parallel_size(), "replica"), ", schedule ", plan.schedule(),
                   ", ", Plural(plan.virtual_pipeline_size(), "chunk"), " a rank",
                   plan.placement() == V ? " in V" : "", ", ", plan.global_microbatches(),
                   " microbatches a step", ShareText(plan), "\n");
  absl::StrAppendFormat(
      &text,
      "step of %.4g s by %s: bubble %.1f %%, exposed communication "
      "%.1f %%, then %.3g s of exchange and %.3g s of update\n",
      plan.step_seconds(),
      plan.has_prediction() ? "its device's model" : "the cluster's stated speeds",
      100 * plan.bubble(), 100 * plan.exposed_communication(), plan.gradient_exchange_seconds(),
      plan.update_seconds());
  if (plan.has_prediction()) absl::StrAppend(&text, PredictionText(plan.prediction()));
  const StagePlan& fullest = Fullest(plan);
  absl::StrAppendFormat(&text, "recomputing %s; at most %.2f GiB, on rank %d\n",
                        RecomputeText(plan), fullest.memory().total() / kGib, fullest.rank());
  return text;
}

// Layers before the first side input over the first half of the ranks, all else over the second, on
// each rank equally many; a model without side inputs over all of them.
std::vector<int> Halves(const std::vector<Layer>& layers, int stages) {
  const auto border =
      absl::c_find_if(layers, [](const Layer& layer) { return SideInput(layer) != nullptr; });
  const auto end = static_cast<int>(layers.size());
  const int middle = border == layers.end() ? 0 : static_cast<int>(border - layers.begin());
  const int first_half = middle > 0 ? stages / 2 : 0, second_half = stages - first_half;
  std::vector<int> ends;
  for (int i = 1; i <= first_half; ++i) ends.push_back(middle * i / first_half);
  for (int i = 1; i <= second_half; ++i) {
    ends.push_back(middle + (end - middle) * i / second_half);
  }
  return ends;
}

int64_t MostActivations(const Plan& plan) {
  int64_t most = 0;
  for (const StagePlan& stage : plan.stages()) most = std::max(most, stage.memory().activations());
  return most;
}

using Row = std::pair<std::string, Plan>;  // name

std::string Table(const std::vector<Row>& rows, const Plan& reference) {
  std::string text = absl::StrFormat("%-22s %9s %9s %9s %12s %9s\n", "schedule", "step s",
                                     "bubble %", "exposed %", "activ./1f1b", "most GiB");
  const auto least = static_cast<double>(std::max<int64_t>(1, MostActivations(reference)));
  for (const auto& [name, plan] : rows) {
    absl::StrAppendFormat(
        &text, "%-22s %9.4g %9.1f %9.2f %12.2f %9.1f\n", name, plan.step_seconds(),
        100 * plan.bubble(), 100 * plan.exposed_communication(),
        static_cast<double>(MostActivations(plan)) / least, Fullest(plan).memory().total() / kGib);
  }
  return text;
}

std::string NameOf(const ParallelConfig& config) {
  if (config.virtual_pipeline_size == 1) return config.schedule;
  return absl::StrCat(config.schedule, ", v=", config.virtual_pipeline_size);
}

}  // namespace

std::string MicrobatchesText(int microbatches, int replicas) {
  const int most = MicrobatchesOf(microbatches, replicas, 0).Count();
  const int fewest = MicrobatchesOf(microbatches, replicas, replicas - 1).Count();
  return most == fewest ? absl::StrCat(most) : absl::StrCat(most, " or ", fewest);
}

std::string LayersText(const Plan& plan, const Inventory& inventory, int rank) {
  const std::vector<const ChunkPlan*> chunks = ChunksOf(plan, rank % plan.pipeline_parallel_size());
  std::vector<std::string> ranges;
  for (size_t c = 0; c < std::min(kMaxChunksNamed, chunks.size()); ++c) {
    ranges.push_back(RangeText(inventory, *chunks[c]));
  }
  if (chunks.size() > kMaxChunksNamed) ranges.push_back("...");
  return absl::StrJoin(ranges, ", ");
}

std::string RecomputeText(const Plan& plan) {
  const auto [least, most] = std::ranges::minmax_element(plan.chunks(), {}, &ChunkPlan::recompute);
  if (least->recompute() == most->recompute()) return LevelText(*least);
  return absl::StrCat(LevelText(*least), " to ", LevelText(*most));
}

std::string PlanText(const Plan& plan, const Inventory& inventory) {
  std::string text = Head(plan);
  absl::StrAppendFormat(&text, "\n%5s %6s %10s %9s %14s %5s | %9s %9s %9s %9s  %s\n", "rank",
                        "layers", "TFLOP/step", "busy s", "recompute", "alive", "state GiB",
                        "activ.", "other", "total", "from .. to");
  for (int r = 0; r < plan.pipeline_parallel_size(); ++r) {
    const StagePlan& stage = plan.stages(r);
    const MemoryEstimate& m = stage.memory();
    const std::vector<const ChunkPlan*> chunks = ChunksOf(plan, r);
    int layers = 0;
    for (const ChunkPlan* chunk : chunks) layers += chunk->end_layer() - chunk->first_layer();
    const int64_t other = m.total() - StateBytes(m) - m.activations();
    absl::StrAppendFormat(&text, "%5d %6d %10.4g %9.4g %14s %5d | %9.3f %9.3f %9.3f %9.3f  %s\n", r,
                          layers, stage.flops_per_step() / 1e12, stage.busy_seconds(),
                          LevelText(*chunks.front()), stage.peak_alive(), StateBytes(m) / kGib,
                          m.activations() / kGib, other / kGib, m.total() / kGib,
                          LayersText(plan, inventory, r));
  }
  return text;
}

std::string ChunksText(const Plan& plan, const Inventory& inventory) {
  std::string text = absl::StrFormat("%5s %5s %6s %14s | %9s %9s %9s | %9s %5s %9s %9s  %s\n",
                                     "chunk", "rank", "layers", "recompute", "F ms", "I ms", "W ms",
                                     "kept MiB", "slots", "in MiB", "back MiB", "from .. to");
  for (int c = 0; c < plan.chunks_size(); ++c) {
    const ChunkPlan& chunk = plan.chunks(c);
    absl::StrAppendFormat(
        &text, "%5d %5d %6d %14s | %9.3f %9.3f %9.3f | %9.2f %5d %9.2f %9.2f  %s\n", c,
        chunk.rank(), chunk.end_layer() - chunk.first_layer(), LevelText(chunk),
        1e3 * chunk.forward_seconds(), 1e3 * chunk.backward_input_seconds(),
        1e3 * chunk.backward_weight_seconds(), chunk.kept_bytes() / kMib, chunk.slots(),
        chunk.forward_bytes() / kMib, chunk.backward_bytes() / kMib, RangeText(inventory, chunk));
  }
  return text;
}

std::string MemoryText(const Plan& plan) {
  std::string text =
      absl::StrFormat("GiB\n%5s %8s %8s %8s %8s %8s %8s %8s %8s %8s %8s %8s %8s %8s %9s\n", "rank",
                      "weights", "packed", "grads", "partial", "moments", "activ.", "boundary",
                      "recomp.", "work", "logits", "comm.", "saved", "instr.", "total");
  for (int r = 0; r < plan.pipeline_parallel_size(); ++r) {
    const MemoryEstimate& m = plan.stages(r).memory();
    absl::StrAppendFormat(
        &text,
        "%5d %8.3f %8.3f %8.3f %8.3f %8.3f %8.3f %8.3f %8.3f %8.3f %8.3f %8.3f %8.3f %8.3f %9.3f\n",
        r, m.weights() / kGib, m.working_copies() / kGib, m.gradients() / kGib,
        m.partial_sums() / kGib, m.moments() / kGib, m.activations() / kGib, m.boundary() / kGib,
        m.recompute() / kGib, m.workspace() / kGib, m.logits() / kGib, m.communication() / kGib,
        m.snapshot() / kGib, m.instruments() / kGib, m.total() / kGib);
  }
  if (!Fullest(plan).memory().has_gpu()) return text;
  absl::StrAppendFormat(&text,
                        "\nof a GPU, beside tensors of the model\n%5s %8s %8s %8s %8s %8s %8s\n",
                        "rank", "context", "NCCL", "products", "uploads", "graphs", "fragm.");
  for (int r = 0; r < plan.pipeline_parallel_size(); ++r) {
    const GpuMemory& gpu = plan.stages(r).memory().gpu();
    absl::StrAppendFormat(&text, "%5d %8.3f %8.3f %8.3f %8.3f %8.3f %8.3f\n", r,
                          gpu.context() / kGib, gpu.messages() / kGib, gpu.products() / kGib,
                          gpu.uploads() / kGib, gpu.graphs() / kGib, gpu.fragmentation() / kGib);
  }
  return text;
}

std::string GpuMemoryText(const MemoryEstimate& memory) {
  const GpuMemory& gpu = memory.gpu();
  return absl::StrFormat(
      "%.2f GiB for CUDA's context, %.2f for NCCL, %.2f for products, %.2f for uploads, %.2f lost "
      "between blocks",
      gpu.context() / kGib, gpu.messages() / kGib, gpu.products() / kGib, gpu.uploads() / kGib,
      gpu.fragmentation() / kGib);
}

absl::StatusOr<std::string> CompareText(const Inventory& inventory, const PlanSettings& settings) {
  ASSIGN_OR_RETURN(Request request, MakeRequest(inventory, settings));
  if (request.stages < 2) {
    return ConfigError(
        "parallel.pipeline_parallel_size: a comparison of schedules needs 2 or more");
  }
  request.memory_bytes = std::numeric_limits<double>::infinity();
  request.schedule.clear();
  request.custom.reset();
  ASSIGN_OR_RETURN(const std::vector<ParallelConfig> configs, ListConfigs(request));

  ParallelConfig plain{request.stages, configs.front().replicas, "1f1b"};
  ASSIGN_OR_RETURN(const Plan reference, MakeOneReplica(request, plain));
  std::vector<Row> rows;
  plain.ends = Halves(inventory.layers, request.stages);
  if (inventory.layers.size() >= 2 * static_cast<size_t>(request.stages)) {
    ASSIGN_OR_RETURN(Plan halves, MakeOneReplica(request, plain));
    rows.push_back({"halves by count, 1f1b", std::move(halves)});
  }
  for (const ParallelConfig& config : configs) {
    ASSIGN_OR_RETURN(Plan plan, MakeOneReplica(request, config));
    rows.push_back({NameOf(config), std::move(plan)});
  }
  return absl::StrCat(
      request.stages, " stages, ", MicrobatchesText(request.global_microbatches, plain.replicas),
      " microbatches a step and replica, recomputing ",
      Recompute_Name(reference.chunks(0).recompute()), "\n\n", Table(rows, reference));
}

}  // namespace deepnet

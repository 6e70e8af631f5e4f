#include "parallel/plan/planner_text.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "parallel/plan/dealing.h"

namespace deepnet {
namespace {

constexpr double kGib = 1024.0 * 1024.0 * 1024.0;
constexpr double kMib = 1024.0 * 1024.0;
constexpr size_t kMostChunksNamed = 2;

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
  if (plan.microbatches_per_step() % plan.data_parallel_size() == 0) return "";
  return absl::StrCat(" (",
                      MicrobatchesText(plan.microbatches_per_step(), plan.data_parallel_size()),
                      " a replica)");
}

std::string Head(const Plan& plan) {
  std::string text = absl::StrCat(
      Plural(plan.pipeline_parallel_size(), "stage"), " x ",
      Plural(plan.data_parallel_size(), "replica"), ", schedule ", plan.schedule(), ", ",
      Plural(plan.chunks_per_rank(), "chunk"), " a rank", plan.placement() == V ? " in V" : "",
      ", ", plan.microbatches_per_step(), " microbatches a step", ShareText(plan), "\n");
  absl::StrAppendFormat(
      &text,
      "step of %.4g s by the cluster's stated speeds: bubble %.1f %%, exposed communication "
      "%.1f %%, then %.3g s of exchange and %.3g s of update\n",
      plan.step_seconds(), 100 * plan.bubble(), 100 * plan.exposed_communication(),
      plan.gradient_exchange_seconds(), plan.update_seconds());
  const StagePlan& fullest = *std::max_element(plan.stages().begin(), plan.stages().end(),
                                               [](const StagePlan& a, const StagePlan& b) {
                                                 return a.memory().total() < b.memory().total();
                                               });
  absl::StrAppendFormat(&text, "recomputing %s; at most %.2f GiB, on rank %d\n",
                        RecomputeText(plan), fullest.memory().total() / kGib, fullest.rank());
  return text;
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
  for (size_t c = 0; c < std::min(kMostChunksNamed, chunks.size()); ++c) {
    ranges.push_back(RangeText(inventory, *chunks[c]));
  }
  if (chunks.size() > kMostChunksNamed) ranges.push_back("...");
  return absl::StrJoin(ranges, ", ");
}

std::string RecomputeText(const Plan& plan) {
  const auto [least, most] = std::minmax_element(
      plan.chunks().begin(), plan.chunks().end(),
      [](const ChunkPlan& a, const ChunkPlan& b) { return a.recompute() < b.recompute(); });
  if (least->recompute() == most->recompute()) return LevelText(*least);
  return absl::StrCat(LevelText(*least), " to ", LevelText(*most));
}

std::string PlanText(const Plan& plan, const Inventory& inventory) {
  std::string text = Head(plan);
  absl::StrAppendFormat(&text, "\n%5s %6s %10s %9s %8s %5s | %9s %9s %9s %9s  %s\n", "rank",
                        "layers", "TFLOP/step", "busy s", "again", "alive", "state GiB", "activ.",
                        "other", "total", "from .. to");
  for (int r = 0; r < plan.pipeline_parallel_size(); ++r) {
    const StagePlan& stage = plan.stages(r);
    const MemoryEstimate& m = stage.memory();
    const std::vector<const ChunkPlan*> chunks = ChunksOf(plan, r);
    int layers = 0;
    for (const ChunkPlan* chunk : chunks) layers += chunk->end_layer() - chunk->first_layer();
    const int64_t other = m.total() - StateBytes(m) - m.activations();
    absl::StrAppendFormat(&text, "%5d %6d %10.4g %9.4g %8s %5d | %9.3f %9.3f %9.3f %9.3f  %s\n", r,
                          layers, stage.flops_per_step() / 1e12, stage.busy_seconds(),
                          LevelText(*chunks.front()), stage.peak_alive(), StateBytes(m) / kGib,
                          m.activations() / kGib, other / kGib, m.total() / kGib,
                          LayersText(plan, inventory, r));
  }
  return text;
}

std::string LayoutText(const Plan& plan, const Inventory& inventory) {
  std::string text = absl::StrFormat("%5s %5s %6s %8s | %9s %9s %9s | %9s %5s %9s %9s  %s\n",
                                     "chunk", "rank", "layers", "again", "F ms", "I ms", "W ms",
                                     "kept MiB", "slots", "in MiB", "back MiB", "from .. to");
  for (int c = 0; c < plan.chunks_size(); ++c) {
    const ChunkPlan& chunk = plan.chunks(c);
    absl::StrAppendFormat(
        &text, "%5d %5d %6d %8s | %9.3f %9.3f %9.3f | %9.2f %5d %9.2f %9.2f  %s\n", c, chunk.rank(),
        chunk.end_layer() - chunk.first_layer(), LevelText(chunk), 1e3 * chunk.forward_seconds(),
        1e3 * chunk.backward_input_seconds(), 1e3 * chunk.backward_weight_seconds(),
        chunk.kept_bytes() / kMib, chunk.slots(), chunk.forward_bytes() / kMib,
        chunk.backward_bytes() / kMib, RangeText(inventory, chunk));
  }
  return text;
}

std::string MemoryText(const Plan& plan) {
  std::string text =
      absl::StrFormat("GiB\n%5s %8s %8s %8s %8s %8s %8s %8s %8s %8s %8s %8s %8s %8s %9s\n", "rank",
                      "weights", "packed", "grads", "partial", "moments", "activ.", "boundary",
                      "again", "work", "logits", "comm.", "saved", "instr.", "total");
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
  return text;
}

}  // namespace deepnet

#include "parallel/plan/planner_text.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"

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

constexpr double kWidth = 1000, kMargin = 60, kRow = 22, kBox = 18, kHead = 34;  // pixels
constexpr double kDigit = 6.5;  // pixels a digit needs
constexpr int kShades = 4;      // laps that look different
constexpr std::string_view kFont = "font-family=\"Helvetica, Arial, sans-serif\"";

// First colour for the first chunk of a rank, then lighter.
struct Paint {
  std::string_view name;
  std::array<std::string_view, kShades> fill;
};

// [Op], of those that compute
constexpr std::array<Paint, 4> kPaints = {{{"F", {"#2f6db5", "#6fa3dc", "#9dc3ec", "#c4dcf6"}},
                                           {"B", {"#2e8b57", "#6dbb8e", "#9ad4b1", "#c3e7d1"}},
                                           {"I", {"#2e8b57", "#6dbb8e", "#9ad4b1", "#c3e7d1"}},
                                           {"W", {"#d9822b", "#efae6a", "#f6c999", "#fbe1c4"}}}};

const Paint& PaintOf(Op op) { return kPaints[static_cast<size_t>(op)]; }

// The lap of each of a rank's chunks: 0 for its first along the model.
using Laps = std::map<int, int>;
Laps LapsOf(const std::vector<TimedAction>& actions) {
  Laps laps;
  for (const TimedAction& timed : actions) laps[timed.action.chunk] = 0;
  int next = 0;
  for (auto& [chunk, lap] : laps) lap = next++;
  return laps;
}

// The boxes and numbers of one rank's row. Boxes of one colour form one path, which keeps it small.
std::string DrawRow(const std::vector<TimedAction>& actions, int rank, double pixels_per_second) {
  const double top = kHead + rank * kRow;
  const Laps laps = LapsOf(actions);
  std::map<std::string_view, std::string> paths;  // by colour
  std::string numbers;
  for (const TimedAction& timed : actions) {
    const double left = kMargin + timed.start * pixels_per_second;
    const double width = (timed.end - timed.start) * pixels_per_second;
    if (width <= 0) continue;
    const int lap = laps.at(timed.action.chunk);
    absl::StrAppendFormat(&paths[PaintOf(timed.action.op).fill[std::min(lap, kShades - 1)]],
                          "M%.1f %.0fh%.1fv%.0fh-%.1fz", left, top, width, kBox, width);
    const std::string number = absl::StrCat(timed.action.microbatch);
    if (width < kDigit * static_cast<double>(number.size()) + 2) continue;
    absl::StrAppendFormat(&numbers, "<text x=\"%.1f\" y=\"%.0f\" fill=\"%s\">%s</text>",
                          left + width / 2, top + 13, lap == 0 ? "#fff" : "#222", number);
  }
  std::string row = absl::StrFormat(
      "<text x=\"%.0f\" y=\"%.0f\" text-anchor=\"end\" fill=\"#222\">rank %d</text>\n", kMargin - 6,
      top + 13, rank);
  for (const auto& [fill, path] : paths) {
    absl::StrAppend(&row, "<path fill=\"", std::string(fill), "\" stroke=\"#fff\" ",
                    "stroke-width=\"0.6\" d=\"", path, "\"/>\n");
  }
  absl::StrAppend(&row, numbers, "\n");
  return row;
}

// Draws a legend of the colours of the operations and laps that occur.
std::string DrawLegend(const Simulation& simulation, double top) {
  std::map<std::pair<std::string_view, int>, std::string_view> entries;
  for (const std::vector<TimedAction>& actions : simulation.timeline) {
    const Laps laps = LapsOf(actions);
    for (const TimedAction& timed : actions) {
      const Paint& paint = PaintOf(timed.action.op);
      const int lap = std::min(laps.at(timed.action.chunk), kShades - 1);
      entries[{paint.name, lap}] = paint.fill[lap];
    }
  }
  std::string legend;
  double left = kMargin;
  for (const auto& [entry, fill] : entries) {
    absl::StrAppendFormat(
        &legend,
        "<rect x=\"%.0f\" y=\"%.0f\" width=\"14\" height=\"14\" fill=\"%s\"/>"
        "<text x=\"%.0f\" y=\"%.0f\" text-anchor=\"start\" fill=\"#222\">%s, chunk %d</text>\n",
        left, top, std::string(fill), left + 18, top + 11, std::string(entry.first),
        entry.second + 1);
    left += 96;
  }
  return legend;
}

std::string Escaped(std::string_view text) {
  return absl::StrReplaceAll({text.data(), text.size()},
                             {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}});
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
    std::string name = config.schedule;
    if (config.virtual_pipeline_size > 1) {
      absl::StrAppend(&name, ", v=", config.virtual_pipeline_size);
    }
    rows.push_back({std::move(name), std::move(plan)});
  }
  return absl::StrCat(
      request.stages, " stages, ", MicrobatchesText(request.global_microbatches, plain.replicas),
      " microbatches a step and replica, recomputing ",
      Recompute_Name(reference.chunks(0).recompute()), "\n\n", Table(rows, reference));
}

std::string DrawGrid(const Simulation& simulation, int columns) {
  const double step = simulation.makespan / columns;
  const int digits = static_cast<int>(absl::StrCat(simulation.timeline.size() - 1).size());
  std::string grid;
  for (size_t rank = 0; rank < simulation.timeline.size(); ++rank) {
    const std::vector<TimedAction>& actions = simulation.timeline[rank];
    const Laps laps = LapsOf(actions);
    std::string line(columns, '.');
    auto timed = actions.begin();
    for (int column = 0; column < columns; ++column) {
      const double now = (column + 0.5) * step;
      while (timed != actions.end() && timed->end <= now) ++timed;
      if (timed == actions.end() || timed->start > now) continue;
      const char letter = PaintOf(timed->action.op).name.front();
      line[column] = laps.at(timed->action.chunk) % 2 == 0
                         ? letter
                         : static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
    }
    absl::StrAppendFormat(&grid, "rank %*d |%s\n", digits, rank, line);
  }
  return grid;
}

std::string DrawSvg(const Simulation& simulation, std::string_view title) {
  const auto num_ranks = static_cast<double>(simulation.timeline.size());
  const double bottom = kHead + num_ranks * kRow;
  const double scale = simulation.makespan > 0 ? (kWidth - kMargin - 10) / simulation.makespan : 0;
  std::string svg = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
      "viewBox=\"0 0 %.0f %.0f\" %s font-size=\"11\" text-anchor=\"middle\">\n"
      "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n"
      "<text x=\"%.0f\" y=\"20\" text-anchor=\"start\" font-size=\"14\" fill=\"#222\">%s: "
      "bubble %.1f %%, makespan %.4g s</text>\n"
      "<rect x=\"%.0f\" y=\"%.0f\" width=\"%.0f\" height=\"%.0f\" fill=\"#f0f0f0\"/>\n",
      kWidth, bottom + 30, kWidth, bottom + 30, std::string(kFont), kMargin, Escaped(title),
      100 * simulation.bubble, simulation.makespan, kMargin, kHead - 2, kWidth - kMargin - 10,
      num_ranks * kRow);
  for (size_t rank = 0; rank < simulation.timeline.size(); ++rank) {
    svg += DrawRow(simulation.timeline[rank], static_cast<int>(rank), scale);
  }
  return absl::StrCat(svg, DrawLegend(simulation, bottom + 8), "</svg>\n");
}

}  // namespace deepnet

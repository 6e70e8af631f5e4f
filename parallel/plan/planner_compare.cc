#include "parallel/plan/planner_compare.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "parallel/base/status_macros.h"
#include "parallel/plan/planner_layout.h"
#include "parallel/plan/planner_search.h"
#include "parallel/plan/planner_text.h"

namespace deepnet {
namespace {

constexpr double kGib = 1024.0 * 1024.0 * 1024.0;

// Ends of `parts` parts of layers [first, end), equally many in each.
void AddEvenEnds(int first, int end, int parts, std::vector<int>& ends) {
  for (int part = 1; part <= parts; ++part) ends.push_back(first + (end - first) * part / parts);
}

// The encoder over the first half of the ranks, all else over the second; a model of one stack over
// all of them.
std::vector<int> Halves(const Inventory& inventory, int stages) {
  const auto border =
      std::find_if(inventory.layers.begin(), inventory.layers.end(),
                   [](const Layer& layer) { return layer.kind == LayerKind::kTargetEmbedding; });
  const auto middle = static_cast<int>(border - inventory.layers.begin());
  const int in_first_half = middle > 0 ? stages / 2 : 0;
  std::vector<int> ends;
  AddEvenEnds(0, middle, in_first_half, ends);
  AddEvenEnds(middle, static_cast<int>(inventory.layers.size()), stages - in_first_half, ends);
  return ends;
}

int64_t MostActivations(const Plan& plan) {
  int64_t most = 0;
  for (const StagePlan& stage : plan.stages()) {
    most = std::max(most, stage.memory().activations());
  }
  return most;
}

struct Row {
  std::string name;
  Plan plan;
};

std::string Table(const std::vector<Row>& rows, const Plan& reference) {
  std::string text = absl::StrFormat("%-22s %9s %9s %9s %12s %9s\n", "schedule", "step s",
                                     "bubble %", "exposed %", "activ./1f1b", "most GiB");
  for (const Row& row : rows) {
    absl::StrAppendFormat(&text, "%-22s %9.4g %9.1f %9.2f %12.2f %9.1f\n", row.name,
                          row.plan.step_seconds(), 100 * row.plan.bubble(),
                          100 * row.plan.exposed_communication(),
                          static_cast<double>(MostActivations(row.plan)) /
                              static_cast<double>(std::max<int64_t>(1, MostActivations(reference))),
                          Fullest(row.plan).memory().total() / kGib);
  }
  return text;
}

std::string NameOf(const Layout& layout) {
  if (layout.chunks_per_rank == 1) return layout.schedule;
  return absl::StrCat(layout.schedule, ", v=", layout.chunks_per_rank);
}

}  // namespace

absl::StatusOr<std::string> CompareText(const Inventory& inventory, const DataSpec& data,
                                        const OptimSpec& optim, const ComputeSpec& compute,
                                        const ClusterSpec& cluster, const ParallelSpec& parallel,
                                        const InstrumentsSpec& instruments) {
  ASSIGN_OR_RETURN(Request request,
                   MakeRequest(inventory, data, optim, compute, cluster, parallel, instruments));
  if (request.stages < 2) {
    return BadField("parallel.pipeline_parallel_size: a comparison of schedules needs 2 or more");
  }
  request.memory_bytes = std::numeric_limits<double>::infinity();
  request.schedule.clear();
  request.custom.reset();
  ASSIGN_OR_RETURN(const std::vector<Layout> layouts, ListLayouts(request));

  Layout plain{request.stages, layouts.front().replicas, "1f1b"};
  ASSIGN_OR_RETURN(const Plan reference, LayOut(request, plain));
  std::vector<Row> rows;
  plain.ends = Halves(inventory, request.stages);
  if (inventory.layers.size() >= 2 * static_cast<size_t>(request.stages)) {
    ASSIGN_OR_RETURN(Plan halves, LayOut(request, plain));
    rows.push_back({"halves by count, 1f1b", std::move(halves)});
  }
  for (const Layout& layout : layouts) {
    ASSIGN_OR_RETURN(Plan plan, LayOut(request, layout));
    rows.push_back({NameOf(layout), std::move(plan)});
  }
  std::string text = absl::StrCat(request.stages, " stages, ",
                                  MicrobatchesText(request.microbatches_per_step, plain.replicas),
                                  " microbatches a step and replica, recomputing ",
                                  Recompute_Name(reference.chunks(0).recompute()), "\n\n");
  return absl::StrCat(text, Table(rows, reference));
}

}  // namespace deepnet

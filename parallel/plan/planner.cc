// Three steps: settle the number of stages and replicas from what was asked and what there is; cut
// the layers by cost; add up bytes and compare with a device's memory. If stages were left open,
// the candidates are tried from the shortest pipeline on.

#include "parallel/plan/planner.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "parallel/plan/memory.h"
#include "parallel/plan/partition.h"

namespace deepnet {
namespace {

constexpr double kGib = 1024.0 * 1024.0 * 1024.0;
constexpr char kClosestPlanPayload[] = "deepnet.closest_plan";
constexpr double kTrainingPerForward = 3.0;  // operations: forward, gradients of inputs, of weights

absl::Status BadField(const std::string& message) {
  return WithExitCode(absl::InvalidArgumentError(message), ExitCode::kBadConfig);
}

struct Degrees {
  int stages = 1;
  int replicas = 1;
};

// The request with every default applied, and what follows from it.
struct Request {
  const Inventory& inventory;
  std::vector<double> costs;  // per layer, operations of one microbatch
  MemoryRules rules;          // partials and microbatches alive are set per layout
  int microbatches_per_step = 1;
  int virtual_replicas = 0;                                       // 0: follows the layout
  int num_ranks = 0;                                              // 0: follows the layout
  double memory_bytes = std::numeric_limits<double>::infinity();  // per rank
  int stages = 0, replicas = 0;                                   // 0: open
  std::string schedule;                                           // "": by the number of stages

  int NumLayers() const { return static_cast<int>(inventory.layers.size()); }
};

Request MakeRequest(const Inventory& inventory, const DataSpec& data, const OptimSpec& optim,
                    const ComputeSpec& compute, const ClusterSpec& cluster,
                    const ParallelSpec& parallel) {
  Request request{.inventory = inventory,
                  .costs = {},
                  .rules = MakeMemoryRules(compute),
                  .schedule = parallel.schedule()};
  for (const Layer& layer : inventory.layers) {
    request.costs.push_back(kTrainingPerForward * layer.forward_flops);
  }
  request.microbatches_per_step = std::max(1, data.microbatches_per_step());
  request.virtual_replicas = optim.virtual_replicas();
  request.stages = parallel.pipeline_parallel_size();
  request.replicas = parallel.data_parallel_size();
  if (cluster.nodes() > 0 || cluster.devices_per_node() > 0) {
    request.num_ranks = std::max(1, cluster.nodes()) * std::max(1, cluster.devices_per_node());
  }
  if (cluster.device_memory_gib() > 0) request.memory_bytes = cluster.device_memory_gib() * kGib;
  return request;
}

// Whether a layout can run at all, whatever it needs.
absl::Status CheckLayout(const Request& request, const Degrees& degrees) {
  if (degrees.stages > request.NumLayers()) {
    return BadField(absl::StrCat("parallel.pipeline_parallel_size: ", degrees.stages,
                                 " stages, but the model has only ", request.NumLayers(),
                                 " layers to cut between"));
  }
  if (request.num_ranks != 0 && degrees.stages * degrees.replicas != request.num_ranks) {
    return BadField(absl::StrCat("parallel: pipeline_parallel_size ", degrees.stages,
                                 " x data_parallel_size ", degrees.replicas, " = ",
                                 degrees.stages * degrees.replicas, " ranks, but cluster has ",
                                 request.num_ranks));
  }
  if (request.microbatches_per_step % degrees.replicas != 0) {
    return BadField(absl::StrCat("data.microbatches_per_step: ", request.microbatches_per_step,
                                 " cannot be dealt evenly to data_parallel_size ",
                                 degrees.replicas));
  }
  if (request.virtual_replicas % degrees.replicas != 0) {
    return BadField(absl::StrCat("optim.virtual_replicas: ", request.virtual_replicas,
                                 " is not a multiple of data_parallel_size ", degrees.replicas));
  }
  if (request.schedule == "trivial" && degrees.stages != 1) {
    return BadField(
        absl::StrCat("parallel.schedule: \"trivial\" is for one stage, not ", degrees.stages));
  }
  return absl::OkStatus();
}

// Layouts worth trying, shortest pipeline first. InvalidArgument if there is none.
absl::StatusOr<std::vector<Degrees>> Candidates(const Request& request) {
  const int ranks = request.num_ranks;
  if (request.stages != 0 || ranks == 0) {
    const int stages = std::max(1, request.stages);
    const Degrees only{stages,
                       request.replicas != 0 ? request.replicas : std::max(1, ranks / stages)};
    RETURN_IF_ERROR(CheckLayout(request, only));
    return std::vector<Degrees>{only};
  }
  std::vector<Degrees> candidates;
  absl::Status first_error;
  for (int stages = 1; stages <= ranks; ++stages) {
    if (ranks % stages != 0) continue;
    const Degrees degrees{stages, request.replicas != 0 ? request.replicas : ranks / stages};
    const absl::Status status = CheckLayout(request, degrees);
    if (status.ok()) {
      candidates.push_back(degrees);
    } else {
      first_error.Update(status);
    }
  }
  if (candidates.empty()) return first_error;
  return candidates;
}

// Partial sums alive when a rank folds `folds` virtual replicas in a binary tree.
int NumPartials(int folds) {
  return folds <= 1 ? 1 : 1 + std::bit_width(static_cast<unsigned>(folds - 1));
}

Plan Layout(const Request& request, const Degrees& degrees) {
  Plan plan;
  plan.set_pipeline_parallel_size(degrees.stages);
  plan.set_data_parallel_size(degrees.replicas);
  plan.set_schedule(degrees.stages == 1 ? "trivial" : "1f1b");
  plan.set_microbatches_per_step(request.microbatches_per_step);
  plan.set_chunks_per_rank(1);
  plan.set_placement(LOOPED);
  plan.set_virtual_replicas(request.virtual_replicas != 0 ? request.virtual_replicas
                                                          : degrees.replicas);

  const int per_replica = request.microbatches_per_step / degrees.replicas;
  const std::vector<int> ends = PartitionByCost(request.costs, degrees.stages);
  MemoryRules rules = request.rules;
  rules.num_gradient_partials = NumPartials(request.virtual_replicas / degrees.replicas);
  for (int stage = 0, first = 0; stage < degrees.stages; first = ends[stage++]) {
    StagePlan& part = *plan.add_stages();
    part.set_rank(stage);
    ChunkPlan& chunk = *plan.add_chunks();
    chunk.set_rank(stage);
    chunk.set_first_layer(first);
    chunk.set_end_layer(ends[stage]);
    double cost = 0;
    for (int l = first; l < ends[stage]; ++l) cost += request.costs[l];
    part.set_flops_per_step(cost * per_replica);
    rules.num_microbatches_alive = std::min(degrees.stages - stage, per_replica);  // 1F1B's
    *part.mutable_memory() = EstimateMemory(request.inventory, first, ends[stage], rules);
  }
  return plan;
}

// The stage that needs most.
const StagePlan& Fullest(const Plan& plan) {
  return *std::max_element(plan.stages().begin(), plan.stages().end(),
                           [](const StagePlan& a, const StagePlan& b) {
                             return a.memory().total() < b.memory().total();
                           });
}

bool Fits(const Request& request, const Plan& plan) {
  return Fullest(plan).memory().total() <= request.memory_bytes;
}

std::string Gib(double bytes) { return absl::StrFormat("%.2f GiB", bytes / kGib); }

std::string LayerRange(const Inventory& inventory, const ChunkPlan& chunk) {
  const std::string& first = inventory.layers[chunk.first_layer()].name;
  const std::string& last = inventory.layers[chunk.end_layer() - 1].name;
  return first == last ? first : absl::StrCat(first, " .. ", last);
}

// The smallest power of two by which microbatches must shrink (and grow in number) so that `plan`
// fits; 0 if none up to kMostShrink does. Only activations count: all else hardly depends on it.
constexpr int kMostShrink = 64;
int ShrinkToFit(const Request& request, const Plan& plan) {
  const auto fits = [&](const StagePlan& stage, int shrink) {
    const auto activations = static_cast<double>(stage.memory().activations());
    const double others = static_cast<double>(stage.memory().total()) - activations;
    return others + activations / shrink <= request.memory_bytes;
  };
  for (int shrink = 1; shrink <= kMostShrink; shrink *= 2) {
    if (std::all_of(plan.stages().begin(), plan.stages().end(),
                    [&](const StagePlan& stage) { return fits(stage, shrink); })) {
      return shrink;
    }
  }
  return 0;
}

// Of layouts that fit, the one with the least smaller microbatches, then with fewest stages.
struct NearestFit {
  Degrees degrees;
  int shrink = 0;  // 0: none found
};

NearestFit FindNearestFit(const Request& request, const std::vector<Degrees>& layouts) {
  NearestFit nearest;
  for (const Degrees& degrees : layouts) {
    const int shrink = ShrinkToFit(request, Layout(request, degrees));
    if (shrink == 0 || (nearest.shrink != 0 && shrink >= nearest.shrink)) continue;
    nearest = {degrees, shrink};
    if (shrink == 1) break;
  }
  return nearest;
}

// The nearest layout that fits, in words: on the ranks that there are if any, else on as many as it
// takes, up to as many stages as there are microbatches to fill them.
std::string Advice(const Request& request, int replicas) {
  Request open = request;
  open.stages = open.replicas = 0;
  const absl::StatusOr<std::vector<Degrees>> here = Candidates(open);
  NearestFit nearest;
  if (here.ok()) nearest = FindNearestFit(request, *here);
  std::vector<Degrees> longer;
  const int longest = std::min(request.NumLayers(), request.microbatches_per_step / replicas);
  for (int stages = 1; stages <= longest; ++stages) longer.push_back({stages, replicas});
  if (nearest.shrink == 0) nearest = FindNearestFit(request, longer);
  if (nearest.shrink == 0) {
    return absl::StrCat("; no pipeline_parallel_size up to ", longest,
                        " fits, even with data.microbatch at 1/", kMostShrink,
                        " of its size: use devices with more memory");
  }
  std::string advice = absl::StrCat("; what fits: pipeline_parallel_size ", nearest.degrees.stages,
                                    ", data_parallel_size ", nearest.degrees.replicas);
  if (nearest.shrink > 1) {
    absl::StrAppend(&advice, ", data.microbatch at 1/", nearest.shrink,
                    " of its size (data.microbatches_per_step x ", nearest.shrink, ")");
  }
  return advice;
}

// What to tell whoever asked for `plan`, the best that the request allows.
absl::Status DoesNotFit(const Request& request, const Plan& plan) {
  const StagePlan& stage = Fullest(plan);
  const double need = static_cast<double>(stage.memory().total());
  const std::string message = absl::StrCat(
      "does not fit: with pipeline_parallel_size ", plan.pipeline_parallel_size(), " rank ",
      stage.rank(), " (", LayerRange(request.inventory, plan.chunks(stage.rank())), ") needs ",
      Gib(need), " and has ", Gib(request.memory_bytes), ", ", Gib(need - request.memory_bytes),
      " too little", Advice(request, plan.data_parallel_size()));
  absl::Status status = absl::ResourceExhaustedError(message);
  status.SetPayload(kClosestPlanPayload, absl::Cord(plan.SerializeAsString()));
  return WithExitCode(std::move(status), ExitCode::kDoesNotFit);
}

// Repeats the stages of the first replica for the others.
void AddReplicas(Plan& plan) {
  const int stages = plan.pipeline_parallel_size();
  for (int rank = stages; rank < stages * plan.data_parallel_size(); ++rank) {
    StagePlan copy = plan.stages(rank % stages);
    copy.set_rank(rank);
    *plan.add_stages() = std::move(copy);
  }
}

absl::Status CheckRequest(const Request& request) {
  if (request.stages < 0) return BadField("parallel.pipeline_parallel_size: must not be negative");
  if (request.replicas < 0) return BadField("parallel.data_parallel_size: must not be negative");
  if (request.schedule != "" && request.schedule != "trivial" && request.schedule != "1f1b") {
    return BadField(absl::StrCat("parallel.schedule: \"", request.schedule,
                                 "\" is unknown; known: trivial, 1f1b"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Plan> MakePlan(const Inventory& inventory, const DataSpec& data,
                              const OptimSpec& optim, const ComputeSpec& compute,
                              const ClusterSpec& cluster, const ParallelSpec& parallel) {
  const Request request = MakeRequest(inventory, data, optim, compute, cluster, parallel);
  RETURN_IF_ERROR(CheckRequest(request));
  ASSIGN_OR_RETURN(const std::vector<Degrees> candidates, Candidates(request));
  std::optional<Plan> closest;
  for (const Degrees& degrees : candidates) {
    Plan plan = Layout(request, degrees);
    if (Fits(request, plan)) {
      AddReplicas(plan);
      return plan;
    }
    if (!closest || Fullest(plan).memory().total() < Fullest(*closest).memory().total()) {
      closest = std::move(plan);
    }
  }
  AddReplicas(*closest);
  return DoesNotFit(request, *closest);
}

std::optional<Plan> ClosestPlan(const absl::Status& status) {
  const auto payload = status.GetPayload(kClosestPlanPayload);
  Plan plan;
  if (!payload || !plan.ParseFromString(std::string(*payload))) return std::nullopt;
  return plan;
}

Schedule MakeSchedule(const Plan& plan) {
  return MakeOneForwardOneBackward(  // with one stage it is the trivial one
      {.num_ranks = plan.pipeline_parallel_size(),
       .num_microbatches = plan.microbatches_per_step() / plan.data_parallel_size()});
}

std::string ToText(const Plan& plan, const Inventory& inventory) {
  std::string text =
      absl::StrFormat("%d stage%s x %d replica%s, schedule %s, %d microbatches a step\n\n",
                      plan.pipeline_parallel_size(), plan.pipeline_parallel_size() == 1 ? "" : "s",
                      plan.data_parallel_size(), plan.data_parallel_size() == 1 ? "" : "s",
                      plan.schedule(), plan.microbatches_per_step());
  absl::StrAppendFormat(&text, "%5s %6s %10s | %8s %8s %8s %8s %8s %8s %8s  %s\n", "stage",
                        "layers", "TFLOP/step", "weights", "packed", "grads", "moments", "activ.",
                        "work", "GiB", "from .. to");
  for (int i = 0; i < plan.pipeline_parallel_size(); ++i) {
    const StagePlan& stage = plan.stages(i);
    const MemoryEstimate& m = stage.memory();
    absl::StrAppendFormat(&text, "%5d %6d %10.4g | %8.3f %8.3f %8.3f %8.3f %8.3f %8.3f %8.3f  %s\n",
                          i, plan.chunks(i).end_layer() - plan.chunks(i).first_layer(),
                          stage.flops_per_step() / 1e12, m.weights() / kGib,
                          m.working_copies() / kGib, m.gradients() / kGib, m.moments() / kGib,
                          m.activations() / kGib, m.workspace() / kGib, m.total() / kGib,
                          LayerRange(inventory, plan.chunks(i)));
  }
  return text;
}

}  // namespace deepnet

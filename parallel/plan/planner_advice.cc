#include "parallel/plan/planner_advice.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "parallel/base/exit_code.h"
#include "parallel/plan/planner_layout.h"
#include "parallel/plan/planner_search.h"
#include "parallel/plan/planner_text.h"

namespace deepnet {
namespace {

constexpr double kGib = 1024.0 * 1024.0 * 1024.0;
constexpr int kMostShrink = 64;
constexpr int kMostRanks = 8192;
constexpr int kMostTries = 3;  // layouts that look as if they fit, worked out to be sure

std::string Gib(double bytes) { return absl::StrFormat("%.2f GiB", bytes / kGib); }

// The same run with less and less of what was asked for: recomputation, schedule, degrees.
enum class Freed { kRecompute, kSchedule, kDegrees };

Request Free(Request request, Freed freed, const Plan& closest) {
  request.recompute.reset();
  request.stages = closest.pipeline_parallel_size();
  request.replicas = closest.data_parallel_size();
  request.num_ranks = request.stages * request.replicas;
  if (freed == Freed::kRecompute) return request;
  request.schedule.clear();
  request.custom.reset();
  request.chunks_per_rank = 0;
  request.placement = PLACEMENT_UNSPECIFIED;
  if (freed == Freed::kDegrees) request.stages = request.replicas = 0;
  return request;
}

// The fastest by the coarse estimate that does fit; nothing if there seems to be none.
std::optional<Plan> FirstThatFits(const Request& request) {
  const absl::StatusOr<std::vector<Layout>> layouts = ListLayouts(request);
  if (!layouts.ok()) return std::nullopt;
  std::vector<std::pair<double, size_t>> fitting;
  for (size_t i = 0; i < layouts->size(); ++i) {
    const CoarseEstimate estimate = EstimateCoarsely(request, (*layouts)[i]);
    if (estimate.fits) fitting.emplace_back(estimate.seconds, i);
  }
  std::sort(fitting.begin(), fitting.end());
  if (fitting.size() > kMostTries) fitting.resize(kMostTries);
  for (const auto& [seconds, i] : fitting) {
    absl::StatusOr<Plan> plan = LayOut(request, (*layouts)[i]);
    if (plan.ok() && Fits(request, *plan)) return *std::move(plan);
  }
  return std::nullopt;
}

// The smallest power of two by which microbatches must shrink (and grow in number) so that `plan`
// fits; 0 if none up to kMostShrink does. What belongs to parameters stays, all else shrinks; of
// logits there are blocks, whose size is taken as it is.
int ShrinkToFit(const Request& request, const Plan& plan) {
  const auto fits = [&](const StagePlan& stage, int shrink) {
    const MemoryEstimate& m = stage.memory();
    const auto shrinks =
        static_cast<double>(m.activations() + m.boundary() + m.recompute() + m.workspace());
    const double stays = static_cast<double>(m.total()) - shrinks;
    return stays + shrinks / shrink <= request.memory_bytes;
  };
  for (int shrink = 2; shrink <= kMostShrink; shrink *= 2) {
    if (std::all_of(plan.stages().begin(), plan.stages().end(),
                    [&](const StagePlan& stage) { return fits(stage, shrink); })) {
      return shrink;
    }
  }
  return 0;
}

std::string Describe(const Plan& plan) {
  std::string text = absl::StrCat("pipeline_parallel_size ", plan.pipeline_parallel_size(),
                                  ", data_parallel_size ", plan.data_parallel_size(), ", schedule ",
                                  plan.schedule());
  if (plan.chunks_per_rank() > 1) {
    absl::StrAppend(&text, " with chunks_per_rank ", plan.chunks_per_rank());
  }
  return absl::StrCat(text, ", recomputing ", RecomputeText(plan));
}

std::string Advice(const Request& request, const Plan& closest) {
  const int ranks = closest.pipeline_parallel_size() * closest.data_parallel_size();
  for (const Freed freed : {Freed::kRecompute, Freed::kSchedule, Freed::kDegrees}) {
    if (const auto here = FirstThatFits(Free(request, freed, closest))) {
      return absl::StrCat("; what fits on ", ranks,
                          ranks == 1 ? " rank: " : " ranks: ", Describe(*here));
    }
  }
  std::string advice;
  if (const int shrink = ShrinkToFit(request, closest); shrink != 0) {
    advice = absl::StrCat("; what fits: data.microbatch at 1/", shrink,
                          " of its size (data.microbatches_per_step x ", shrink, ")");
  }
  Request open = Free(request, Freed::kDegrees, closest);
  for (open.num_ranks = 2 * ranks; open.num_ranks <= kMostRanks; open.num_ranks *= 2) {
    if (const auto plan = FirstThatFits(open)) {
      return absl::StrCat(advice, advice.empty() ? "; what fits: " : ", or ", open.num_ranks,
                          " ranks: ", Describe(*plan));
    }
  }
  if (!advice.empty()) return advice;
  return absl::StrCat("; nothing fits on up to ", kMostRanks,
                      " ranks: use devices with more memory");
}

}  // namespace

absl::Status DoesNotFit(const Request& request, const Plan& closest) {
  const StagePlan& stage = Fullest(closest);
  const auto need = static_cast<double>(stage.memory().total());
  const std::string message =
      absl::StrCat("does not fit: with ", Describe(closest), " rank ", stage.rank(), " (",
                   LayersText(closest, *request.inventory, stage.rank()), ") needs ", Gib(need),
                   " and has ", Gib(request.memory_bytes), ", ", Gib(need - request.memory_bytes),
                   " too little", Advice(request, closest));
  return WithExitCode(absl::ResourceExhaustedError(message), ExitCode::kDoesNotFit);
}

}  // namespace deepnet

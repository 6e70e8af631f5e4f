#include "trainer/optim/optimizer.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include <ATen/ATen.h>

#include "parallel/base/status_macros.h"
#include "parallel/plan/memory.h"
#include "trainer/optim/learning_rate.h"

namespace deepnet {

OptimizerStep::OptimizerStep(const OptimSpec& optim, const Inventory& whole, ShardLayout layout,
                             Groups groups)
    : optim_(optim),
      layout_(std::move(layout)),
      groups_(groups),
      norm_(whole, layout_),
      replica_check_(whole, layout_) {
  std::vector<GradientUse> uses = layout_.uses;
  std::erase_if(uses, [](const GradientUse& use) { return !use.first_here; });
  std::ranges::sort(uses, {}, &GradientUse::weight);
  auto use = uses.begin();
  for (const Extent& extent : layout_.extents) {
    for (int64_t done = 0; done < extent.count;) {
      const int64_t weight = extent.weight + done;
      while (use->weight + use->count <= weight) ++use;
      const int64_t count = std::min(extent.count - done, use->weight + use->count - weight);
      AddRange({.gradient = extent.gradient + done,
                .weight = weight,
                .state = extent.state + done,
                .count = count,
                .decayed = optim.weight_decay() != 0.0 &&
                           whole.parameters[use->parameter].shape.size() == 2});
      done += count;
    }
  }
}

void OptimizerStep::AddRange(const Range& range) {
  if (!ranges_.empty()) {
    Range& last = ranges_.back();  // moments have no gaps: `state` goes on by itself
    if (last.decayed == range.decayed && last.gradient + last.count == range.gradient &&
        last.weight + last.count == range.weight) {
      last.count += range.count;
      return;
    }
  }
  ranges_.push_back(range);
}

absl::StatusOr<UpdateResult> OptimizerStep::Apply(Ops& ops, Parameters& parameters,
                                                  const StepFigures& step, RankTrace* trace) const {
  const auto& [update, gradient_norm, loss, unit] = step;
  // Checked before the update, which overwrites all copies but the owner's.
  if (update % kUpdatesPerReplicaCheck == 0) {
    RETURN_IF_ERROR(replica_check_.Run(parameters.weights(), groups_));
  }
  UpdateResult result = Withhold(update, gradient_norm);
  if (!std::isfinite(gradient_norm) || !std::isfinite(loss)) return result;
  result.skipped = false;
  const bool clips = optim_.clip_norm() > 0 && gradient_norm > optim_.clip_norm();
  const double scale = clips ? optim_.clip_norm() / gradient_norm * unit : unit;
  Update(ops, parameters, update, result.rate, scale);
  const TraceSpan span(trace, {.kind = TraceKind::kGather});
  RETURN_IF_ERROR(GatherWeights(ops, parameters.weights()));
  return result;
}

UpdateResult OptimizerStep::Withhold(int64_t update, double gradient_norm) const {
  return {.gradient_norm = gradient_norm, .rate = LearningRate(optim_, update), .skipped = true};
}

void OptimizerStep::Update(Ops& ops, Parameters& parameters, int64_t update, double rate,
                           double scale) const {
  parameters.ShardMoments(layout_.StateElements());
  for (const Range& range : ranges_) {
    ops.Adam({.weights = parameters.weights().narrow(0, range.weight, range.count),
              .gradient = parameters.gradient().narrow(0, range.gradient, range.count),
              .moment1 = parameters.moment1().narrow(0, range.state, range.count),
              .moment2 = parameters.moment2().narrow(0, range.state, range.count),
              .rule = {.rate = rate,
                       .beta1 = optim_.beta1(),
                       .beta2 = optim_.beta2(),
                       .epsilon = optim_.epsilon(),
                       .weight_decay = range.decayed ? optim_.weight_decay() : 0.0,
                       .gradient_scale = scale,
                       .step = update,
                       .fairseq_epsilon = optim_.optimizer() == ADAM}});
  }
  if (parameters.average().defined()) Average(ops, parameters);
}

void OptimizerStep::BeginAverage(Parameters& parameters) const {
  if (!parameters.average().defined()) return;
  for (const Range& range : ranges_) {
    parameters.average()
        .narrow(0, range.state, range.count)
        .copy_(parameters.weights().narrow(0, range.weight, range.count));
  }
}

// average = decay * average + (1 - decay) * weights: two products and a sum, each rounded, so that
// an element has the same bits wherever its piece begins.
void OptimizerStep::Average(Ops& ops, Parameters& parameters) const {
  const int64_t most = std::min(layout_.StateElements(), kAverageElements);
  const at::Tensor scaled = at::empty({most}, parameters.weights().options());
  for (const Extent& extent : layout_.extents) {
    for (int64_t done = 0; done < extent.count; done += most) {
      const int64_t count = std::min(most, extent.count - done);
      const at::Tensor part = scaled.narrow(0, 0, count);
      const at::Tensor average = parameters.average().narrow(0, extent.state + done, count);
      part.copy_(parameters.weights().narrow(0, extent.weight + done, count));
      ops.Scale(count, part, 1.0 - optim_.ema_decay());
      ops.Scale(count, average, optim_.ema_decay());
      ops.Add(average, part);
    }
  }
}

// Sends the shares to the other replicas, straight from weights to weights, from the outermost
// level, where they are smallest, to the innermost.
absl::Status OptimizerStep::GatherWeights(const Ops& ops, const at::Tensor& weights) const {
  const std::vector<Communicator*> levels = ExchangeLevels(groups_);
  for (size_t level = levels.size(); level-- > 0;) {
    std::vector<std::unique_ptr<Transfer>> transfers;
    for (const std::vector<GradientPiece>& bucket : layout_.pieces) {
      for (const GradientPiece& piece : bucket) {
        if (!piece.of.first_here) continue;
        const std::vector<int64_t> borders = LevelBorders(piece, levels, level);
        std::vector<Buffer> all;
        for (size_t r = 0; r + 1 < borders.size(); ++r) {
          all.push_back(BufferOf(
              ops, weights.narrow(0, piece.of.weight + borders[r], borders[r + 1] - borders[r])));
        }
        ASSIGN_OR_RETURN(transfers.emplace_back(),
                         levels[level]->AllGather(all[levels[level]->rank()], all));
      }
    }
    for (const auto& transfer : transfers) {
      RETURN_IF_ERROR(Named(transfer->Wait(groups_.limit), "new weights of other replicas"));
    }
  }
  return absl::OkStatus();
}

}  // namespace deepnet

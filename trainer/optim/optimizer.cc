#include "trainer/optim/optimizer.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "parallel/base/crc32c.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "parallel/plan/memory.h"
#include "trainer/kernels/aten.h"
#include "trainer/optim/learning_rate.h"

namespace deepnet {
namespace {

constexpr int64_t kNotHere = -1;

// A tensor's name and checksum here, or kNotHere.
using Checked = std::pair<std::string, int64_t>;

int64_t Checksum(const at::Tensor& weights) {
  const at::Tensor here = weights.cpu();
  return Crc32c({static_cast<const char*>(here.data_ptr()), here.nbytes()});
}

// "ranks 0, 2 hold 1234abcd, rank 1 holds 00000000".
std::string WhoHoldsWhat(const std::map<int64_t, std::vector<int64_t>>& ranks_by_checksum) {
  std::vector<std::string> parts;
  for (const auto& [checksum, ranks] : ranks_by_checksum) {
    parts.push_back(absl::StrFormat("%s %s %08x", ranks.size() == 1 ? "rank" : "ranks",
                                    absl::StrJoin(ranks, ", "), checksum));
  }
  return absl::StrJoin(parts, "; ");
}

// Compares `mine` over the `group`. `rank`: of the world.
absl::Status CompareOver(Communicator* group, absl::Duration limit, int64_t rank,
                         const std::vector<Checked>& mine) {
  if (group == nullptr || group->size() == 1) return absl::OkStatus();
  std::vector<int64_t> sent = {rank};
  for (const auto& [name, checksum] : mine) sent.push_back(checksum);
  std::vector<std::vector<int64_t>> received(group->size(), sent);
  std::vector<Buffer> all;
  for (std::vector<int64_t>& one : received) all.push_back(Buffer::Of(std::span(one)));
  ASSIGN_OR_RETURN(const auto transfer, group->AllGather(all[group->rank()], all));
  RETURN_IF_ERROR(Named(transfer->Wait(limit), "checksums of weights"));
  for (size_t i = 0; i < mine.size(); ++i) {
    std::map<int64_t, std::vector<int64_t>> ranks_by_checksum;
    for (const std::vector<int64_t>& one : received) {
      if (one[i + 1] != kNotHere) ranks_by_checksum[one[i + 1]].push_back(one[0]);
    }
    if (ranks_by_checksum.size() <= 1) continue;
    return WithExitCode(DataLoss("ranks disagree on ", mine[i].first,
                                 ", checksums: ", WhoHoldsWhat(ranks_by_checksum)),
                        ExitCode::kReplicasDisagree);
  }
  return absl::OkStatus();
}

}  // namespace

ReplicaCheck::ReplicaCheck(const Inventory& whole, const ShardLayout& layout) {
  std::vector<Compared> all(whole.parameters.size());
  std::vector<int> uses(all.size());
  for (const Layer& layer : whole.layers) {
    for (const int p : layer.parameters) ++uses[p];
  }
  for (const GradientUse& use : layout.uses) {
    if (!use.first_here) continue;
    all[use.parameter] = {.here = true, .weight = use.weight, .count = use.count};
  }
  for (size_t p = 0; p < all.size(); ++p) {
    all[p].tied = uses[p] > 1;
    if (!all[p].here && !all[p].tied) continue;
    all[p].name = whole.parameters[p].name;
    compared_.push_back(all[p]);
  }
}

absl::Status ReplicaCheck::Run(const at::Tensor& weights, const Groups& groups) const {
  if (groups.world == nullptr || groups.world->size() == 1) return absl::OkStatus();
  std::vector<Checked> held, tied;
  for (const Compared& one : compared_) {
    const Checked checked(one.name,
                          one.here ? Checksum(weights.narrow(0, one.weight, one.count)) : kNotHere);
    if (one.here) held.push_back(checked);
    if (one.tied) tied.push_back(checked);
  }
  const int64_t rank = groups.world->rank();
  RETURN_IF_ERROR(CompareOver(groups.replicas, groups.limit, rank, held));
  return CompareOver(groups.stages, groups.limit, rank, tied);
}

OptimizerStep::OptimizerStep(const OptimSpec& optim, const Inventory& whole, ShardLayout layout,
                             Groups groups)
    : optim_(optim),
      layout_(std::move(layout)),
      groups_(groups),
      num_blocks_(SumBlockBorders(whole).size() - 1),
      block_runs_(BlockRunsOf(whole, layout_)),
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
      const Range range = {.gradient = extent.gradient + done,
                           .weight = weight,
                           .state = extent.state + done,
                           .count = count,
                           .decayed = optim.weight_decay() != 0.0 &&
                                      whole.parameters[use->parameter].shape.size() == 2};
      Range* const last = ranges_.empty() ? nullptr : &ranges_.back();
      if (last != nullptr && last->decayed == range.decayed &&
          last->gradient + last->count == range.gradient &&
          last->weight + last->count == range.weight) {
        last->count += count;  // moments have no gaps: `state` goes on by itself
      } else {
        ranges_.push_back(range);
      }
      done += count;
    }
  }
}

// The one rank that holds a block's sum adds up its squares; then every rank adds the blocks in the
// order of the whole Inventory. Adding the zeros of the other ranks is exact.
absl::StatusOr<double> OptimizerStep::Norm(Ops& ops, const Parameters& parameters) const {
  std::vector<double> sums(num_blocks_, 0.0);
  SumBlockSquares(ops, parameters.gradient(), block_runs_, &BlockRun::gradient, sums);
  if (groups_.world != nullptr) {
    RETURN_IF_ERROR(Named(groups_.world->AllReduceSum(std::span(sums), groups_.limit),
                          "sum of the gradient's squares"));
  }
  double total = 0.0;
  for (const double sum : sums) total += sum;
  return std::sqrt(total);
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

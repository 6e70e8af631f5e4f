// Every buffer is in use from one moment of its rank to another. The moments are ends and starts of
// computing actions, because only there does an executor start receives and look for finished
// sends. A sweep over them finds the fullest.

#include "parallel/plan/boundary_bytes.h"

#include <algorithm>
#include <compare>

#include "absl/algorithm/container.h"

#include "parallel/plan/message_order.h"

namespace deepnet {
namespace {

// A buffer. Those that share one shape and type have a pool. A stack has two: of float32 streams
// and gradients of its rows, and of side inputs as they are read.
struct Lent {
  int pool = 0;
  int64_t bytes = 0;
};
Lent Stream(const BoundaryTensor& tensor) {
  return {2 * tensor.stack, ElementsOf(tensor.shape) * kFloatBytes};
}
Lent Side(const BoundaryTensor& tensor, int64_t bytes) { return {2 * tensor.stack + 1, bytes}; }

// Events between two computing actions, in this order.
enum Phase { kHandOver, kOffer, kRelease, kClaim };

struct Change {
  double time = 0;
  Phase phase = kHandOver;
  int64_t bytes = 0;  // that are in use from now on; < 0: not any more

  friend auto operator<=>(const Change&, const Change&) = default;
};

// When a rank took a pass, and where its result goes to another rank, when that needs memory.
struct Pass {
  double start = 0, end = 0;
  double offered = 0;  // the receiver offers memory from then on
  double gone = 0;     // until then it is in use on the sender
};

class Sweep {
 public:
  Sweep(const CutModel& model, const SimulatedStep& step)
      : model_(model),
        step_(step),
        num_microbatches_(NumMicrobatches(step.schedule)),
        forward_(model.placement.NumChunks(), std::vector<Pass>(num_microbatches_)),
        backward_(forward_),
        changes_(model.placement.NumRanks(),
                 std::vector<std::vector<Change>>(2 * model.inventory.stacks.size())) {
    for (const std::vector<TimedAction>& actions : step.simulation.timeline) {
      for (const auto& [action, start, end] : actions) {
        const auto& [op, chunk, mb] = action;
        if (op == Op::kForward) forward_[chunk][mb] = {start, end};
        if (IsInputPass(op)) backward_[chunk][mb] = {start, end};
      }
    }
  }

  // Follows the messages of every lane, one after the other, before AddCut.
  void AddPassages() {
    const Placement& placement = model_.placement;
    const Schedule schedule = WithSends(step_.schedule, placement);
    for (int to = 0; to < placement.NumRanks(); ++to) {
      int from = -1;
      double lane_free_at = 0;
      for (const LaneMessage& message : MessagesTo(to, schedule, placement, kLookAhead)) {
        if (message.from != from) lane_free_at = 0;
        from = message.from;
        const auto& [op, chunk, mb] = message.send;
        const bool forward = op == Op::kSendForward;
        const Link& link = step_.network.Between(from, to);
        Pass& pass = forward ? forward_[chunk][mb] : backward_[chunk][mb];
        pass.offered = EndOf(to, message.posted_behind);
        lane_free_at = std::max({lane_free_at, pass.offered, EndOf(from, message.sent_behind)}) +
                       static_cast<double>(forward ? BytesOf(model_.messages[chunk + 1].forward)
                                                   : BytesOf(model_.messages[chunk].backward)) /
                           link.bytes_per_second;
        pass.gone = SeenAt(from, lane_free_at + link.latency_seconds);
      }
    }
  }

  // Adds what begins inside a chunk: streams; the gradient of a side input behind its last reader;
  // with `keeps_side_inputs` those that the chunk makes.
  void AddInside(int chunk, int first, bool keeps_side_inputs) {
    const std::vector<Layer>& layers = model_.inventory.layers;
    const int last = static_cast<int>(layers.size()) - 1;
    for (int l = first; l < std::min(model_.chunk_ends[chunk], last); ++l) {
      const Layer &layer = layers[l], &next = layers[l + 1];
      const BoundaryTensor *stream = InputNamed(next, kHidden), *made = SideInput(next);
      const BoundaryTensor* side = SideInput(layer);
      const bool begins = stream != nullptr && InputNamed(layer, kHidden) == nullptr;
      for (int mb = 0; mb < num_microbatches_; ++mb) {
        const Pass &forward = forward_[chunk][mb], &backward = backward_[chunk][mb];
        if (begins) HoldOver(chunk, Stream(*stream), forward, forward);
        if (side != nullptr && made == nullptr) {
          HoldOver(chunk, Stream(*side), backward, backward);
        }
        if (made != nullptr && side == nullptr && keeps_side_inputs) {
          const int64_t bytes = ElementsOf(made->shape) * model_.operand_bytes;
          HoldOver(chunk, Side(*made, bytes), forward, backward);
        }
      }
    }
  }

  // Adds values and gradients at the cut before the chunk that begins with layer `first`.
  // `keeps_side_inputs`: the rank before it has them in any case.
  void AddCut(int chunk, int first, bool keeps_side_inputs) {
    const std::vector<BoundaryTensor>& messages = model_.messages[chunk].forward;
    for (const BoundaryTensor& tensor : model_.inventory.layers[first].inputs) {
      const auto sent = std::ranges::find(messages, tensor.name, &BoundaryTensor::name);
      for (int mb = 0; mb < num_microbatches_; ++mb) {
        const Pass &before = forward_[chunk - 1][mb], &backward = backward_[chunk][mb];
        if (tensor.name == kHidden) {
          Carry(Stream(tensor), chunk - 1, before, chunk, forward_[chunk][mb]);
        } else if (sent != messages.end()) {
          // Whoever reads it keeps it for the backward pass.
          const Lent side = Side(tensor, BytesOf(*sent));
          Hold(RankOf(chunk), side, {before.offered, kOffer}, {backward.end, kHandOver});
          if (!keeps_side_inputs) {
            Hold(RankOf(chunk - 1), side, {before.start, kClaim}, {before.gone, kRelease});
          }
        }
        if (!tensor.needs_gradient) continue;
        Carry(Stream(tensor), chunk, backward, chunk - 1, backward_[chunk - 1][mb]);
      }
    }
  }

  std::vector<int64_t> Most() {
    std::vector<int64_t> bytes;
    for (auto& pools : changes_) {
      int64_t& sum = bytes.emplace_back(0);
      for (std::vector<Change>& changes : pools) {
        absl::c_sort(changes);
        int64_t now = 0, most = 0;
        for (const Change& change : changes) most = std::max(most, now += change.bytes);
        sum += most;
      }
    }
    return bytes;
  }

 private:
  int RankOf(int chunk) const { return model_.placement.rank_of_chunk[chunk]; }

  void Hold(int rank, const Lent& buffer, const Change& from, const Change& until) {
    changes_[rank][buffer.pool].push_back({from.time, from.phase, buffer.bytes});
    changes_[rank][buffer.pool].push_back({until.time, until.phase, -buffer.bytes});
  }

  // In use on the rank of `chunk` from the start of one action to the end of another.
  void HoldOver(int chunk, const Lent& buffer, const Pass& first, const Pass& last) {
    Hold(RankOf(chunk), buffer, {first.start, kClaim}, {last.end, kHandOver});
  }

  // A `stream` or gradient that `maker` leaves and `user` takes over, on its rank or another.
  void Carry(const Lent& stream, int from_chunk, const Pass& maker, int to_chunk,
             const Pass& user) {
    const int from = RankOf(from_chunk), to = RankOf(to_chunk);
    const Change made{maker.end, kHandOver}, used{user.end, kHandOver};
    if (from == to) return Hold(from, stream, made, used);
    Hold(to, stream, {maker.offered, kOffer}, used);
    Hold(from, stream, made, {maker.gone, kRelease});
  }

  // When `rank` has taken `count` computing actions.
  double EndOf(int rank, int count) const {
    return count == 0 ? 0.0 : step_.simulation.timeline[rank][count - 1].end;
  }

  // When `rank`, between two actions, sees what happened at `time`.
  double SeenAt(int rank, double time) const {
    const std::vector<TimedAction>& actions = step_.simulation.timeline[rank];
    const auto next = std::ranges::lower_bound(actions, time, {}, &TimedAction::end);
    return next == actions.end() ? time : next->end;
  }

  const CutModel& model_;
  const SimulatedStep& step_;
  const int num_microbatches_;
  std::vector<std::vector<Pass>> forward_, backward_;      // [chunk][microbatch]
  std::vector<std::vector<std::vector<Change>>> changes_;  // [rank][pool]
};

}  // namespace

std::vector<int64_t> CountBoundaryBytes(const CutModel& model, const SimulatedStep& step) {
  const Placement& placement = model.placement;
  const std::vector<Layer>& layers = model.inventory.layers;
  const auto reads = [](const Layer& layer) { return SideInput(layer) != nullptr; };
  const auto first_reader = absl::c_find_if(layers, reads) - layers.begin();
  std::vector<bool> behind_side_input(placement.NumRanks(), false);
  for (int c = 0; c < placement.NumChunks(); ++c) {
    if (model.chunk_ends[c] > first_reader) behind_side_input[placement.rank_of_chunk[c]] = true;
  }
  Sweep sweep(model, step);
  sweep.AddPassages();
  for (int c = 0, first = 0; c < placement.NumChunks(); first = model.chunk_ends[c++]) {
    sweep.AddInside(c, first, behind_side_input[placement.rank_of_chunk[c]]);
    if (c > 0) sweep.AddCut(c, first, behind_side_input[placement.rank_of_chunk[c - 1]]);
  }
  return sweep.Most();
}

}  // namespace deepnet

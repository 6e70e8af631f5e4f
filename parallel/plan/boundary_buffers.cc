// Every buffer is in use from one moment of its rank to another. The moments are ends and starts of
// computing actions, because only there does an executor start receives and look for finished
// sends. A sweep over them finds the fullest.

#include "parallel/plan/boundary_buffers.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace deepnet {
namespace {

constexpr int64_t kFloatBytes = 4;

// Buffers that share one shape and type have a pool. A stack has two: of float32 streams and
// gradients of its rows, and of side inputs as they are read.
int ResidualPool(const BoundaryTensor& tensor) { return 2 * tensor.stack; }
int SidePool(const BoundaryTensor& tensor) { return 2 * tensor.stack + 1; }

// Events between two computing actions, in this order.
enum Phase { kHandOver, kOffer, kRelease, kClaim };

struct Change {
  double time = 0;
  Phase phase = kHandOver;
  int64_t bytes = 0;  // that are in use from now on; < 0: not any more

  friend bool operator<(const Change& a, const Change& b) {
    return std::tie(a.time, a.phase, a.bytes) < std::tie(b.time, b.phase, b.bytes);
  }
};

// When a rank took an action, and which one it was of those that compute.
struct Taken {
  double start = 0, end = 0;
  int index = 0;
};

bool IsInputPass(Op op) { return op == Op::kBackward || op == Op::kBackwardInput; }

int64_t FloatBytes(const BoundaryTensor& tensor) { return ElementsOf(tensor) * kFloatBytes; }

class Sweep {
 public:
  Sweep(const Inventory& inventory, const Placement& placement, const Simulation& simulation,
        const Network& network)
      : inventory_(inventory),
        placement_(placement),
        simulation_(simulation),
        network_(network),
        changes_(placement.NumRanks(),
                 std::vector<std::vector<Change>>(2 * inventory.stacks.size())) {
    for (const std::vector<TimedAction>& actions : simulation.timeline) {
      for (const TimedAction& timed : actions) {
        num_microbatches_ = std::max(num_microbatches_, timed.action.microbatch + 1);
      }
    }
    forward_.resize(static_cast<size_t>(placement.NumChunks()) * num_microbatches_);
    backward_ = forward_;
    for (const std::vector<TimedAction>& actions : simulation.timeline) {
      for (size_t i = 0; i < actions.size(); ++i) {
        const auto& [action, start, end] = actions[i];
        const Taken taken{start, end, static_cast<int>(i)};
        if (action.op == Op::kForward) forward_[Cell(action.chunk, action.microbatch)] = taken;
        if (IsInputPass(action.op)) backward_[Cell(action.chunk, action.microbatch)] = taken;
      }
    }
  }

  // Adds what begins inside a chunk: streams; the gradient of a side input behind its last reader;
  // with `keeps_side_inputs`, whose elements have `operand_bytes`, those that the chunk makes.
  void AddInside(int chunk, LayerSpan layers, bool keeps_side_inputs, int64_t operand_bytes) {
    const int last = static_cast<int>(inventory_.layers.size()) - 1;
    for (int l = layers.first; l < std::min(layers.end, last); ++l) {
      const Layer& layer = inventory_.layers[l];
      const Layer& next = inventory_.layers[l + 1];
      const BoundaryTensor *stream = InputNamed(next, kHidden), *made = SideInput(next);
      const BoundaryTensor* side = SideInput(layer);
      const bool begins = stream != nullptr && InputNamed(layer, kHidden) == nullptr;
      for (int mb = 0; mb < num_microbatches_; ++mb) {
        const Taken &forward = Forward(chunk, mb), &backward = Backward(chunk, mb);
        if (begins) HoldOver(chunk, ResidualPool(*stream), forward, forward, FloatBytes(*stream));
        if (side != nullptr && made == nullptr) {
          HoldOver(chunk, ResidualPool(*side), backward, backward, FloatBytes(*side));
        }
        if (made != nullptr && side == nullptr && keeps_side_inputs) {
          HoldOver(chunk, SidePool(*made), forward, backward, ElementsOf(*made) * operand_bytes);
        }
      }
    }
  }

  // Adds values and gradients at the cut before the chunk that begins with layer `first`.
  // `keeps_side_inputs`: the rank before it has them in any case.
  void AddCut(int chunk, int first, const StageMessages& messages, bool keeps_side_inputs) {
    for (const BoundaryTensor& tensor : inventory_.layers[first].inputs) {
      const auto sent =
          std::find_if(messages.forward.begin(), messages.forward.end(),
                       [&](const BoundaryTensor& other) { return other.name == tensor.name; });
      for (int mb = 0; mb < num_microbatches_; ++mb) {
        const Taken &before = Forward(chunk - 1, mb), &here = Forward(chunk, mb);
        if (tensor.name == kHidden) {
          Carry(tensor, chunk - 1, before, chunk, here, 0);
        } else if (sent != messages.forward.end()) {
          // Whoever reads it keeps it for the backward pass.
          const Change made{before.start, kClaim}, used{Backward(chunk, mb).end, kHandOver};
          Send(RankOf(chunk - 1), RankOf(chunk), SidePool(tensor), BytesOf(*sent), before, here, 0,
               used, keeps_side_inputs ? nullptr : &made);
        }
        if (tensor.needs_gradient) {
          Carry(tensor, chunk, Backward(chunk, mb), chunk - 1, Backward(chunk - 1, mb), before.end);
        }
      }
    }
  }

  std::vector<int64_t> Most() {
    std::vector<int64_t> bytes;
    for (auto& pools : changes_) {
      int64_t& sum = bytes.emplace_back(0);
      for (std::vector<Change>& changes : pools) {
        std::sort(changes.begin(), changes.end());
        int64_t now = 0, most = 0;
        for (const Change& change : changes) most = std::max(most, now += change.bytes);
        sum += most;
      }
    }
    return bytes;
  }

 private:
  size_t Cell(int chunk, int mb) const {
    return static_cast<size_t>(chunk) * num_microbatches_ + mb;
  }
  int RankOf(int chunk) const { return placement_.rank_of_chunk[chunk]; }
  const Taken& Forward(int chunk, int mb) const { return forward_[Cell(chunk, mb)]; }
  const Taken& Backward(int chunk, int mb) const { return backward_[Cell(chunk, mb)]; }

  void Hold(int rank, int pool, const Change& from, const Change& until, int64_t bytes) {
    changes_[rank][pool].push_back({from.time, from.phase, bytes});
    changes_[rank][pool].push_back({until.time, until.phase, -bytes});
  }

  // In use on the rank of `chunk` from the start of one action to the end of another.
  void HoldOver(int chunk, int pool, const Taken& first, const Taken& last, int64_t bytes) {
    Hold(RankOf(chunk), pool, {first.start, kClaim}, {last.end, kHandOver}, bytes);
  }

  // A stream or gradient that `maker` leaves and `user` takes over, on one rank or sent to another.
  void Carry(const BoundaryTensor& tensor, int from_chunk, const Taken& maker, int to_chunk,
             const Taken& user, double earliest) {
    const int from = RankOf(from_chunk), to = RankOf(to_chunk), pool = ResidualPool(tensor);
    const Change made{maker.end, kHandOver}, used{user.end, kHandOver};
    if (from == to) return Hold(from, pool, made, used, FloatBytes(tensor));
    Send(from, to, pool, FloatBytes(tensor), maker, user, earliest, used, &made);
  }

  // A message of `bytes` on both its ends: made by `maker` on `from`, needed by `user` on `to`,
  // which can offer memory from `earliest` on. `done`: when nobody on `to` needs the buffer any
  // more; `sent_from`: from when on it is in use on `from`, null if it is counted elsewhere.
  void Send(int from, int to, int pool, int64_t bytes, const Taken& maker, const Taken& user,
            double earliest, const Change& done, const Change* sent_from) {
    const int before = user.index - kLookAhead - 1;
    const double offered =
        before < 0 ? earliest : std::max(earliest, simulation_.timeline[to][before].end);
    Hold(to, pool, {offered, kOffer}, done, bytes);
    if (sent_from == nullptr) return;
    const Link& link = network_.Between(from, to);
    const double gone = std::max(maker.end, offered) + link.latency_seconds +
                        static_cast<double>(bytes) / link.bytes_per_second;
    Hold(from, pool, *sent_from, {SeenAt(from, gone), kRelease}, bytes);
  }

  // When `rank`, between two actions, sees what happened at `time`.
  double SeenAt(int rank, double time) const {
    const std::vector<TimedAction>& actions = simulation_.timeline[rank];
    const auto next = std::lower_bound(
        actions.begin(), actions.end(), time,
        [](const TimedAction& action, double value) { return action.end < value; });
    return next == actions.end() ? time : next->end;
  }

  const Inventory& inventory_;
  const Placement& placement_;
  const Simulation& simulation_;
  const Network& network_;
  int num_microbatches_ = 0;
  std::vector<Taken> forward_, backward_;                  // [chunk][microbatch]
  std::vector<std::vector<std::vector<Change>>> changes_;  // [rank][pool]
};

}  // namespace

std::vector<int64_t> BoundaryBufferBytes(const Inventory& inventory,
                                         std::span<const int> chunk_ends,
                                         const Placement& placement,
                                         std::span<const StageMessages> messages,
                                         int64_t operand_bytes, const Simulation& simulation,
                                         const Network& network) {
  const auto first_reader = static_cast<int>(
      std::find_if(inventory.layers.begin(), inventory.layers.end(),
                   [](const Layer& layer) { return SideInput(layer) != nullptr; }) -
      inventory.layers.begin());
  std::vector<bool> behind_side_input(placement.NumRanks(), false);
  for (int c = 0; c < placement.NumChunks(); ++c) {
    if (chunk_ends[c] > first_reader) behind_side_input[placement.rank_of_chunk[c]] = true;
  }
  Sweep sweep(inventory, placement, simulation, network);
  for (int c = 0, first = 0; c < placement.NumChunks(); first = chunk_ends[c++]) {
    sweep.AddInside(c, {first, chunk_ends[c]}, behind_side_input[placement.rank_of_chunk[c]],
                    operand_bytes);
    if (c == 0) continue;
    sweep.AddCut(c, first, messages[c], behind_side_input[placement.rank_of_chunk[c - 1]]);
  }
  return sweep.Most();
}

}  // namespace deepnet

// Every buffer is in use from one moment of its rank to another. The moments are ends and starts of
// computing actions, because only there does an executor start receives and look for finished
// sends. A sweep over them finds the fullest.

#include "parallel/plan/boundary_buffers.h"

#include <algorithm>
#include <string_view>
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

class Sweep {
 public:
  Sweep(const Placement& placement, int num_stacks, const Simulation& simulation,
        const Network& network)
      : placement_(placement),
        simulation_(simulation),
        network_(network),
        changes_(placement.NumRanks(), std::vector<std::vector<Change>>(2 * num_stacks)) {
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

  int num_microbatches() const { return num_microbatches_; }
  int RankOf(int chunk) const { return placement_.rank_of_chunk[chunk]; }
  const Taken& Forward(int chunk, int mb) const { return forward_[Cell(chunk, mb)]; }
  const Taken& Backward(int chunk, int mb) const { return backward_[Cell(chunk, mb)]; }

  void Hold(int rank, int pool, const Change& from, const Change& until, int64_t bytes) {
    changes_[rank][pool].push_back({from.time, from.phase, bytes});
    changes_[rank][pool].push_back({until.time, until.phase, -bytes});
  }

  // From when on `rank` offers memory to what its action `user` needs, at the earliest `earliest`.
  double OfferedAt(int rank, const Taken& user, double earliest) const {
    const int before = user.index - kLookAhead - 1;
    return before < 0 ? earliest : std::max(earliest, simulation_.timeline[rank][before].end);
  }

  // A message of `bytes` on both its ends: made by `maker` on `from`, needed by `user` on `to`,
  // which can offer memory from `earliest` on. `done`: when nobody on `to` needs the buffer any
  // more; `sent_from`: from when on it is in use on `from`, null if it is counted elsewhere.
  void Send(int from, int to, int pool, int64_t bytes, const Taken& maker, const Taken& user,
            double earliest, const Change& done, const Change* sent_from) {
    const double offered = OfferedAt(to, user, earliest);
    Hold(to, pool, {offered, kOffer}, done, bytes);
    if (sent_from == nullptr) return;
    const bool same_node = from / network_.ranks_per_node == to / network_.ranks_per_node;
    const Link& link = same_node ? network_.inside_node : network_.between_nodes;
    const double gone = std::max(maker.end, offered) + link.latency_seconds +
                        static_cast<double>(bytes) / link.bytes_per_second;
    Hold(from, pool, *sent_from, {SeenAt(from, gone), kRelease}, bytes);
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

  // When `rank`, between two actions, sees what happened at `time`.
  double SeenAt(int rank, double time) const {
    const std::vector<TimedAction>& actions = simulation_.timeline[rank];
    const auto next = std::lower_bound(
        actions.begin(), actions.end(), time,
        [](const TimedAction& action, double value) { return action.end < value; });
    return next == actions.end() ? time : next->end;
  }

  const Placement& placement_;
  const Simulation& simulation_;
  const Network& network_;
  int num_microbatches_ = 0;
  std::vector<Taken> forward_, backward_;                  // [chunk][microbatch]
  std::vector<std::vector<std::vector<Change>>> changes_;  // [rank][pool]
};

int64_t FloatBytes(const BoundaryTensor& tensor) { return ElementsOf(tensor) * kFloatBytes; }

// Returns the bytes of that tensor as it crosses; 0 if it does not.
int64_t CrossingBytes(const std::vector<BoundaryTensor>& tensors, std::string_view name) {
  for (const BoundaryTensor& tensor : tensors) {
    if (tensor.name == name) return BytesOf(tensor);
  }
  return 0;
}

// One chunk of a chain and what lies at the cut before it.
class ChunkBuffers {
 public:
  ChunkBuffers(const Inventory& inventory, int chunk, LayerSpan layers, Sweep& sweep)
      : inventory_(inventory), chunk_(chunk), layers_(layers), sweep_(sweep) {}

  // Streams that begin inside the chunk; the gradient of a side input behind its last reader.
  void AddStreams() {
    for (int l = layers_.first; l < layers_.end && l + 1 < NumLayers(); ++l) {
      const Layer& layer = inventory_.layers[l];
      const Layer& next = inventory_.layers[l + 1];
      const BoundaryTensor* stream = InputNamed(next, kHidden);
      const BoundaryTensor* side = SideInput(layer);
      const bool begins = stream != nullptr && InputNamed(layer, kHidden) == nullptr;
      const bool last_reader = side != nullptr && SideInput(next) == nullptr;
      for (int mb = 0; mb < sweep_.num_microbatches(); ++mb) {
        if (begins)
          HoldWhile(sweep_.Forward(chunk_, mb), ResidualPool(*stream), FloatBytes(*stream));
        if (last_reader) {
          HoldWhile(sweep_.Backward(chunk_, mb), ResidualPool(*side), FloatBytes(*side));
        }
      }
    }
  }

  // Side inputs that the chunk makes, where its rank reads them.
  void AddSideInputsForLater(int64_t operand_bytes) {
    for (int l = layers_.first; l < layers_.end && l + 1 < NumLayers(); ++l) {
      const BoundaryTensor* made = SideInput(inventory_.layers[l + 1]);
      if (made == nullptr || SideInput(inventory_.layers[l]) != nullptr) continue;
      for (int mb = 0; mb < sweep_.num_microbatches(); ++mb) {
        sweep_.Hold(here(), SidePool(*made), {sweep_.Forward(chunk_, mb).start, kClaim},
                    {sweep_.Backward(chunk_, mb).end, kHandOver},
                    ElementsOf(*made) * operand_bytes);
      }
    }
  }

  // Values and gradients at the cut before the chunk. `keeps_side_inputs`: the rank before it has
  // them in any case.
  void AddCut(const StageMessages& messages, bool keeps_side_inputs) {
    for (const BoundaryTensor& tensor : inventory_.layers[layers_.first].inputs) {
      const int64_t sent = CrossingBytes(messages.forward, tensor.name);
      for (int mb = 0; mb < sweep_.num_microbatches(); ++mb) {
        if (tensor.name == kHidden) {
          AddStreamForward(tensor, mb);
        } else if (sent > 0) {
          AddSideInputForward(SidePool(tensor), sent, keeps_side_inputs, mb);
        }
        if (tensor.needs_gradient) AddBackward(tensor, mb);
      }
    }
  }

 private:
  int NumLayers() const { return static_cast<int>(inventory_.layers.size()); }
  int here() const { return sweep_.RankOf(chunk_); }
  int before() const { return sweep_.RankOf(chunk_ - 1); }

  void HoldWhile(const Taken& taken, int pool, int64_t bytes) {
    sweep_.Hold(here(), pool, {taken.start, kClaim}, {taken.end, kHandOver}, bytes);
  }

  void AddStreamForward(const BoundaryTensor& stream, int mb) {
    const int pool = ResidualPool(stream);
    const int64_t bytes = FloatBytes(stream);
    const Taken& maker = sweep_.Forward(chunk_ - 1, mb);
    const Taken& user = sweep_.Forward(chunk_, mb);
    const Change made{maker.end, kHandOver}, used{user.end, kHandOver};
    if (here() == before()) return sweep_.Hold(here(), pool, made, used, bytes);
    sweep_.Send(before(), here(), pool, bytes, maker, user, 0, used, &made);
  }

  // Whoever reads it keeps it for the backward pass.
  void AddSideInputForward(int pool, int64_t bytes, bool kept_before, int mb) {
    const Taken& maker = sweep_.Forward(chunk_ - 1, mb);
    const Taken& user = sweep_.Forward(chunk_, mb);
    const Change made{maker.start, kClaim};
    sweep_.Send(before(), here(), pool, bytes, maker, user, 0,
                {sweep_.Backward(chunk_, mb).end, kHandOver}, kept_before ? nullptr : &made);
  }

  void AddBackward(const BoundaryTensor& tensor, int mb) {
    const int pool = ResidualPool(tensor);
    const int64_t bytes = FloatBytes(tensor);
    const Taken& maker = sweep_.Backward(chunk_, mb);
    const Taken& user = sweep_.Backward(chunk_ - 1, mb);
    const Change made{maker.end, kHandOver}, used{user.end, kHandOver};
    if (here() == before()) return sweep_.Hold(here(), pool, made, used, bytes);
    const double earliest = sweep_.Forward(chunk_ - 1, mb).end;
    sweep_.Send(here(), before(), pool, bytes, maker, user, earliest, used, &made);
  }

  const Inventory& inventory_;
  const int chunk_;
  const LayerSpan layers_;
  Sweep& sweep_;
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
  Sweep sweep(placement, static_cast<int>(inventory.stacks.size()), simulation, network);
  for (int c = 0, first = 0; c < placement.NumChunks(); first = chunk_ends[c++]) {
    ChunkBuffers chunk(inventory, c, {first, chunk_ends[c]}, sweep);
    chunk.AddStreams();
    if (behind_side_input[placement.rank_of_chunk[c]]) chunk.AddSideInputsForLater(operand_bytes);
    if (c > 0) chunk.AddCut(messages[c], behind_side_input[placement.rank_of_chunk[c - 1]]);
  }
  return sweep.Most();
}

}  // namespace deepnet

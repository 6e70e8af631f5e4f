#include "trainer/optim/gradient_sums.h"

#include <algorithm>
#include <deque>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"

#include "parallel/base/check.h"
#include "parallel/base/status_macros.h"
#include "trainer/kernels/aten.h"

namespace deepnet {
namespace {

// Returns x + y in the memory of whichever is `home`, else of x. Addition commutes, so the bits are
// the same in either case.
at::Tensor AddTwo(Ops& ops, const at::Tensor& x, const at::Tensor& y, const at::Tensor& home) {
  if (y.is_same(home)) {
    ops.Add(y, x);
    return y;
  }
  ops.Add(x, y);
  return x;
}

}  // namespace

void ReplicaTree::Push(Ops& ops, const at::Tensor& gradient) {
  if (free_.empty()) free_.push_back(at::empty_like(gradient));
  pending_.push_back({0, free_.back().copy_(gradient)});
  free_.pop_back();
  while (pending_.size() > 1 && pending_.back().height == pending_[pending_.size() - 2].height) {
    const Subtree right = pending_.back();
    pending_.pop_back();
    ops.Add(pending_.back().sum, right.sum);
    pending_.back().height++;
    free_.push_back(right.sum);
  }
}

// Every pending subtree is to the left of those after it, and addition commutes.
void ReplicaTree::PushLast(Ops& ops, const at::Tensor& gradient) {
  for (; !pending_.empty(); pending_.pop_back()) {
    ops.Add(gradient, pending_.back().sum);
    free_.push_back(pending_.back().sum);
  }
}

void ReplicaTree::Reset() {
  for (const Subtree& subtree : pending_) free_.push_back(subtree.sum);
  pending_.clear();
}

void AddParts(Ops& ops, const std::vector<at::Tensor>& parts, int home, GradientSum order) {
  std::vector<at::Tensor> level = parts;
  if (order == FAST) {
    for (size_t i = 1; i < level.size(); ++i) {
      level[0] = AddTwo(ops, level[0], level[i], parts[home]);
    }
    return;
  }
  while (level.size() > 1) {
    std::vector<at::Tensor> next;
    for (size_t i = 0; i + 1 < level.size(); i += 2) {
      next.push_back(AddTwo(ops, level[i], level[i + 1], parts[home]));
    }
    if (level.size() % 2 == 1) next.push_back(level.back());
    level = std::move(next);
  }
}

bool SumsOnTheWay(GradientSum order, const at::Tensor& gradient) {
  return order == FAST && !gradient.is_cpu();
}

// Reduce-scatter of pieces of a gradient over the replicas: each replica ends with the sum of its
// own share.
//
// Each replica sends every other one the share which that one sums, and adds what it receives in a
// fixed order: as many bytes as a ring reduce-scatter, (d_p - 1) / d_p of the piece. With two
// levels of groups, the replicas of a node do so first, and then those of all nodes with the same
// share.
//
// FAST on a GPU leaves the sum to the communicator (ReduceScatter): it adds on the way, and its
// order depends on the network. Shares of unequal size are first copied into equal blocks.
class HierarchicalReduceScatter {
 public:
  // `gradient` is the rank's whole buffer; `groups` has more than one replica.
  HierarchicalReduceScatter(Ops& ops, at::Tensor gradient, GradientSum order, const Groups& groups)
      : ops_(ops),
        gradient_(std::move(gradient)),
        order_(order),
        summed_on_the_way_(SumsOnTheWay(order, gradient_)),
        levels_(ExchangeLevels(groups)),
        limit_(groups.limit) {}

  // Starts to sum `piece`, which must live until Finish; may wait for earlier pieces. Nobody may
  // touch the piece's gradient until Finish. Collective: every replica starts the same pieces in
  // the same order.
  absl::Status Start(const GradientPiece& piece) {
    RETURN_IF_ERROR(LaunchNextLevels());
    while (waiting_ > kMaxWaiting) RETURN_IF_ERROR(FinishOldest());
    return Launch(piece, 0);
  }

  // Waits for all pieces and adds them. Other replicas' shares then hold no meaningful values.
  absl::Status Finish() {
    while (!in_flight_.empty()) RETURN_IF_ERROR(FinishOldest());
    return absl::OkStatus();
  }

  // Drops the pieces that are under way, after an error. From now on the sum of each piece is an
  // event of `trace`, which outlives this; null: of none.
  void Reset(RankTrace* trace) {
    in_flight_.clear();
    trace_ = trace;
    waiting_ = 0;
  }

 private:
  struct InFlight {
    const GradientPiece* piece = nullptr;
    size_t level = 0;
    at::Tensor own;       // this replica's share, in the gradient
    at::Tensor received;  // the other replicas' parts of it, or blocks to be summed
    int64_t received_elements = 0;
    std::vector<at::Tensor> parts;  // in the order of ranks, `own` among them
    at::Tensor sum;                 // where parts are not added here: their sum
    std::unique_ptr<Transfer> transfer;
    TraceSpan span;
  };

  absl::Status Launch(const GradientPiece& piece, size_t level) {
    Communicator& group = *levels_[level];
    const std::vector<int64_t> borders = LevelBorders(piece, levels_, level);
    std::vector<at::Tensor> shares;
    for (size_t r = 0; r + 1 < borders.size(); ++r) {
      shares.push_back(
          gradient_.narrow(0, piece.of.gradient + borders[r], borders[r + 1] - borders[r]));
    }
    const int64_t bytes = (borders.back() - borders.front()) * int64_t{sizeof(float)};
    InFlight flight{.piece = &piece, .level = level, .own = shares[group.rank()]};
    flight.span = {trace_, {.kind = TraceKind::kSum, .bytes = bytes}};
    ASSIGN_OR_RETURN(flight.transfer, summed_on_the_way_ ? LaunchSum(group, shares, flight)
                                                         : LaunchExchange(group, shares, flight));
    waiting_ += flight.received_elements;
    in_flight_.push_back(std::move(flight));
    return absl::OkStatus();
  }

  Communicator::TransferOr LaunchExchange(Communicator& group, std::span<const at::Tensor> shares,
                                          InFlight& flight) {
    const int64_t own = flight.own.numel();
    flight.received = AcquireBuffer((group.size() - 1) * own);
    std::vector<Buffer> send, receive;
    for (int r = 0; r < group.size(); ++r) {
      const bool self = r == group.rank();
      flight.parts.push_back(self ? flight.own
                                  : flight.received.narrow(0, flight.received_elements, own));
      if (!self) flight.received_elements += own;
      send.push_back(BufferOf(ops_, shares[r]));
      receive.push_back(BufferOf(ops_, flight.parts.back()));
    }
    return group.AllToAll(send, receive);
  }

  Communicator::TransferOr LaunchSum(Communicator& group, std::span<const at::Tensor> shares,
                                     InFlight& flight) {
    int64_t most = 0;
    for (const at::Tensor& share : shares) most = std::max(most, share.numel());
    if (absl::c_all_of(shares, [&](const at::Tensor& share) { return share.numel() == most; })) {
      flight.sum = flight.own;
      return group.ReduceScatter(BufferOf(
          ops_, gradient_.narrow(0, shares[0].storage_offset() - gradient_.storage_offset(),
                                 most * group.size())));
    }
    flight.received_elements = most * group.size();
    flight.received = AcquireBuffer(flight.received_elements);
    const at::Tensor blocks = flight.received.narrow(0, 0, flight.received_elements);
    for (int r = 0; r < group.size(); ++r) {
      blocks.narrow(0, r * most, shares[r].numel()).copy_(shares[r]);
    }
    flight.sum = blocks.narrow(0, group.rank() * most, flight.own.numel());
    return group.ReduceScatter(BufferOf(ops_, blocks));
  }

  absl::Status FinishOldest() {
    InFlight flight = std::move(in_flight_.front());
    in_flight_.pop_front();
    waiting_ -= flight.received_elements;
    RETURN_IF_ERROR(Named(flight.transfer->Wait(limit_), "sum of gradients over replicas"));
    if (!summed_on_the_way_) {
      AddParts(ops_, flight.parts, levels_[flight.level]->rank(), order_);
    } else if (!flight.sum.is_same(flight.own)) {
      flight.own.copy_(flight.sum);
    }
    flight.span.End();
    if (flight.received.defined()) free_.push_back(flight.received);
    if (flight.level + 1 == levels_.size()) return absl::OkStatus();
    return Launch(*flight.piece, flight.level + 1);
  }

  // Sends what a node's replicas have summed on to the other nodes as soon as it is there. The
  // oldest piece goes first, so that ranks start the same exchanges of a group in the same order.
  absl::Status LaunchNextLevels() {
    while (!in_flight_.empty() && in_flight_.front().level + 1 < levels_.size() &&
           in_flight_.front().transfer->Done()) {
      RETURN_IF_ERROR(FinishOldest());
    }
    return absl::OkStatus();
  }

  at::Tensor AcquireBuffer(int64_t elements) {
    for (size_t i = 0; i < free_.size(); ++i) {
      if (free_[i].numel() < elements) continue;
      at::Tensor taken = std::exchange(free_[i], free_.back());
      free_.pop_back();
      return taken;
    }
    return at::empty({elements}, gradient_.options());
  }

  Ops& ops_;
  at::Tensor gradient_;
  GradientSum order_;
  bool summed_on_the_way_;
  std::vector<Communicator*> levels_;
  absl::Duration limit_;
  std::vector<at::Tensor> free_;  // buffers to use again
  std::deque<InFlight> in_flight_;
  int64_t waiting_ = 0;  // elements of in_flight_
  RankTrace* trace_ = nullptr;
};

GradientSums::GradientSums(Ops& ops, Parameters& parameters, ShardLayout layout, Groups groups,
                           GradientSumsOptions options)
    : ops_(ops),
      parameters_(parameters),
      layout_(std::move(layout)),
      options_(options),
      trees_(layout_.buckets.size()),
      done_(layout_.buckets.size()),
      stages_(groups.stages),
      limit_(groups.limit) {
  const int stage = stages_ == nullptr ? 0 : stages_->rank();
  for (const TiedTensor& tensor : layout_.tied) {
    for (const TiedTensor::Use& use : tensor.uses) {
      DEEPNET_CHECK_EQ(use.stage == stage, use.gradient >= 0) << "stage " << use.stage;
    }
  }
  parameters.ShardMoments(layout_.StateElements());  // before a checkpoint is read into them
  const int num_replicas = groups.replicas == nullptr ? 1 : groups.replicas->size();
  DEEPNET_CHECK_EQ(num_replicas, layout_.num_replicas);
  if (num_replicas == 1) return;
  DEEPNET_CHECK_EQ(groups.replicas->rank(), layout_.replica);
  exchange_ = std::make_unique<HierarchicalReduceScatter>(ops, parameters.gradient(), options.order,
                                                          groups);
}

GradientSums::~GradientSums() = default;

void GradientSums::BeginStep() {
  if (exchange_ != nullptr) exchange_->Reset(trace_);
  for (ReplicaTree& tree : trees_) tree.Reset();
  done_.assign(done_.size(), 0);
  started_ = static_cast<int>(done_.size());
  parameters_.gradient().zero_();
}

absl::Status GradientSums::ReplicaDone(int bucket) {
  DEEPNET_CHECK_LT(done_[bucket], options_.local_replicas) << "bucket " << bucket;
  const bool last = ++done_[bucket] == options_.local_replicas;
  if (options_.order != FAST) {
    const GradientBucket& elements = layout_.buckets[bucket];
    const at::Tensor gradient = parameters_.gradient().narrow(0, elements.begin, elements.count);
    if (!last) {
      trees_[bucket].Push(ops_, gradient);
      gradient.zero_();
    } else {
      trees_[bucket].PushLast(ops_, gradient);
    }
  }
  if (!last || exchange_ == nullptr) return absl::OkStatus();
  while (started_ > 0 && done_[started_ - 1] == options_.local_replicas) {
    for (const GradientPiece& piece : layout_.pieces[--started_]) {
      RETURN_IF_ERROR(exchange_->Start(piece));
    }
  }
  return absl::OkStatus();
}

absl::Status GradientSums::Finish() {
  for (size_t b = 0; b < done_.size(); ++b) {
    DEEPNET_CHECK_EQ(done_[b], options_.local_replicas) << "bucket " << b;
  }
  if (exchange_ != nullptr) {
    const TraceSpan span(trace_, {.kind = TraceKind::kReduce});
    RETURN_IF_ERROR(exchange_->Finish());
  }
  const TraceSpan span(trace_, {.kind = TraceKind::kTied});
  for (const TiedTensor& tensor : layout_.tied) {
    for (const TiedTensor::Share& share : tensor.shares) {
      RETURN_IF_ERROR(FoldTied(tensor, share));
    }
  }
  return absl::OkStatus();
}

// Sums a share of a tied tensor over its uses in the order of the chain, (source + target) +
// output, into the place of the first use here. Every stage sends its uses to the other stages that
// have one, and each adds for itself.
absl::Status GradientSums::FoldTied(const TiedTensor& tensor, const TiedTensor::Share& share) {
  const at::Tensor& gradient = parameters_.gradient();
  std::vector<at::Tensor> uses;
  int home = -1;
  for (const TiedTensor::Use& use : tensor.uses) {
    const bool here = use.gradient >= 0;
    if (home < 0 && here) home = static_cast<int>(uses.size());
    uses.push_back(here ? gradient.narrow(0, use.gradient + share.begin, share.count)
                        : at::empty({share.count}, gradient.options()));
  }
  RETURN_IF_ERROR(ExchangeUses(tensor, uses));
  AddParts(ops_, uses, home, FAST);
  return absl::OkStatus();
}

// Sends each use to every stage that lacks it. The tag is the use's place in the order.
absl::Status GradientSums::ExchangeUses(const TiedTensor& tensor,
                                        std::span<const at::Tensor> uses) {
  std::set<int> others;
  for (const TiedTensor::Use& use : tensor.uses) {
    if (use.gradient < 0) others.insert(use.stage);
  }
  std::vector<std::unique_ptr<Transfer>> transfers;
  for (int u = 0; u < std::ssize(uses); ++u) {
    const Buffer buffer = BufferOf(ops_, uses[u]);
    if (tensor.uses[u].gradient < 0) {
      ASSIGN_OR_RETURN(transfers.emplace_back(), stages_->Receive(buffer, tensor.uses[u].stage, u));
      continue;
    }
    for (const int other : others) {
      ASSIGN_OR_RETURN(transfers.emplace_back(), stages_->Send(buffer, other, u));
    }
  }
  for (const auto& transfer : transfers) {
    RETURN_IF_ERROR(Named(transfer->Wait(limit_), "sum over the uses of a tied tensor"));
  }
  return absl::OkStatus();
}

}  // namespace deepnet

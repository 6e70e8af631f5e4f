#include "trainer/optim/gradient_exchange.h"

#include <utility>

#include <ATen/ATen.h>

#include "parallel/base/check.h"
#include "parallel/base/status_macros.h"
#include "trainer/optim/exchange_levels.h"

namespace deepnet {
namespace {

// x + y in the memory of whichever is `home`, else of x. Addition commutes, so the bits are those
// of x + y in either case.
at::Tensor AddTwo(Ops& ops, const at::Tensor& x, const at::Tensor& y, const at::Tensor& home) {
  if (y.is_same(home)) {
    ops.Add(y, x);
    return y;
  }
  ops.Add(x, y);
  return x;
}

}  // namespace

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

GradientExchange::GradientExchange(Ops& ops, at::Tensor gradient, GradientSum order,
                                   const Groups& groups)
    : ops_(ops),
      gradient_(std::move(gradient)),
      order_(order),
      levels_(ExchangeLevels(groups)),
      limit_(groups.limit) {}

absl::Status GradientExchange::Start(const Piece& piece) {
  RETURN_IF_ERROR(LaunchNextLevels());
  while (waiting_ > kMaxWaiting) RETURN_IF_ERROR(FinishOldest());
  return Launch(piece, 0);
}

// What a node's replicas have summed goes on to the other nodes now, not when all is finished. The
// oldest goes first, so that ranks start the same exchanges of a group in the same order.
absl::Status GradientExchange::LaunchNextLevels() {
  while (!in_flight_.empty() && in_flight_.front().level + 1 < levels_.size() &&
         in_flight_.front().transfer->Done()) {
    RETURN_IF_ERROR(FinishOldest());
  }
  return absl::OkStatus();
}

absl::Status GradientExchange::Launch(const Piece& piece, size_t level) {
  Communicator& group = *levels_[level];
  const std::vector<int64_t> borders = LevelBorders(piece, levels_, level);
  const auto share = [&](int rank) {
    return gradient_.narrow(0, piece.of.gradient + borders[rank],
                            borders[rank + 1] - borders[rank]);
  };
  const at::Tensor own = share(group.rank());
  InFlight flight{
      .piece = &piece, .level = level, .received = TakeBuffer((group.size() - 1) * own.numel())};
  std::vector<Buffer> send, receive;
  int64_t filled = 0;
  for (int r = 0; r < group.size(); ++r) {
    const bool self = r == group.rank();
    flight.parts.push_back(self ? own : flight.received.narrow(0, filled, own.numel()));
    if (!self) filled += own.numel();
    send.push_back(BufferOf(share(r)));
    receive.push_back(BufferOf(flight.parts.back()));
  }
  ASSIGN_OR_RETURN(flight.transfer, group.AllToAll(send, receive));
  flight.received_elements = filled;
  waiting_ += filled;
  in_flight_.push_back(std::move(flight));
  return absl::OkStatus();
}

absl::Status GradientExchange::FinishOldest() {
  InFlight flight = std::move(in_flight_.front());
  in_flight_.pop_front();
  waiting_ -= flight.received_elements;
  RETURN_IF_ERROR(Named(flight.transfer->Wait(limit_), "sum of gradients over replicas"));
  AddParts(ops_, flight.parts, levels_[flight.level]->rank(), order_);
  free_.push_back(flight.received);
  if (flight.level + 1 == levels_.size()) return absl::OkStatus();
  return Launch(*flight.piece, flight.level + 1);
}

absl::Status GradientExchange::Finish() {
  while (!in_flight_.empty()) RETURN_IF_ERROR(FinishOldest());
  return absl::OkStatus();
}

void GradientExchange::Reset() {
  in_flight_.clear();
  waiting_ = 0;
}

at::Tensor GradientExchange::TakeBuffer(int64_t elements) {
  for (size_t i = 0; i < free_.size(); ++i) {
    if (free_[i].numel() < elements) continue;
    at::Tensor taken = std::exchange(free_[i], free_.back());
    free_.pop_back();
    return taken;
  }
  return at::empty({elements}, gradient_.options());
}

}  // namespace deepnet

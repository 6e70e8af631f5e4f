#include "trainer/optim/gradient_exchange.h"

#include <utility>

#include <ATen/ATen.h>

#include "parallel/base/check.h"
#include "parallel/base/status_macros.h"
#include "trainer/optim/groups.h"

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
                                   Communicator& replicas)
    : ops_(ops), gradient_(std::move(gradient)), order_(order), replicas_(replicas) {}

absl::Status GradientExchange::Start(const Piece& piece) {
  if (in_flight_.size() >= kMaxInFlight) RETURN_IF_ERROR(FinishOldest());
  const int size = replicas_.size(), self = replicas_.rank();
  DEEPNET_CHECK_EQ(static_cast<int>(piece.cuts.size()), size + 1);
  const auto share = [&](int replica) {
    const int64_t begin = piece.cuts[replica];
    return gradient_.narrow(0, piece.of.gradient + begin, piece.cuts[replica + 1] - begin);
  };
  const at::Tensor own = share(self);
  InFlight flight{.received = TakeBuffer((size - 1) * own.numel())};
  std::vector<Buffer> send, receive;
  int64_t filled = 0;
  for (int r = 0; r < size; ++r) {
    flight.parts.push_back(r == self ? own : flight.received.narrow(0, filled, own.numel()));
    if (r != self) filled += own.numel();
    send.push_back(BufferOf(share(r)));
    receive.push_back(BufferOf(flight.parts.back()));
  }
  ASSIGN_OR_RETURN(flight.transfer, replicas_.AllToAll(send, receive));
  in_flight_.push_back(std::move(flight));
  return absl::OkStatus();
}

absl::Status GradientExchange::FinishOldest() {
  InFlight flight = std::move(in_flight_.front());
  in_flight_.pop_front();
  RETURN_IF_ERROR(flight.transfer->Wait());
  AddParts(ops_, flight.parts, replicas_.rank(), order_);
  free_.push_back(flight.received);
  return absl::OkStatus();
}

absl::Status GradientExchange::Finish() {
  while (!in_flight_.empty()) RETURN_IF_ERROR(FinishOldest());
  return absl::OkStatus();
}

void GradientExchange::Reset() { in_flight_.clear(); }

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

// Adds pieces of a gradient over the replicas: every replica ends with the sum of its own share.
//
// Each replica sends every other the share that the other adds up, and adds the parts it gets by
// itself, in an order that no network decides: as many bytes as a reduce-scatter over a ring,
// (d_p - 1) / d_p of the piece, without its rotating order.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include <ATen/core/Tensor.h>

#include "parallel/comm/communicator.h"
#include "parallel/plan/shard.h"
#include "proto/plan.pb.h"
#include "trainer/kernels/ops.h"

namespace deepnet {

// The sum of `parts`, which are overwritten; it ends in parts[home]. STRICT (or unspecified): a
// binary tree, ((0 + 1) + (2 + 3)) + ..., an odd one at the end of a level waiting for the next.
// FAST: from the first to the last.
void AddParts(Ops& ops, const std::vector<at::Tensor>& parts, int home, GradientSum order);

class GradientExchange {
 public:
  static constexpr int kMaxInFlight = 4;  // pieces; bounds what is received but not yet added

  // `gradient`: the rank's whole buffer. `replicas`: the group, of more than one rank.
  GradientExchange(Ops& ops, at::Tensor gradient, GradientSum order, Communicator& replicas);

  // Collective: every replica starts the same pieces in the same order. Returns while the piece is
  // under way, and may wait for earlier ones. Nobody touches the piece's gradient until Finish.
  absl::Status Start(const Piece& piece);
  // Waits for all and adds. Elements of other replicas' shares are then of no meaning.
  absl::Status Finish();
  // Gives up what is under way after an error.
  void Reset();

 private:
  struct InFlight {
    at::Tensor received;            // other replicas' parts of the own share
    std::vector<at::Tensor> parts;  // in the order of replicas; the own one lies in the gradient
    std::unique_ptr<Transfer> transfer;
  };

  absl::Status FinishOldest();
  at::Tensor TakeBuffer(int64_t elements);

  Ops& ops_;
  at::Tensor gradient_;
  GradientSum order_;
  Communicator& replicas_;
  std::vector<at::Tensor> free_;  // buffers to use again
  std::deque<InFlight> in_flight_;
};

}  // namespace deepnet

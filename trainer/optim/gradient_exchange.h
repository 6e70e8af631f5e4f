// Adds pieces of a gradient over the replicas: every replica ends with the sum of its own share.
//
// Each replica sends every other the share that the other adds up, and adds the parts it gets by
// itself, in an order that no network decides: as many bytes as a reduce-scatter over a ring,
// (d_p - 1) / d_p of the piece, without its rotating order. With two levels of groups a node's
// replicas do so first, and then each with those of other nodes that have the same part of the sum.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include <ATen/core/Tensor.h>

#include "parallel/plan/shard.h"
#include "proto/plan.pb.h"
#include "trainer/kernels/ops.h"
#include "trainer/optim/groups.h"

namespace deepnet {

// The sum of `parts`, which are overwritten; it ends in parts[home]. STRICT (or unspecified): a
// binary tree, ((0 + 1) + (2 + 3)) + ..., an odd one at the end of a level waiting for the next.
// FAST: from the first to the last.
void AddParts(Ops& ops, const std::vector<at::Tensor>& parts, int home, GradientSum order);

class GradientExchange {
 public:
  // Elements that are received and not yet added, 256 MiB of float32: beyond that Start waits.
  static constexpr int64_t kMaxWaiting = int64_t{64} << 20;

  // `gradient`: the rank's whole buffer. `groups`: of more than one replica.
  GradientExchange(Ops& ops, at::Tensor gradient, GradientSum order, const Groups& groups);

  // Collective: every replica starts the same pieces in the same order. Returns while the piece is
  // under way, and may wait for earlier ones. Nobody touches the piece's gradient until Finish;
  // `piece` lives as long.
  absl::Status Start(const Piece& piece);
  // Waits for all and adds. Elements of other replicas' shares are then of no meaning.
  absl::Status Finish();
  // Gives up what is under way after an error.
  void Reset();

 private:
  struct InFlight {
    const Piece* piece = nullptr;
    size_t level = 0;
    at::Tensor received;  // the others' parts of the own share
    int64_t received_elements = 0;
    std::vector<at::Tensor> parts;  // in the order of ranks; the own one lies in the gradient
    std::unique_ptr<Transfer> transfer;
  };

  absl::Status Launch(const Piece& piece, size_t level);
  absl::Status FinishOldest();
  absl::Status LaunchNextLevels();
  at::Tensor TakeBuffer(int64_t elements);

  Ops& ops_;
  at::Tensor gradient_;
  GradientSum order_;
  std::vector<Communicator*> levels_;
  absl::Duration limit_;
  std::vector<at::Tensor> free_;  // buffers to use again
  std::deque<InFlight> in_flight_;
  int64_t waiting_ = 0;  // elements of in_flight_
};

}  // namespace deepnet

// The group of one: collectives are no-ops, point to point is an error because there is no peer.
#pragma once

#include <memory>
#include <span>

#include "parallel/comm/communicator.h"

namespace deepnet {

class SelfCommunicator final : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }

  absl::StatusOr<std::unique_ptr<Transfer>> Send(Buffer buffer, int peer, int tag) override;
  absl::StatusOr<std::unique_ptr<Transfer>> Receive(Buffer buffer, int peer, int tag) override;

  absl::Status Barrier() override;
  absl::Status AllReduceSum(std::span<float> values) override;
  absl::Status AllReduceSum(std::span<double> values) override;
  absl::Status Broadcast(Buffer buffer, int root) override;
};

}  // namespace deepnet

// The group of one: collectives copy the own part, point to point is an error because there is no
// peer.
#pragma once

#include <memory>
#include <span>

#include "parallel/comm/communicator.h"

namespace deepnet {

class SelfCommunicator final : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }

  TransferOr Send(Buffer buffer, int peer, int tag) override;
  TransferOr Receive(Buffer buffer, int peer, int tag) override;
  TransferOr AllToAll(std::span<const Buffer> send, std::span<const Buffer> receive) override;
  TransferOr AllGather(Buffer mine, std::span<const Buffer> all) override;
  absl::StatusOr<std::unique_ptr<Communicator>> Split(int color, int key) override;

  // There is nobody to end: whoever called it is the job.
  void Abort(int) override {}
};

}  // namespace deepnet

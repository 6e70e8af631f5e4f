// A communicator in front of another one, for tests that watch, count or disturb its calls.
#pragma once

#include <memory>
#include <span>
#include <utility>

#include "parallel/comm/communicator.h"

namespace deepnet {

// Every call goes on to the other one, SendAll and ReceiveAll message by message. Classes override
// the calls that they care about.
class ForwardingCommunicator : public Communicator {
 public:
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }

  TransferOr Send(Buffer buffer, int peer, int tag) override {
    return inner_.Send(buffer, peer, tag);
  }
  TransferOr Receive(Buffer buffer, int peer, int tag) override {
    return inner_.Receive(buffer, peer, tag);
  }
  TransferOr AllToAll(std::span<const Buffer> send, std::span<const Buffer> receive) override {
    return inner_.AllToAll(send, receive);
  }
  TransferOr AllGather(Buffer mine, std::span<const Buffer> all) override {
    return inner_.AllGather(mine, all);
  }
  TransferOr ReduceScatter(Buffer blocks) override { return inner_.ReduceScatter(blocks); }
  absl::Status Connect(const Connections& connections, absl::Duration limit) override {
    return inner_.Connect(connections, limit);
  }
  // The part is a plain one of the inner communicator's.
  absl::StatusOr<std::unique_ptr<Communicator>> Split(int color, int key) override {
    return inner_.Split(color, key);
  }
  void Abort(int exit_code) override { inner_.Abort(exit_code); }

 protected:
  explicit ForwardingCommunicator(Communicator& inner) : inner_(inner) {}  // which outlives this
  explicit ForwardingCommunicator(std::unique_ptr<Communicator> owned)
      : owned_(std::move(owned)), inner_(*owned_) {}

  Communicator& inner() { return inner_; }

 private:
  const std::unique_ptr<Communicator> owned_;
  Communicator& inner_;
};

}  // namespace deepnet

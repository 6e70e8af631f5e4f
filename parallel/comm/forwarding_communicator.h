// A communicator in front of another one: every call goes on to it. What watches, counts or
// disturbs calls overrides those that it cares about.
#pragma once

#include <memory>
#include <span>
#include <utility>

#include "parallel/comm/communicator.h"

namespace deepnet {

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

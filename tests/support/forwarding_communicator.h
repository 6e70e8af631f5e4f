// A communicator in front of another one, for tests that watch, count or disturb its calls.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "parallel/base/status_macros.h"
#include "parallel/comm/communicator.h"

namespace deepnet {

// Every call goes on to the other one, messages one by one. Classes override the calls that they
// care about.
class ForwardingCommunicator : public Communicator {
 public:
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }

  TransferOr StartMessages(Direction direction, std::span<const Buffer> buffers, int peer,
                           int tag) override {
    std::vector<std::unique_ptr<Transfer>> parts;
    for (const Buffer& buffer : buffers) {
      ASSIGN_OR_RETURN(parts.emplace_back(), StartMessage(direction, buffer, peer, tag++));
    }
    return parts.size() == 1 ? std::move(parts[0]) : JoinTransfers("messages", std::move(parts));
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
  virtual TransferOr StartMessage(Direction direction, const Buffer& buffer, int peer, int tag) {
    return inner_.StartMessages(direction, std::span(&buffer, 1), peer, tag);
  }

  explicit ForwardingCommunicator(Communicator& inner) : inner_(inner) {}  // which outlives this
  explicit ForwardingCommunicator(std::unique_ptr<Communicator> owned)
      : owned_(std::move(owned)), inner_(*owned_) {}

  Communicator& inner() { return inner_; }

 private:
  const std::unique_ptr<Communicator> owned_;
  Communicator& inner_;
};

}  // namespace deepnet

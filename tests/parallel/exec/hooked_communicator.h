// A communicator whose messages a test can watch, drop or lose; everything else is the inner one's.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "parallel/comm/communicator.h"
#include "tests/support/forwarding_communicator.h"

namespace deepnet::testing {

enum class Fate {
  kPass,  // as it should be
  kDrop,  // a send that seems to succeed and never arrives
  kLose,  // a receive that finds its peer gone
};

class HookedCommunicator final : public ForwardingCommunicator {
 public:
  // Called for every message of this rank before it starts.
  using Hook = std::function<Fate(bool send, int peer, int tag)>;

  HookedCommunicator(Communicator& inner, Hook hook)
      : ForwardingCommunicator(inner), hook_(std::move(hook)) {}

 private:
  TransferOr StartMessage(Direction direction, const Buffer& buffer, int peer, int tag) override {
    const bool sends = direction == Direction::kSend;
    if (hook_(sends, peer, tag) == Fate::kPass) {
      return ForwardingCommunicator::StartMessage(direction, buffer, peer, tag);
    }
    return std::make_unique<Finished>(sends ? absl::OkStatus()
                                            : absl::UnavailableError("connection reset"));
  }

  class Finished final : public Transfer {
   public:
    explicit Finished(absl::Status status) : status_(std::move(status)) {}
    absl::Status Wait(absl::Duration) override { return status_; }
    bool Done() override { return true; }

   private:
    const absl::Status status_;
  };

  const Hook hook_;
};

}  // namespace deepnet::testing

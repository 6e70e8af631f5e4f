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

  TransferOr Send(Buffer buffer, int peer, int tag) override {
    if (hook_(true, peer, tag) == Fate::kPass) return inner().Send(buffer, peer, tag);
    return std::make_unique<Finished>(absl::OkStatus());
  }
  TransferOr Receive(Buffer buffer, int peer, int tag) override {
    if (hook_(false, peer, tag) == Fate::kPass) return inner().Receive(buffer, peer, tag);
    return std::make_unique<Finished>(absl::UnavailableError("connection reset"));
  }

 private:
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

// A communicator whose messages a test can watch, drop or lose; everything else is the inner one's.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "parallel/comm/communicator.h"

namespace deepnet::testing {

enum class Fate {
  kPass,  // as it should be
  kDrop,  // a send that seems to succeed and never arrives
  kLose,  // a receive that finds its peer gone
};

class HookedCommunicator final : public Communicator {
 public:
  // Called for every message of this rank before it starts.
  using Hook = std::function<Fate(bool send, int peer, int tag)>;

  HookedCommunicator(Communicator& inner, Hook hook) : inner_(inner), hook_(std::move(hook)) {}

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }

  TransferOr Send(Buffer buffer, int peer, int tag) override {
    if (hook_(true, peer, tag) == Fate::kPass) return inner_.Send(buffer, peer, tag);
    return std::make_unique<Finished>(absl::OkStatus());
  }
  TransferOr Receive(Buffer buffer, int peer, int tag) override {
    if (hook_(false, peer, tag) == Fate::kPass) return inner_.Receive(buffer, peer, tag);
    return std::make_unique<Finished>(absl::UnavailableError("connection reset"));
  }
  TransferOr AllToAll(std::span<const Buffer> send, std::span<const Buffer> receive) override {
    return inner_.AllToAll(send, receive);
  }
  TransferOr AllGather(Buffer mine, std::span<const Buffer> all) override {
    return inner_.AllGather(mine, all);
  }
  absl::StatusOr<std::unique_ptr<Communicator>> Split(int color, int key) override {
    return inner_.Split(color, key);
  }
  void Abort(int exit_code) override { inner_.Abort(exit_code); }

 private:
  class Finished final : public Transfer {
   public:
    explicit Finished(absl::Status status) : status_(std::move(status)) {}
    absl::Status Wait(absl::Duration) override { return status_; }
    bool Done() override { return true; }

   private:
    const absl::Status status_;
  };

  Communicator& inner_;
  const Hook hook_;
};

}  // namespace deepnet::testing

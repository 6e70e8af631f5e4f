// What a rank is at, for those who wait for it: words, and a count that moves while it gets on.
//
// Whoever does a rank's work beats: every action of a schedule, every call of a communicator, every
// call of the file system. parallel/exec/vigil.h tells all ranks of each other's.
//
// Example:
//   pulse.Begin("step 12");
//   pulse.Act("action 2F0");   // "step 12, action 2F0"; then its calls
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

#include "parallel/comm/forwarding_communicator.h"

namespace deepnet {

// All methods may be called by any thread.
class Pulse {
 public:
  struct State {
    int64_t beats = 0;
    bool waits = false;  // for other ranks
    std::string what;
  };

  // Something is done, by whatever thread: says nothing of whether the rank waits.
  void Beat() { ++beats_; }
  // A part of the run begins; a beat.
  void Begin(std::string phase);
  // So does something inside it; a beat.
  void Act(std::string action);
  // So does a call inside that; a beat.
  void Call(std::string call);
  // From now until GoOn or the next part, action or call, the rank waits for others in `call`.
  void Wait(std::string call);
  // They have come; a beat.
  void GoOn();

  State Read() const;

 private:
  std::atomic<int64_t> beats_{0};
  mutable absl::Mutex mutex_;
  std::string phase_ ABSL_GUARDED_BY(mutex_), action_ ABSL_GUARDED_BY(mutex_);
  std::string call_ ABSL_GUARDED_BY(mutex_);
  bool waits_ ABSL_GUARDED_BY(mutex_) = false;
};

// A communicator whose calls beat, the groups of which do so too. A wait that has not been
// successful is no beat. A transfer that is dropped after a Wait that ran out of time ends the job
// with ExitCode::kHang: giving it up would end it with another code.
class PulseCommunicator final : public ForwardingCommunicator {
 public:
  // Both outlive this and the groups that Split makes.
  PulseCommunicator(Communicator& inner, Pulse& pulse);
  PulseCommunicator(std::unique_ptr<Communicator> owned, Pulse& pulse);

  TransferOr Send(Buffer buffer, int peer, int tag) override;
  TransferOr Receive(Buffer buffer, int peer, int tag) override;
  TransferOr AllToAll(std::span<const Buffer> send, std::span<const Buffer> receive) override;
  TransferOr AllGather(Buffer mine, std::span<const Buffer> all) override;
  absl::StatusOr<std::unique_ptr<Communicator>> Split(int color, int key) override;

 private:
  class PulseTransfer;

  TransferOr Follow(TransferOr transfer, std::string call);
  void EndLate(const std::string& call);
  std::string OfPeer(const char* call, int peer) const;
  std::string OfAll(const char* call) const;

  Pulse& pulse_;
};

}  // namespace deepnet

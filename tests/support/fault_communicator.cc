#include "tests/support/fault_communicator.h"

#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "parallel/base/status_macros.h"

namespace deepnet {
namespace {

class LostSend final : public Transfer {
 public:
  absl::Status Wait(absl::Duration) override { return absl::OkStatus(); }
  bool Done() override { return true; }
};

}  // namespace

struct FaultCommunicator::State {
  const std::vector<Fault> faults;
  const std::function<void()> die;
  const std::thread::id thread = std::this_thread::get_id();

  std::mutex mutex;  // guards what follows
  int64_t num_calls = 0;
  bool drop_next_send = false;
  int64_t died_at = -1;

  // Before each call: counts it and lets happen what is due.
  absl::Status Enter(int rank) {
    if (std::this_thread::get_id() != thread) return absl::OkStatus();
    const std::lock_guard lock(mutex);
    const int64_t call = num_calls++;
    for (const Fault& fault : faults) {
      if (fault.at_call != call) continue;
      if (fault.kind == Fault::Kind::kDelay) absl::SleepFor(fault.delay);
      if (fault.kind == Fault::Kind::kDrop) drop_next_send = true;
      if (fault.kind == Fault::Kind::kDie) {
        died_at = call;
        die();
      }
    }
    if (died_at < 0) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat("rank ", rank, " died at call ", died_at));
  }

  bool TakeDrop() {
    if (std::this_thread::get_id() != thread) return false;
    const std::lock_guard lock(mutex);
    return std::exchange(drop_next_send, false);
  }
};

FaultCommunicator::FaultCommunicator(Communicator& inner, std::vector<Fault> faults,
                                     std::function<void()> die)
    : ForwardingCommunicator(inner), state_(new State{std::move(faults), std::move(die)}) {}

FaultCommunicator::FaultCommunicator(std::unique_ptr<Communicator> owned,
                                     std::shared_ptr<State> state)
    : ForwardingCommunicator(std::move(owned)), state_(std::move(state)) {}

int64_t FaultCommunicator::num_calls() const {
  const std::lock_guard lock(state_->mutex);
  return state_->num_calls;
}

Communicator::TransferOr FaultCommunicator::StartMessages(Direction direction,
                                                          std::span<const Buffer> buffers, int peer,
                                                          int tag) {
  RETURN_IF_ERROR(state_->Enter(rank()));
  if (direction == Direction::kSend && state_->TakeDrop()) return std::make_unique<LostSend>();
  return inner().StartMessages(direction, buffers, peer, tag);
}

absl::Status FaultCommunicator::Connect(const Connections& connections, absl::Duration limit) {
  RETURN_IF_ERROR(state_->Enter(rank()));
  return inner().Connect(connections, limit);
}

Communicator::TransferOr FaultCommunicator::AllToAll(std::span<const Buffer> send,
                                                     std::span<const Buffer> receive) {
  RETURN_IF_ERROR(state_->Enter(rank()));
  return inner().AllToAll(send, receive);
}

Communicator::TransferOr FaultCommunicator::AllGather(Buffer mine, std::span<const Buffer> all) {
  RETURN_IF_ERROR(state_->Enter(rank()));
  return inner().AllGather(mine, all);
}

Communicator::TransferOr FaultCommunicator::ReduceScatter(Buffer blocks) {
  RETURN_IF_ERROR(state_->Enter(rank()));
  return inner().ReduceScatter(blocks);
}

absl::StatusOr<std::unique_ptr<Communicator>> FaultCommunicator::Split(int color, int key) {
  RETURN_IF_ERROR(state_->Enter(rank()));
  ASSIGN_OR_RETURN(auto part, inner().Split(color, key));
  if (part == nullptr) return nullptr;
  return std::unique_ptr<Communicator>(new FaultCommunicator(std::move(part), state_));
}

}  // namespace deepnet

#include "parallel/comm/pulse.h"

#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"

#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"

namespace deepnet {

void Pulse::Begin(std::string phase) {
  const absl::MutexLock lock(&mutex_);
  phase_ = std::move(phase);
  action_.clear();
  call_.clear();
  waits_ = false;
  Beat();
}

void Pulse::Act(std::string action) {
  const absl::MutexLock lock(&mutex_);
  action_ = std::move(action);
  call_.clear();
  waits_ = false;
  Beat();
}

void Pulse::Call(std::string call) {
  const absl::MutexLock lock(&mutex_);
  call_ = std::move(call);
  waits_ = false;
  Beat();
}

void Pulse::Wait(std::string call) {
  const absl::MutexLock lock(&mutex_);
  call_ = std::move(call);
  waits_ = true;
}

void Pulse::GoOn() {
  const absl::MutexLock lock(&mutex_);
  waits_ = false;
  Beat();
}

Pulse::State Pulse::Read() const {
  const absl::MutexLock lock(&mutex_);
  std::string what = phase_;
  for (const std::string* const part : {&action_, &call_}) {
    if (!part->empty()) absl::StrAppend(&what, what.empty() ? "" : ", ", *part);
  }
  return {.beats = beats_, .waits = waits_, .what = std::move(what)};
}

class PulseCommunicator::PulseTransfer final : public Transfer {
 public:
  PulseTransfer(PulseCommunicator& comm, std::string call, std::unique_ptr<Transfer> inner)
      : comm_(comm), pulse_(comm.pulse_), call_(std::move(call)), inner_(std::move(inner)) {}

  ~PulseTransfer() override {
    if (late_) comm_.EndLate(call_);
  }

  absl::Status Wait(absl::Duration limit) override {
    if (!inner_->Done()) pulse_.Wait(call_);
    absl::Status status = inner_->Wait(limit);
    if (status.ok()) pulse_.GoOn();
    late_ = absl::IsDeadlineExceeded(status);
    return status;
  }
  bool Done() override { return inner_->Done(); }

 private:
  PulseCommunicator& comm_;
  Pulse& pulse_;
  const std::string call_;
  const std::unique_ptr<Transfer> inner_;
  bool late_ = false;  // the last Wait ran out of time
};

PulseCommunicator::PulseCommunicator(Communicator& inner, Pulse& pulse)
    : ForwardingCommunicator(inner), pulse_(pulse) {}

PulseCommunicator::PulseCommunicator(std::unique_ptr<Communicator> owned, Pulse& pulse)
    : ForwardingCommunicator(std::move(owned)), pulse_(pulse) {}

std::string PulseCommunicator::OfPeer(const char* call, int peer) const {
  return absl::StrCat(call, " rank ", peer, " of a group of ", size());
}

std::string PulseCommunicator::OfAll(const char* call) const {
  return absl::StrCat(call, " of ", size(), " ranks");
}

Communicator::TransferOr PulseCommunicator::Send(Buffer buffer, int peer, int tag) {
  std::string call = OfPeer("Send to", peer);
  pulse_.Call(call);
  return Follow(inner().Send(buffer, peer, tag), std::move(call));
}

Communicator::TransferOr PulseCommunicator::Receive(Buffer buffer, int peer, int tag) {
  std::string call = OfPeer("Receive from", peer);
  pulse_.Call(call);
  return Follow(inner().Receive(buffer, peer, tag), std::move(call));
}

Communicator::TransferOr PulseCommunicator::AllToAll(std::span<const Buffer> send,
                                                     std::span<const Buffer> receive) {
  std::string call = OfAll("AllToAll");
  pulse_.Call(call);
  return Follow(inner().AllToAll(send, receive), std::move(call));
}

Communicator::TransferOr PulseCommunicator::AllGather(Buffer mine, std::span<const Buffer> all) {
  std::string call = OfAll("AllGather");
  pulse_.Call(call);
  return Follow(inner().AllGather(mine, all), std::move(call));
}

// The call itself blocks for others, and cannot say for whom; that all have come is known before.
absl::StatusOr<std::unique_ptr<Communicator>> PulseCommunicator::Split(int color, int key) {
  RETURN_IF_ERROR(Barrier());
  pulse_.Wait(OfAll("Split"));
  ASSIGN_OR_RETURN(auto part, inner().Split(color, key));
  pulse_.GoOn();
  if (part == nullptr) return nullptr;
  return std::make_unique<PulseCommunicator>(std::move(part), pulse_);
}

Communicator::TransferOr PulseCommunicator::Follow(TransferOr transfer, std::string call) {
  if (!transfer.ok()) return transfer;
  return std::make_unique<PulseTransfer>(*this, std::move(call), *std::move(transfer));
}

void PulseCommunicator::EndLate(const std::string& call) {
  std::fprintf(stderr, "error: rank %d of %d, %s: %s: not finished in time\n", rank(), size(),
               pulse_.Read().what.c_str(), call.c_str());
  Abort(static_cast<int>(ExitCode::kHang));
}

}  // namespace deepnet

#include "parallel/comm/limited_communicator.h"

#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"

#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"

namespace deepnet {

class LimitedCommunicator::LimitedTransfer final : public Transfer {
 public:
  LimitedTransfer(LimitedCommunicator& comm, std::unique_ptr<Transfer> inner)
      : comm_(comm), action_(comm.action_), inner_(std::move(inner)) {}

  absl::Status Wait(absl::Duration limit) override {
    const bool unlimited = limit == absl::InfiniteDuration();
    absl::Status status = inner_->Wait(unlimited ? comm_.limit_.longest : limit);
    if (absl::IsDeadlineExceeded(status) && !unlimited) return status;
    return comm_.Checked(status, action_);
  }
  bool Done() override { return inner_->Done(); }

 private:
  LimitedCommunicator& comm_;
  const std::string action_;
  const std::unique_ptr<Transfer> inner_;
};

LimitedCommunicator::LimitedCommunicator(Communicator& inner, const WaitLimit& limit)
    : ForwardingCommunicator(inner), limit_(limit) {}

LimitedCommunicator::LimitedCommunicator(std::unique_ptr<Communicator> owned,
                                         const WaitLimit& limit)
    : ForwardingCommunicator(std::move(owned)), limit_(limit) {}

Communicator::TransferOr LimitedCommunicator::Send(Buffer buffer, int peer, int tag) {
  return Limit(inner().Send(buffer, peer, tag));
}

Communicator::TransferOr LimitedCommunicator::Receive(Buffer buffer, int peer, int tag) {
  return Limit(inner().Receive(buffer, peer, tag));
}

Communicator::TransferOr LimitedCommunicator::AllToAll(std::span<const Buffer> send,
                                                       std::span<const Buffer> receive) {
  return Limit(inner().AllToAll(send, receive));
}

Communicator::TransferOr LimitedCommunicator::AllGather(Buffer mine, std::span<const Buffer> all) {
  return Limit(inner().AllGather(mine, all));
}

Communicator::TransferOr LimitedCommunicator::Limit(TransferOr transfer) {
  if (!transfer.ok()) return Checked(transfer.status(), action_);
  return std::make_unique<LimitedTransfer>(*this, *std::move(transfer));
}

// The job ends before what is under way is dropped.
absl::Status LimitedCommunicator::Checked(const absl::Status& status, const std::string& action) {
  const bool late = absl::IsDeadlineExceeded(status);
  if (!late && !absl::IsUnavailable(status)) return status;
  const std::string text = absl::StrCat(
      "rank ", limit_.rank, ", ", action, ": ",
      late ? absl::StrCat("nothing has moved for ", absl::FormatDuration(limit_.longest),
                          " (parallel.step_timeout_seconds)")
           : "a peer is lost",
      ": ", status.message());
  absl::Status ended =
      WithExitCode(absl::Status(status.code(), text), late ? ExitCode::kHang : ExitCode::kPeerLost);
  std::fprintf(stderr, "error: %s\n", text.c_str());
  Abort(static_cast<int>(GetExitCode(ended)));
  return ended;
}

}  // namespace deepnet

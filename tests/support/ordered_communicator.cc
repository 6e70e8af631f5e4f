// Every message travels as two of the inner communicator's: its label, which is tag and size, and
// its bytes. Each kind has one tag there, so the inner communicator keeps both in order.
#include "tests/support/ordered_communicator.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

#include "parallel/base/status_macros.h"

namespace deepnet {
namespace {

using Message = MessageCommunicator::Message;

constexpr int kLabelTag = 0;
constexpr int kBytesTag = 1;

struct Label {
  int64_t tag = 0;
  int64_t bytes = 0;

  friend bool operator==(const Label&, const Label&) = default;
};

class OrderedTransfer final : public Transfer {
 public:
  explicit OrderedTransfer(const Message& message)
      : text_(message.Text()),
        stated_{message.tag, message.buffer.bytes},
        label_(message.sends() ? stated_ : Label()) {}

  absl::Status Start(Communicator& comm, const Message& message) {
    const Buffer label = Buffer::Of(std::span(&label_, 1));
    const auto start = [&](const Buffer& buffer, int tag) {
      return comm.StartMessages(message.direction, std::span(&buffer, 1), message.peer, tag);
    };
    ASSIGN_OR_RETURN(label_transfer_, start(label, kLabelTag));
    ASSIGN_OR_RETURN(bytes_transfer_, start(message.buffer, kBytesTag));
    return absl::OkStatus();
  }

  absl::Status Wait(absl::Duration limit) override {
    const absl::Time deadline = absl::Now() + limit;
    absl::Status status = label_transfer_->Wait(limit);
    if (status.ok()) {
      status = bytes_transfer_->Wait(std::max(deadline - absl::Now(), absl::ZeroDuration()));
    }
    if (absl::IsDeadlineExceeded(status)) {
      return absl::DeadlineExceededError(
          absl::StrCat(text_, ": not finished after ", absl::FormatDuration(limit)));
    }
    if (status.ok() ? label_ == stated_ : !absl::IsInvalidArgument(status)) return status;
    if (label_ == stated_)
      return absl::InvalidArgumentError(absl::StrCat(text_, ": refused by the receiver"));
    return absl::InvalidArgumentError(
        absl::StrCat(text_, ": the message that stands here in the sender's order has tag ",
                     label_.tag, ", ", label_.bytes, " B"));
  }

  bool Done() override { return label_transfer_->Done() && bytes_transfer_->Done(); }

 private:
  const std::string text_;
  const Label stated_;
  Label label_;  // the sender's
  std::unique_ptr<Transfer> label_transfer_, bytes_transfer_;
};

}  // namespace

Communicator::TransferOr OrderedCommunicator::StartMessage(Direction direction,
                                                           const Buffer& buffer, int peer,
                                                           int tag) {
  RETURN_IF_ERROR(CheckMessage(direction, *this, peer, tag));
  const Message message = {direction, buffer, peer, tag};
  auto transfer = std::make_unique<OrderedTransfer>(message);
  RETURN_IF_ERROR(transfer->Start(inner(), message));
  return transfer;
}

absl::StatusOr<std::unique_ptr<Communicator>> OrderedCommunicator::Split(int color, int key) {
  ASSIGN_OR_RETURN(auto part, inner().Split(color, key));
  if (part == nullptr) return nullptr;
  return std::unique_ptr<Communicator>(new OrderedCommunicator(std::move(part)));
}

}  // namespace deepnet

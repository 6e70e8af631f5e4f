#include "tests/support/counting_communicator.h"

#include <utility>

#include "absl/time/clock.h"

#include "parallel/base/status_macros.h"

namespace deepnet {
namespace {

class TimedTransfer final : public Transfer {
 public:
  TimedTransfer(std::unique_ptr<Transfer> inner, CommMeter& meter)
      : inner_(std::move(inner)), meter_(meter) {}

  absl::Status Wait(absl::Duration limit) override {
    const absl::Time begin = absl::Now();
    absl::Status status = inner_->Wait(limit);
    meter_.Add({.waited_seconds = absl::ToDoubleSeconds(absl::Now() - begin)});
    return status;
  }

  bool Done() override { return inner_->Done(); }

 private:
  const std::unique_ptr<Transfer> inner_;
  CommMeter& meter_;
};

}  // namespace

void CommMeter::Add(const CommCounts& counts) {
  const std::lock_guard lock(mutex_);
  counts_.sent_messages += counts.sent_messages;
  counts_.sent_bytes += counts.sent_bytes;
  counts_.received_bytes += counts.received_bytes;
  counts_.waited_seconds += counts.waited_seconds;
}

CommCounts CommMeter::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

CountingCommunicator::CountingCommunicator(std::unique_ptr<Communicator> owned, CommMeter& meter)
    : ForwardingCommunicator(std::move(owned)), meter_(meter) {}

Communicator::TransferOr CountingCommunicator::Counted(TransferOr transfer,
                                                       const CommCounts& counts) {
  RETURN_IF_ERROR(transfer.status());
  meter_.Add(counts);
  return std::make_unique<TimedTransfer>(*std::move(transfer), meter_);
}

Communicator::TransferOr CountingCommunicator::StartMessage(Direction direction,
                                                            const Buffer& buffer, int peer,
                                                            int tag) {
  return Counted(ForwardingCommunicator::StartMessage(direction, buffer, peer, tag),
                 direction == Direction::kSend
                     ? CommCounts{.sent_messages = 1, .sent_bytes = buffer.bytes}
                     : CommCounts{.received_bytes = buffer.bytes});
}

Communicator::TransferOr CountingCommunicator::AllToAll(std::span<const Buffer> send,
                                                        std::span<const Buffer> receive) {
  auto transfer = inner().AllToAll(send, receive);
  RETURN_IF_ERROR(transfer.status());
  CommCounts counts;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    counts.sent_messages += send[peer].bytes > 0;
    counts.sent_bytes += send[peer].bytes;
    counts.received_bytes += receive[peer].bytes;
  }
  return Counted(std::move(transfer), counts);
}

Communicator::TransferOr CountingCommunicator::AllGather(Buffer mine, std::span<const Buffer> all) {
  auto transfer = inner().AllGather(mine, all);
  RETURN_IF_ERROR(transfer.status());
  const int64_t num_peers = size() - 1;
  CommCounts counts = {.sent_messages = mine.bytes > 0 ? num_peers : 0,
                       .sent_bytes = mine.bytes * num_peers};
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank()) counts.received_bytes += all[peer].bytes;
  }
  return Counted(std::move(transfer), counts);
}

absl::StatusOr<std::unique_ptr<Communicator>> CountingCommunicator::Split(int color, int key) {
  ASSIGN_OR_RETURN(auto part, inner().Split(color, key));
  if (part == nullptr) return nullptr;
  return std::unique_ptr<Communicator>(new CountingCommunicator(std::move(part), meter_));
}

}  // namespace deepnet

// A communicator that counts what goes through another one, for tests that compare a run with its
// plan.
//
// Example:
//   CommMeter meter;
//   CountingCommunicator comm(world, meter);
//   RETURN_IF_ERROR(comm.AllReduceSum(gradient));
//   Report(meter.counts().sent_bytes);
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>

#include "parallel/comm/communicator.h"
#include "tests/support/forwarding_communicator.h"

namespace deepnet {

// Counts of one rank. Collectives count as the messages that this rank sends to others and receives
// from them; what stays on the rank counts nothing, nor does an empty part.
struct CommCounts {
  int64_t sent_messages = 0;
  int64_t sent_bytes = 0;
  int64_t received_bytes = 0;
  double waited_seconds = 0;  // inside of Transfer::Wait

  friend bool operator==(const CommCounts&, const CommCounts&) = default;
};

// Adds up the counts of several communicators, of several threads. Transfers count when they start.
class CommMeter {
 public:
  void Add(const CommCounts& counts);
  CommCounts counts() const;

 private:
  mutable std::mutex mutex_;
  CommCounts counts_;  // guarded by mutex_
};

class CountingCommunicator final : public ForwardingCommunicator {
 public:
  // Both outlive this, and all that Split makes, which counts into the same meter.
  CountingCommunicator(Communicator& inner, CommMeter& meter)
      : ForwardingCommunicator(inner), meter_(meter) {}

  TransferOr AllToAll(std::span<const Buffer> send, std::span<const Buffer> receive) override;
  TransferOr AllGather(Buffer mine, std::span<const Buffer> all) override;
  absl::StatusOr<std::unique_ptr<Communicator>> Split(int color, int key) override;

 private:
  CountingCommunicator(std::unique_ptr<Communicator> owned, CommMeter& meter);

  TransferOr StartMessage(Direction direction, const Buffer& buffer, int peer, int tag) override;
  TransferOr Counted(TransferOr transfer, const CommCounts& counts);

  CommMeter& meter_;
};

}  // namespace deepnet

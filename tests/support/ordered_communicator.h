// A communicator whose messages from one rank to another match strictly in the order in which each
// side started them, whatever their tags: what NCCL offers between two GPUs. For tests that must
// not lean on tags.
//
// A receive whose tag or size is not that of the message it meets ends with InvalidArgument, which
// names both. Everything else is the inner communicator's.
//
// Example:
//   OrderedCommunicator comm(world);
//   RETURN_IF_ERROR(RunSchedule(schedule, placement, stage, comm));
#pragma once

#include <memory>
#include <utility>

#include "absl/status/statusor.h"

#include "parallel/comm/communicator.h"
#include "tests/support/forwarding_communicator.h"

namespace deepnet {

class OrderedCommunicator final : public ForwardingCommunicator {
 public:
  // `inner` outlives this and all that Split makes. It carries no other messages between ranks.
  explicit OrderedCommunicator(Communicator& inner) : ForwardingCommunicator(inner) {}

  absl::StatusOr<std::unique_ptr<Communicator>> Split(int color, int key) override;

 private:
  TransferOr StartMessage(Direction direction, const Buffer& buffer, int peer, int tag) override;

  explicit OrderedCommunicator(std::unique_ptr<Communicator> owned)
      : ForwardingCommunicator(std::move(owned)) {}
};

}  // namespace deepnet

#include "parallel/comm/self_communicator.h"

#include "parallel/comm/collectives.h"

namespace deepnet {
namespace {

// Never called: nobody is left when the own part is copied.
Communicator::TransferOr NoMessage(Buffer, int, int) {
  return absl::InternalError("a message in a group of 1");
}

MessageGroup Alone() { return {0, 1, NoMessage, NoMessage}; }

}  // namespace

Communicator::TransferOr SelfCommunicator::Send(Buffer, int peer, int tag) {
  return CheckMessage("Send to", *this, peer, tag);
}

Communicator::TransferOr SelfCommunicator::Receive(Buffer, int peer, int tag) {
  return CheckMessage("Receive from", *this, peer, tag);
}

Communicator::TransferOr SelfCommunicator::AllToAll(std::span<const Buffer> send,
                                                    std::span<const Buffer> receive) {
  return AllToAllByMessages(Alone(), send, receive);
}

Communicator::TransferOr SelfCommunicator::AllGather(Buffer mine, std::span<const Buffer> all) {
  return AllGatherByMessages(Alone(), mine, all);
}

absl::StatusOr<std::unique_ptr<Communicator>> SelfCommunicator::Split(int color, int) {
  if (color == kNoGroup) return nullptr;
  return std::make_unique<SelfCommunicator>();
}

}  // namespace deepnet

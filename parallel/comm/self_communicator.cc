#include "parallel/comm/self_communicator.h"

#include "absl/strings/str_cat.h"

namespace deepnet {
namespace {

absl::Status NoPeer(const char* call, int peer, int tag) {
  return absl::InvalidArgumentError(absl::StrCat(call, " with peer ", peer, ", tag ", tag,
                                                 ": rank 0 is alone in its group of 1"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transfer>> SelfCommunicator::Send(Buffer, int peer, int tag) {
  return NoPeer("Send", peer, tag);
}

absl::StatusOr<std::unique_ptr<Transfer>> SelfCommunicator::Receive(Buffer, int peer, int tag) {
  return NoPeer("Receive", peer, tag);
}

absl::Status SelfCommunicator::Barrier() { return absl::OkStatus(); }

absl::Status SelfCommunicator::AllReduceSum(std::span<float>) { return absl::OkStatus(); }

absl::Status SelfCommunicator::AllReduceSum(std::span<double>) { return absl::OkStatus(); }

absl::Status SelfCommunicator::Broadcast(Buffer, int root) {
  if (root == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("Broadcast from root ", root, ": rank 0 is alone in its group of 1"));
}

}  // namespace deepnet

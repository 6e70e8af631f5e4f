// Collectives that are made of a communicator's messages or of its other collectives.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"

#include "parallel/comm/communicator.h"

namespace deepnet {

// The tag of the messages of a backend's collectives. Callers cannot name it.
inline constexpr int kCollectiveTag = Communicator::kNumTags;

// The part of a backend that the two functions below need: its rank, and how a message starts.
struct MessageGroup {
  using Start = absl::FunctionRef<Communicator::TransferOr(Buffer buffer, int peer, int tag)>;

  int rank;
  int size;
  Start send;     // without Communicator's check of the tag
  Start receive;  // likewise
};

// For backends: start Communicator::AllToAll and AllGather as one message per pair, none for 0
// bytes, all with kCollectiveTag. Peers are taken in the order rank + 1, rank + 2, ... so that not
// everybody sends to rank 0 first. InvalidArgument where buffers are too few or the own part
// differs in size.
Communicator::TransferOr AllToAllByMessages(const MessageGroup& group, std::span<const Buffer> send,
                                            std::span<const Buffer> receive);
Communicator::TransferOr AllGatherByMessages(const MessageGroup& group, Buffer mine,
                                             std::span<const Buffer> all);

// Joins several transfers into one, which is finished when all are, or with the first error that is
// seen, in front of which `name` is put.
std::unique_ptr<Transfer> JoinTransfers(std::string_view name,
                                        std::vector<std::unique_ptr<Transfer>> parts);

// For backends: check the arguments of Send and Receive. InvalidArgument names the call and its
// arguments; `call` is "Send to" or "Receive from".
absl::Status CheckMessage(std::string_view call, const Communicator& comm, int peer, int tag);
absl::Status CheckHostMemory(std::string_view call, const Buffer& buffer);

// Collective, blocking. Returns every rank's text (any bytes, any length) on every rank, in rank
// order.
absl::StatusOr<std::vector<std::string>> AllGatherText(Communicator& comm, std::string_view mine);

}  // namespace deepnet

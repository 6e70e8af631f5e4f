// The exchange of bytes between the ranks of a job: the one seam between this program and threads,
// TCP, MPI or NCCL.
//
// Contract, the same for every implementation (tests/parallel/comm/communicator_contract.h):
//   - A communicator is one rank's view of a group of `size()` ranks. One thread at a time uses it;
//     other threads may use communicators that Split made.
//   - Every call returns a Transfer at once or fails at once; the memory of its buffers belongs to
//     the communicator until that transfer is finished.
//   - Messages between two ranks with the same tag arrive in the order in which they were sent;
//     those with different tags are independent. Sender and receiver state the same byte count. A
//     send may finish only when the peer receives.
//   - Collectives: every rank of the group starts the same ones in the same order, with matching
//     sizes. Several may be under way at once, beside messages; none disturbs another.
//   - Sums are taken in rank order with the element type's own addition, ((r0 + r1) + r2) + ..., so
//     every rank ends with the same bits, on every backend. Only ReduceScatter leaves the order to
//     the backend.
//   - Errors are a Status that names the call and the peer: InvalidArgument for misuse, Unavailable
//     for a lost peer, DeadlineExceeded for one that did not come in time, Aborted after Abort,
//     with the exit code that the job ends with (parallel/base/exit_code.h).
//   - Dropping a transfer that is not finished gives the group up: later calls of this rank fail
//     with Aborted, and peers fail with Aborted or wait until their limit or the job's end. A rank
//     does that to leave on an error, and ends the job. Transfers are destroyed before their
//     communicator.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "parallel/base/status_macros.h"

namespace deepnet {

// The place of memory.
struct Device {
  enum class Kind { kHost, kCuda } kind = Kind::kHost;
  int index = 0;           // of the accelerator; 0 on the host
  void* stream = nullptr;  // the accelerator's queue in whose order the buffer is ready

  friend bool operator==(const Device&, const Device&) = default;
};

// A view of memory that somebody else owns. Not a tensor: bytes in a row.
struct Buffer {
  void* data = nullptr;  // may be null where bytes is 0
  int64_t bytes = 0;
  Device device;

  template <typename T>
  static Buffer Of(std::span<T> elements) {
    return {elements.data(), static_cast<int64_t>(elements.size_bytes()), {}};
  }
  Buffer Part(int64_t offset, int64_t part_bytes) const {
    return {static_cast<char*>(data) + offset, part_bytes, device};
  }
};

// A message or a collective under way. Used by the thread that uses its communicator.
class Transfer {
 public:
  virtual ~Transfer() = default;

  // Blocks until the buffers may be reused (sent) or read (received), without keeping a core busy.
  absl::Status Wait() { return Wait(absl::InfiniteDuration()); }

  // The same for at most `limit`. After DeadlineExceeded the transfer is still under way and can be
  // waited for again. Any other result is final and comes again when asked.
  virtual absl::Status Wait(absl::Duration limit) = 0;

  // Returns true if Wait would return at once. Does not block; asking makes nothing faster.
  virtual bool Done() = 0;
};

class Communicator {
 public:
  using TransferOr = absl::StatusOr<std::unique_ptr<Transfer>>;

  static constexpr int kNumTags = 32767;  // tags of messages are 0 <= tag < kNumTags
  static constexpr int kNoGroup = -1;     // a colour for Split

  // The transfers that a rank will ask for with device memory.
  struct Connections {
    std::vector<int> to, from;  // peers of messages
    bool all_to_all = false, all_gather = false, reduce_scatter = false;
    // Overwritten; as large as the largest collective will be, 32 B a rank at least.
    Buffer scratch;
  };

  virtual ~Communicator() = default;

  virtual int rank() const = 0;  // 0 <= rank < size
  virtual int size() const = 0;  // ranks of the group

  enum class Direction { kSend, kReceive };

  // Point to point. 0 <= peer < size, peer != rank (InvalidArgument otherwise).
  TransferOr Send(Buffer buffer, int peer, int tag) {
    return StartMessages(Direction::kSend, std::span(&buffer, 1), peer, tag);
  }
  TransferOr Receive(Buffer buffer, int peer, int tag) {
    return StartMessages(Direction::kReceive, std::span(&buffer, 1), peer, tag);
  }

  // Messages that start at once: the same as one Send or Receive for each buffer, with the tags
  // tag, tag + 1, ..., but one transfer. The sender's buffers are as many as the receiver's.
  virtual TransferOr StartMessages(Direction direction, std::span<const Buffer> buffers, int peer,
                                   int tag) = 0;

  // Collective, blocking. Connects device memory, before the first message or collective of any:
  // what `connections` of no call named fails with FailedPrecondition. Every rank states the
  // same collectives, and is named as a peer by those that it names. After an error
  // (InvalidArgument where the scratch memory is too small) the group is given up. Nothing to do
  // for host memory.
  virtual absl::Status Connect(const Connections& connections, absl::Duration limit);

  // Collective. send[r] goes to rank r, receive[r] comes from it; size() buffers each. Sizes may
  // differ from pair to pair, 0 included. The own part is copied; it may be one and the same
  // memory. Other buffers do not overlap.
  virtual TransferOr AllToAll(std::span<const Buffer> send, std::span<const Buffer> receive) = 0;

  // Collective. Rank r's `mine` arrives in every rank's all[r]; sizes may differ from rank to rank,
  // 0 included. all[rank()] may be `mine` itself. Other buffers do not overlap.
  virtual TransferOr AllGather(Buffer mine, std::span<const Buffer> all) = 0;

  // Collective, of device memory only. `blocks` are size() equal blocks of float32: rank r's block
  // r becomes the sum over the ranks of their blocks r, and the others hold no meaningful values.
  // The order of the sum is the backend's; it is the same in every call of equal size.
  virtual TransferOr ReduceScatter(Buffer blocks);

  // Collective, blocking. The ranks that gave the same colour (>= 0) form a group, ordered by (key,
  // rank here). kNoGroup: a member of none, and the result is null. A process splits one
  // communicator at a time, and all ranks theirs in the same order.
  virtual absl::StatusOr<std::unique_ptr<Communicator>> Split(int color, int key) = 0;

  // Ends every rank of the job, whatever group this is; called by any rank, at any time, from any
  // thread. Where ranks are processes it does not return, and `exit_code` becomes the job's. Where
  // they are threads it returns, and all pending and later calls of every rank fail with Aborted,
  // naming this rank (of the whole job) and the code.
  virtual void Abort(int exit_code) = 0;

  // Collectives that block, made of the calls above. After DeadlineExceeded the group is given up.
  absl::Status Barrier(absl::Duration limit = absl::InfiniteDuration());
  absl::Status AllReduceSum(std::span<float> values,
                            absl::Duration limit = absl::InfiniteDuration());
  absl::Status AllReduceSum(std::span<double> values,
                            absl::Duration limit = absl::InfiniteDuration());
};

// Ends the job of `comm` for `status`, which is not OK: prints "[rank/size] error: <message>" to
// stderr, unless it is Aborted (the rank that ended the job said why), and calls Abort with the
// exit code of `status`. Call it before transfers that are under way are dropped, because dropping
// them ends the job with another code. Any thread may call it.
void EndJob(Communicator& comm, const absl::Status& status);

// Waits for a transfer that has been started.
absl::Status Finish(const Communicator::TransferOr& transfer,
                    absl::Duration limit = absl::InfiniteDuration());

// Collective, blocking. Returns `mine` of every rank, whose bytes are its own wire form, by rank.
template <typename T>
absl::StatusOr<std::vector<T>> AllGatherValue(Communicator& comm, T mine) {
  std::vector<T> all(comm.size());
  std::vector<Buffer> buffers;
  for (T& value : all) buffers.push_back(Buffer::Of(std::span(&value, 1)));
  RETURN_IF_ERROR(Finish(comm.AllGather(Buffer::Of(std::span(&mine, 1)), buffers)));
  return all;
}

// A backend that moves messages of host memory. Its collectives are one message per pair, none for
// 0 bytes, in an order in which not everybody sends to rank 0 first.
class MessageCommunicator : public Communicator {
 public:
  struct Message {
    Direction direction;
    Buffer buffer;
    int peer;
    int tag;

    bool sends() const { return direction == Direction::kSend; }
    std::string Text() const;  // "Send to rank 1 with tag 2, 3 B"
  };

  TransferOr StartMessages(Direction direction, std::span<const Buffer> buffers, int peer,
                           int tag) final;
  TransferOr AllToAll(std::span<const Buffer> send, std::span<const Buffer> receive) final;
  TransferOr AllGather(Buffer mine, std::span<const Buffer> all) final;

 protected:
  // Starts a message whose arguments are checked. Those of collectives have the tag kNumTags, which
  // callers cannot name.
  virtual TransferOr Start(const Message& message) = 0;
  // Returns OK, or the reason for which `call` cannot be started any more.
  virtual absl::Status CheckAlive(const char* call) = 0;

  // The part of this group for which its members gave the same colour to Split.
  struct Part {
    std::vector<int> members;  // in the part's order; none for kNoGroup
    int rank = 0;              // of this rank among them
    uint64_t number = 0;       // the largest that any rank of this group named
  };
  // Collective, blocking.
  absl::StatusOr<Part> AgreeOnPart(int color, int key, uint64_t number = 0);

 private:
  TransferOr StartChecked(const Message& message);
  TransferOr Exchange(const char* call, std::span<const Buffer> send,
                      std::span<const Buffer> receive);
};

// Returns "Send to rank 1" or "Receive from rank 1".
std::string MessageText(Communicator::Direction direction, int peer);

// Checks the arguments of a message.
absl::Status CheckMessage(Communicator::Direction direction, const Communicator& comm, int peer,
                          int tag);

// Returns one transfer that ends when all of `parts` have. Its errors begin with `name`.
std::unique_ptr<Transfer> JoinTransfers(std::string name,
                                        std::vector<std::unique_ptr<Transfer>> parts);

// The group of one rank: collectives copy the own part, and messages have no peer.
class SelfCommunicator final : public MessageCommunicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  absl::StatusOr<std::unique_ptr<Communicator>> Split(int color, int key) override;

  // There is nobody to end: whoever called it is the job.
  void Abort(int) override {}

 private:
  TransferOr Start(const Message& message) override;
  absl::Status CheckAlive(const char*) override { return absl::OkStatus(); }
};

}  // namespace deepnet

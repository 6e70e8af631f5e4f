// How ranks of a job exchange bytes: the one seam between this program and threads, MPI or NCCL.
//
// Contract, the same for every implementation:
//   - A communicator is one rank's view of a group of `size()` ranks. It is used by one thread at a
//     time. All calls are made with host memory unless a Device says otherwise.
//   - Point to point: messages between two ranks with the same tag arrive in the order in which
//     they were sent; messages with different tags are independent. Sender and receiver state the
//     same byte count. Both calls return at once; the memory belongs to the communicator until
//     Wait(). A send may complete only when the peer receives.
//   - Collectives: every rank of the group calls the same ones, in the same order, with the same
//     count and type. They return when this rank's buffer is final. Sums are taken in rank order
//     with the element type's own addition, so every rank ends with the same bits.
//   - Errors are a Status that names the peer or rank and the call: InvalidArgument for misuse,
//     Unavailable for a lost peer, DeadlineExceeded for one that never came. After Unavailable or
//     DeadlineExceeded the communicator can only be destroyed.
//   - Destroying one with transfers in flight is a broken invariant (DEEPNET_CHECK).
//
// Example, a ring shift of 4 floats:
//   ASSIGN_OR_RETURN(auto sent, comm.Send(Buffer::Of(out), (comm.rank() + 1) % comm.size(), kTag));
//   ASSIGN_OR_RETURN(auto got, comm.Receive(Buffer::Of(in), previous, kTag));
//   RETURN_IF_ERROR(got->Wait());
//   RETURN_IF_ERROR(sent->Wait());
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace deepnet {

// Where memory lies.
struct Device {
  enum class Kind { kHost, kCuda } kind = Kind::kHost;
  int index = 0;           // of the accelerator; 0 on the host
  void* stream = nullptr;  // the accelerator's queue in whose order the buffer is ready

  friend bool operator==(const Device&, const Device&) = default;
};

// A view of memory that somebody else owns. Not a tensor: bytes in a row.
struct Buffer {
  void* data = nullptr;
  int64_t bytes = 0;
  Device device;

  template <typename T>
  static Buffer Of(std::span<T> elements) {
    return {elements.data(), static_cast<int64_t>(elements.size_bytes()), {}};
  }
};

// A transfer under way.
class Transfer {
 public:
  virtual ~Transfer() = default;

  // Blocks until the buffer may be reused (send) or read (receive). Called exactly once.
  virtual absl::Status Wait() = 0;
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;  // 0 <= rank < size
  virtual int size() const = 0;  // ranks of the group

  // Point to point. 0 <= peer < size, peer != rank (InvalidArgument otherwise); 0 <= tag < 32768.
  virtual absl::StatusOr<std::unique_ptr<Transfer>> Send(Buffer buffer, int peer, int tag) = 0;
  virtual absl::StatusOr<std::unique_ptr<Transfer>> Receive(Buffer buffer, int peer, int tag) = 0;

  // Collectives.
  virtual absl::Status Barrier() = 0;
  virtual absl::Status AllReduceSum(std::span<float> values) = 0;
  virtual absl::Status AllReduceSum(std::span<double> values) = 0;
  virtual absl::Status Broadcast(Buffer buffer, int root) = 0;  // root's bytes reach every rank
};

}  // namespace deepnet

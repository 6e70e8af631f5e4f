// Measures the ways between ranks before a run.
//
// Everything here is collective and states its limits. A way over which nothing comes in time ends
// the job (EndJob) with an error that names both ranks: FailedPrecondition, ExitCode::kPreflight.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "parallel/base/clock.h"
#include "parallel/comm/communicator.h"

namespace deepnet {

// Returns how far each rank's `clock`, in seconds, is ahead of rank 0's: taken at the shortest of
// some round trips, so it is wrong by at most half of that one.
absl::StatusOr<std::vector<double>> ClockOffsets(Communicator& comm,
                                                 const std::function<double()>& clock = SecondsNow,
                                                 absl::Duration limit = absl::InfiniteDuration());

// Exchanges a few bytes with every other rank. An error names the ranks that were not heard of
// within `limit`.
absl::Status CheckReachable(Communicator& comm, absl::Duration limit);

// Memory that messages go from and to, as float32: of the host, or of a device.
class LinkMemory {
 public:
  virtual ~LinkMemory() = default;
  virtual Buffer buffer() = 0;  // of all numbers
  virtual void Write(std::span<const float> values) = 0;
  virtual void Read(std::span<float> values) = 0;
};
using MakeLinkMemory = std::function<std::unique_ptr<LinkMemory>(int64_t floats)>;

std::unique_ptr<LinkMemory> MakeHostLinkMemory(int64_t floats);

struct LinkOptions {
  MakeLinkMemory memory = MakeHostLinkMemory;
  int64_t rate_bytes = int64_t{8} << 20;  // of the messages that rates are measured with
  // The messages whose numbers are checked; at least one number of each rank.
  std::vector<int64_t> checked_bytes = {int64_t{4} << 10, int64_t{256} << 10, int64_t{4} << 20};
  absl::Duration limit = absl::Seconds(10);  // of one message
};

// One direction of a way. Seconds of the smallest message, and bytes a second of a long one, the
// best of a few.
struct LinkRate {
  int from = 0, to = 0;
  double latency_seconds = 0.0;
  double bytes_per_second = 0.0;
};

// Measures both directions of every one of `pairs`, which are the same on all ranks. Pairs without
// a common rank are measured at the same time. Every rank gets all rates, in the order of `pairs`.
absl::StatusOr<std::vector<LinkRate>> MeasureLinks(Communicator& comm,
                                                   std::span<const std::pair<int, int>> pairs,
                                                   const LinkOptions& options);

// Numbers that a kind of message or collective got wrong.
struct LinkCheck {
  std::string name;   // "ring of 4 KiB"
  int64_t wrong = 0;  // numbers that differ from the host's
};

// Sends whole numbers around the ring of all ranks and through the collectives that gradients use,
// in messages of three sizes, and compares every one with what the host says it must be; sums too
// are exact. Returns what this rank saw.
absl::StatusOr<std::vector<LinkCheck>> CheckMessages(Communicator& comm,
                                                     const LinkOptions& options);

// Connects the memory of devices for the two functions above.
absl::Status ConnectLinks(Communicator& comm, std::span<const std::pair<int, int>> pairs,
                          const LinkOptions& options);

}  // namespace deepnet

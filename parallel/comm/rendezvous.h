// How processes that know only their rank and their number find each other: each leaves a text
// about itself in a store that all can reach, and gets everybody's. Then they connect by TCP.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "parallel/base/fd_stream.h"

namespace deepnet {

// Keys and values that all processes of a job see: a server on one host, or a file that all share.
// Errors are Unavailable where the store is gone.
class RendezvousStore {
 public:
  virtual ~RendezvousStore() = default;

  // "h1:29500 (MASTER_ADDR, MASTER_PORT)", for errors.
  virtual std::string Place() const = 0;

  virtual absl::Status Set(const std::string& key, const std::string& value) = 0;
  // Waits for the key to be set; DeadlineExceeded after `limit`.
  virtual absl::StatusOr<std::string> Get(const std::string& key, absl::Duration limit) = 0;
  // Adds to a counter that begins with 0 and returns the sum.
  virtual absl::StatusOr<int64_t> Add(const std::string& key, int64_t amount) = 0;
  virtual absl::Status Delete(const std::string& key) = 0;
};

// Told for whom a process waits, once it has waited kSayWaitingAfter and every minute from then on:
// "ranks 2, 3 of 4 at h1:29500".
using SayWaiting = std::function<void(const std::string& whom)>;
inline constexpr absl::Duration kSayWaitingAfter = absl::Seconds(1);

// How a process joins a job of TCP connections.
struct TcpOptions {
  int rank = 0;  // 0 <= rank < size
  int size = 1;
  std::shared_ptr<RendezvousStore> store;    // let go when all ranks are connected
  absl::Duration limit = absl::Minutes(10);  // for all ranks to come and to connect
  SayWaiting say = {};                       // told for whom this rank waits
  std::string interface = {};  // of the network, "eth0"; empty: the one that leads to `toward`,
                               // then every other that is up
  std::string toward = {};     // a host's name or address; may be empty
  std::string secret = {};     // of the job: no process counts that does not prove to know it
  std::function<void(const std::string&)> refused = {};  // hears of connections without the secret
};

// Collective over `size` processes. Returns every rank's `mine`, which begins with what errors call
// the process ("h3 process 77"). FailedPrecondition (ExitCode::kPreflight) within `limit` and,
// while the store is there, on every rank: where a rank does not come, two processes are one rank,
// ranks do not agree on `size`, or the store is gone.
absl::StatusOr<std::vector<std::string>> Meet(const TcpOptions& options, const std::string& mine);

// Ends a rendezvous for all: those in Meet or CheckRendezvous fail with `error`. Returns `error`,
// or the one that was there before. Rank 0, in whose process the store may lie, stays for a moment
// until the others have heard it.
absl::Status FailRendezvous(const TcpOptions& options, const absl::Status& error);

// Returns the error of FailRendezvous, where some rank has called it.
absl::Status CheckRendezvous(RendezvousStore& store);

// Removes what Meet left, when nobody reads it any more: the next job may use the same store.
void EndRendezvous(const TcpOptions& options);

// A connection to every other rank, not blocking, at the index of its rank.
struct Mesh {
  std::vector<Descriptor> sockets;
  std::vector<std::string> hosts;  // by rank, for errors
};

// Returns what rank `rank` leaves at the rendezvous: `text` and, behind a tab, a proof that it
// knows the job's secret, HMAC-SHA256 in hexadecimal digits.
std::string ProvedPlace(int rank, const std::string& text, const std::string& secret);

// Collective over the processes of `options`; whoever else connects meanwhile costs no time.
// FailedPrecondition (ExitCode::kPreflight) as MakeTcpCommunicator (backends.h).
absl::StatusOr<Mesh> ConnectAll(const TcpOptions& options);

}  // namespace deepnet

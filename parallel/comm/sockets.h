// Connects the processes of a job with each other by TCP.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "parallel/base/descriptor.h"
#include "parallel/comm/rendezvous.h"

namespace deepnet {

// A connection to every other rank, not blocking, at the index of its rank.
struct Mesh {
  std::vector<Descriptor> sockets;
  std::vector<std::string> hosts;  // by rank, for errors
};

// Returns what rank `rank` leaves at the rendezvous: `text` and, behind a tab, a proof that it
// knows the job's secret, HMAC-SHA256 in hexadecimal digits.
std::string ProvedPlace(int rank, const std::string& text, const std::string& secret);

// Collective over the processes of `options`; whoever else connects meanwhile costs no time.
// FailedPrecondition (ExitCode::kPreflight) as MakeTcpCommunicator.
absl::StatusOr<Mesh> ConnectAll(const TcpOptions& options);

}  // namespace deepnet

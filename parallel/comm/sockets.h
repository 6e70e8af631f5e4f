// Connects the processes of a job with each other by TCP.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

#include "parallel/comm/tcp_options.h"

namespace deepnet {

// A file descriptor that is closed with its owner; -1: none.
class Socket {
 public:
  explicit Socket(int fd = -1) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket();

  int fd() const { return fd_; }

 private:
  int fd_;
};

// A connection to every other rank, not blocking, at the index of its rank.
struct Mesh {
  std::vector<Socket> sockets;
  std::vector<std::string> hosts;  // by rank, for errors
};

// Returns what rank `rank` leaves for the others at the rendezvous: `text`, which it says of
// itself, with a proof that it knows the job's secret, HMAC-SHA256 in hexadecimal digits, behind a
// tab.
std::string ProvedPlace(int rank, const std::string& text, const std::string& secret);

// Collective over the processes of `options`; whoever else connects meanwhile costs no time.
// FailedPrecondition (ExitCode::kPreflight) as TcpJob::Start.
absl::StatusOr<Mesh> ConnectAll(const TcpOptions& options);

}  // namespace deepnet

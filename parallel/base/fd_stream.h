// File descriptors with an owner, and streams over them that, unlike the standard library's, know
// why they ended: an error is not the end of the input, and what was written has arrived or its
// status says why not.
#pragma once

#include <unistd.h>

#include <iostream>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace deepnet {

// A file descriptor that is closed with its owner; -1: none.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(other.Release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }

  int fd() const { return fd_; }
  bool ok() const { return fd_ >= 0; }
  int Release() { return std::exchange(fd_, -1); }  // to the caller

 private:
  int fd_;
};

// Reads or writes, with a buffer of its own. Waits where the descriptor does not (O_NONBLOCK).
// Writes to a terminal line by line, elsewhere when the buffer is full, at flush() and at the end.
// Used by one thread at a time.
class FdStream final : public std::iostream {
 public:
  // Closes the descriptor at its end if it is `owned`.
  explicit FdStream(int fd, bool owned = false);
  ~FdStream() override;

  // Opens a file or a pipe for reading. NotFound and the like name the path.
  static absl::StatusOr<std::unique_ptr<FdStream>> Open(const std::string& path);

 private:
  friend absl::Status StreamError(const std::ios& stream);
  class Buffer;

  const std::unique_ptr<Buffer> buffer_;
};

// Returns what ended `stream`: OK where no call failed, so that the end of the input is its end,
// else "cannot be read: Input/output error", of which the caller names the stream. Other streams
// only say that they are bad. Carries ExitCode::kData.
absl::Status StreamError(const std::ios& stream);

// Opens what is closed of the descriptors 0, 1 and 2, so that no other file gets their numbers and
// with it what is meant for people. Reading and writing them fails as it did.
void KeepStandardDescriptors();

}  // namespace deepnet

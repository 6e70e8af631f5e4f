#include "parallel/base/fd_stream.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <string_view>

#include "absl/strings/str_cat.h"

#include "parallel/base/exit_code.h"

namespace deepnet {

class FdStream::Buffer final : public std::streambuf {
 public:
  Buffer(int fd, bool owned) : fd_(fd), owned_(owned), by_line_(isatty(fd) == 1) {}
  ~Buffer() override {
    sync();
    if (owned_) close(fd_);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  const absl::Status& status() const { return status_; }

 protected:
  int_type underflow() override {
    if (!status_.ok()) return traits_type::eof();
    input_.resize(kInputBytes);
    const ssize_t bytes = Call(POLLIN, "cannot be read",
                               [this] { return ::read(fd_, input_.data(), input_.size()); });
    if (bytes <= 0) return traits_type::eof();
    setg(input_.data(), input_.data(), input_.data() + bytes);
    return traits_type::to_int_type(*gptr());
  }

  int_type overflow(int_type c) override {
    if (c == traits_type::eof()) return traits_type::not_eof(c);
    const char byte = traits_type::to_char_type(c);
    return xsputn(&byte, 1) == 1 ? c : traits_type::eof();
  }

  std::streamsize xsputn(const char* bytes, std::streamsize count) override {
    if (!status_.ok()) return 0;
    const std::string_view text(bytes, static_cast<size_t>(count));
    output_ += text;
    const bool due =
        output_.size() >= kOutputBytes || (by_line_ && text.find('\n') != std::string_view::npos);
    return due && sync() != 0 ? 0 : count;
  }

  int sync() override {
    size_t done = 0;
    while (status_.ok() && done < output_.size()) {
      const ssize_t bytes = Call(POLLOUT, "cannot be written", [&] {
        return ::write(fd_, output_.data() + done, output_.size() - done);
      });
      if (bytes > 0) done += static_cast<size_t>(bytes);
    }
    output_.clear();
    return status_.ok() ? 0 : -1;
  }

 private:
  static constexpr size_t kInputBytes = size_t{1} << 13;
  static constexpr size_t kOutputBytes = size_t{1} << 16;

  // Calls until it is done or fails for good.
  template <typename Work>
  ssize_t Call(int16_t wanted, const char* what, Work work) {
    while (true) {
      const ssize_t result = TEMP_FAILURE_RETRY(work());
      if (result >= 0) return result;
      if (errno != EAGAIN) break;
      pollfd waits = {.fd = fd_, .events = wanted, .revents = 0};
      poll(&waits, 1, -1);
    }
    status_ = WithExitCode(absl::ErrnoToStatus(errno, what), ExitCode::kData);
    return -1;
  }

  const int fd_;
  const bool owned_;
  const bool by_line_;
  std::string input_;
  std::string output_;  // not yet written
  absl::Status status_;
};

FdStream::FdStream(int fd, bool owned)
    : std::iostream(nullptr), buffer_(std::make_unique<Buffer>(fd, owned)) {
  rdbuf(buffer_.get());
}

FdStream::~FdStream() = default;

absl::StatusOr<std::unique_ptr<FdStream>> FdStream::Open(const std::string& path) {
  const int fd = TEMP_FAILURE_RETRY(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd >= 0) return std::make_unique<FdStream>(fd, /*owned=*/true);
  return WithExitCode(absl::ErrnoToStatus(errno, absl::StrCat(path, ": cannot be read")),
                      ExitCode::kData);
}

absl::Status StreamError(const std::ios& stream) {
  const auto* const own = dynamic_cast<const FdStream*>(&stream);
  if (own != nullptr) return own->buffer_->status();
  if (!stream.bad()) return absl::OkStatus();
  return WithExitCode(absl::UnavailableError("cannot be read or written"), ExitCode::kData);
}

void KeepStandardDescriptors() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(fd, F_GETFD) == 0 || errno != EBADF) continue;
    // The lowest number that is free. Opened for what nobody does with it.
    static_cast<void>(open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY));
  }
}

}  // namespace deepnet

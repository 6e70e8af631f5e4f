#include "parallel/base/fd_stream.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <sstream>
#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>

#include "parallel/base/exit_code.h"

namespace deepnet {
namespace {

using ::testing::HasSubstr;

std::string ReadAll(std::istream& in) {
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

void ExpectDataError(const absl::Status& status, const std::string& words) {
  EXPECT_EQ(GetExitCode(status), ExitCode::kData);
  EXPECT_EQ(status.message(), words);
}

TEST(FdStream, TellsAnErrorFromTheEndOfTheInput) {
  const auto file = FdStream::Open("tests/parallel/base/fd_stream_test.cc");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT(ReadAll(**file), HasSubstr("TellsAnErrorFromTheEndOfTheInput"));
  EXPECT_TRUE(StreamError(**file).ok()) << StreamError(**file);

  const auto folder = FdStream::Open("tests");
  ASSERT_TRUE(folder.ok()) << folder.status();
  EXPECT_EQ((*folder)->get(), std::istream::traits_type::eof());
  ExpectDataError(StreamError(**folder), "cannot be read: Is a directory");
  (*folder)->clear();
  EXPECT_EQ((*folder)->get(), std::istream::traits_type::eof());
  ExpectDataError(StreamError(**folder), "cannot be read: Is a directory");

  ExpectDataError(FdStream::Open("none").status(),
                  "none: cannot be read: No such file or directory");
  FdStream closed(-1);
  EXPECT_EQ(closed.get(), std::istream::traits_type::eof());
  ExpectDataError(StreamError(closed), "cannot be read: Bad file descriptor");
}

TEST(FdStream, SaysWhyBytesDidNotArrive) {
  const int full = open("/dev/full", O_WRONLY);
  ASSERT_GE(full, 0);
  {
    FdStream out(full);
    out << "a";  // in the buffer
    EXPECT_TRUE(StreamError(out).ok());
    EXPECT_FALSE(out.flush());
    ExpectDataError(StreamError(out), "cannot be written: No space left on device");
    out.clear();
    EXPECT_FALSE(out << std::string(1 << 20, 'b'));
  }
  close(full);
}

// A line is there when it ends, on a terminal; elsewhere when it is flushed.
TEST(FdStream, ATerminalIsWrittenByLines) {
  const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
  ASSERT_EQ(grantpt(terminal) + unlockpt(terminal), 0);
  const int inner = open(ptsname(terminal), O_RDWR | O_NOCTTY);
  ASSERT_GE(inner, 0);
  std::array<int, 2> ends = {};
  ASSERT_EQ(pipe(ends.data()), 0);
  const auto waiting = [](int fd) {
    int bytes = 0;
    EXPECT_EQ(ioctl(fd, FIONREAD, &bytes), 0);
    return bytes;
  };
  {
    FdStream lines(inner), bytes(ends[1]);
    lines.put('a');
    EXPECT_EQ(waiting(terminal), 0);
    lines << "b\nc";
    for (int i = 0; i < 1000 && waiting(terminal) < 5; ++i) poll(nullptr, 0, 10);
    EXPECT_EQ(waiting(terminal), 5);  // "ab\r\nc", which the system moves meanwhile
    bytes << "ab\nc";
    EXPECT_EQ(waiting(ends[0]), 0);
    bytes.put('d');
  }  // what is left is written at the end
  EXPECT_EQ(waiting(ends[0]), 5);
  for (const int fd : {terminal, ends[0]}) close(fd);
  EXPECT_EQ(close(inner) + close(ends[1]), 0);  // still open: somebody else's
}

TEST(FdStream, AFileThatItOpenedIsClosed) {
  const int free = dup(STDIN_FILENO);
  close(free);
  EXPECT_TRUE(FdStream::Open("tests/parallel/base/fd_stream_test.cc").ok());
  const int again = dup(STDIN_FILENO);
  close(again);
  EXPECT_EQ(again, free);
}

TEST(FdStream, WaitsWhereTheDescriptorDoesNot) {
  std::array<int, 2> ends = {};
  ASSERT_EQ(pipe2(ends.data(), O_NONBLOCK), 0);
  const std::string text(1 << 22, 'x');  // many times what a pipe holds
  std::thread writer([&] {
    FdStream out(ends[1]);
    out << text;
    EXPECT_TRUE(out.flush()) << StreamError(out);
    close(ends[1]);
  });
  FdStream in(ends[0]);
  const std::string read = ReadAll(in);
  writer.join();
  close(ends[0]);
  EXPECT_TRUE(read == text) << read.size();
  EXPECT_TRUE(StreamError(in).ok()) << StreamError(in);
}

TEST(StreamError, OfAnotherStreamSaysThatItIsBad) {
  std::ostringstream text;
  EXPECT_TRUE(StreamError(text).ok());
  text.setstate(std::ios::failbit);  // of a conversion
  EXPECT_TRUE(StreamError(text).ok());
  text.setstate(std::ios::badbit);
  ExpectDataError(StreamError(text), "cannot be read or written");
}

}  // namespace
}  // namespace deepnet

#include "parallel/base/exit_code.h"

#include <cerrno>

#include <gtest/gtest.h>

namespace deepnet {
namespace {

TEST(GetExitCode, OnlyABugEndsWithOneWhateverTheStatus) {
  EXPECT_EQ(GetExitCode(absl::OkStatus()), ExitCode::kDone);
  for (int code = 1; code <= static_cast<int>(absl::StatusCode::kUnauthenticated); ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), "text");
    EXPECT_FALSE(HasExitCode(status));
    EXPECT_EQ(GetExitCode(status) == ExitCode::kInternal, absl::IsInternal(status)) << status;
  }
  EXPECT_EQ(GetExitCode(absl::InvalidArgumentError("")), ExitCode::kBadConfig);
  EXPECT_EQ(GetExitCode(absl::DeadlineExceededError("")), ExitCode::kHang);
  EXPECT_EQ(GetExitCode(absl::AbortedError("")), ExitCode::kPeerLost);
  EXPECT_EQ(GetExitCode(absl::ErrnoToStatus(ELOOP, "")), ExitCode::kData);
  EXPECT_EQ(GetExitCode(absl::ErrnoToStatus(EIO, "")), ExitCode::kData);
}

TEST(WithExitCode, TheFirstCodeStays) {
  const absl::Status status = WithExitCode(absl::InternalError("text"), ExitCode::kHang);
  EXPECT_EQ(GetExitCode(WithExitCode(status, ExitCode::kData)), ExitCode::kHang);
  EXPECT_EQ(GetExitCode(WithPrefix("prefix", status)), ExitCode::kHang);
  EXPECT_EQ(WithPrefix("prefix", status).message(), "prefix: text");
}

}  // namespace
}  // namespace deepnet

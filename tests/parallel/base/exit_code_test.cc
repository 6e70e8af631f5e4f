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
  EXPECT_EQ(GetExitCode(absl::CancelledError("")), ExitCode::kPeerLost);
  EXPECT_EQ(GetExitCode(absl::ErrnoToStatus(ELOOP, "")), ExitCode::kData);
  EXPECT_EQ(GetExitCode(absl::ErrnoToStatus(EIO, "")), ExitCode::kData);
}

// Scripts ask for the numbers.
TEST(ExitCode, EachHasTheNumberThatTheManualNames) {
  const ExitCode codes[] = {
      ExitCode::kDone, ExitCode::kInternal,   ExitCode::kBadConfig,       ExitCode::kPreflight,
      ExitCode::kData, ExitCode::kCheckpoint, ExitCode::kDoesNotFit,      ExitCode::kDiverged,
      ExitCode::kHang, ExitCode::kPeerLost,   ExitCode::kReplicasDisagree};
  for (int number = 0; number < 11; ++number) EXPECT_EQ(static_cast<int>(codes[number]), number);
  EXPECT_EQ(static_cast<int>(ExitCode::kSavedRunAgain), 75);
}

TEST(WithExitCode, NothingIsAttachedToWhatIsWell) {
  EXPECT_EQ(WithExitCode(absl::OkStatus(), ExitCode::kData), absl::OkStatus());
  EXPECT_EQ(WithPrefix("prefix", absl::OkStatus()), absl::OkStatus());
}

TEST(ExitCode, OfTheTwoCommonMistakes) {
  const absl::Status early = PreflightError("text"), config = ConfigError("text");
  EXPECT_TRUE(absl::IsFailedPrecondition(early) && HasExitCode(early)) << early;
  EXPECT_EQ(GetExitCode(early), ExitCode::kPreflight);
  EXPECT_TRUE(absl::IsInvalidArgument(config) && HasExitCode(config)) << config;
  EXPECT_EQ(GetExitCode(config), ExitCode::kBadConfig);
}

TEST(WithExitCode, TheFirstCodeStays) {
  const absl::Status status = WithExitCode(absl::InternalError("text"), ExitCode::kHang);
  EXPECT_EQ(GetExitCode(WithExitCode(status, ExitCode::kData)), ExitCode::kHang);
  EXPECT_EQ(GetExitCode(WithPrefix("prefix", status)), ExitCode::kHang);
  EXPECT_EQ(WithPrefix("prefix", status).message(), "prefix: text");
}

}  // namespace
}  // namespace deepnet

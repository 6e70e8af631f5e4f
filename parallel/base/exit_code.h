// The exit codes that users, scripts and Slurm templates rely on (README, "Exit codes"), and how a
// Status carries one from where the failure is understood up to main().
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace deepnet {

// Persistent: do not change the values.
enum class ExitCode {
  kDone = 0,
  kInternal = 1,  // a bug: no mistake of a user ends with it
  kBadConfig = 2,
  kPreflight = 3,
  kData = 4,
  kCheckpoint = 5,
  kDoesNotFit = 6,
  kDiverged = 7,
  kHang = 8,
  kPeerLost = 9,
  kReplicasDisagree = 10,
  kSavedRunAgain = 75,
};

// Returns `status` with `code` attached. An OK status stays as it is, and so does an earlier code.
absl::Status WithExitCode(absl::Status status, ExitCode code);

// Returns `status` with "<prefix>: " in front of its message. Its code and its payloads, and so the
// exit code, stay. An OK status stays as it is.
absl::Status WithPrefix(std::string_view prefix, const absl::Status& status);

// The same of results: a value stays as it is.
template <typename T>
absl::StatusOr<T> WithExitCode(absl::StatusOr<T> result, ExitCode code) {
  if (!result.ok()) return WithExitCode(result.status(), code);
  return result;
}
template <typename T>
absl::StatusOr<T> WithPrefix(std::string_view prefix, absl::StatusOr<T> result) {
  if (!result.ok()) return WithPrefix(prefix, result.status());
  return result;
}

// Returns an error of that code; its message is made of what absl::StrCat takes.
template <typename... Parts>
absl::Status InvalidArgument(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}
template <typename... Parts>
absl::Status FailedPrecondition(const Parts&... parts) {
  return absl::FailedPreconditionError(absl::StrCat(parts...));
}
template <typename... Parts>
absl::Status DataLoss(const Parts&... parts) {
  return absl::DataLossError(absl::StrCat(parts...));
}
template <typename... Parts>
absl::Status NotFound(const Parts&... parts) {
  return absl::NotFoundError(absl::StrCat(parts...));
}
// These carry an exit code: FailedPrecondition kPreflight and kCheckpoint, InvalidArgument
// kBadConfig and kData, ResourceExhausted kDoesNotFit, and Aborted kDiverged.
template <typename... Parts>
absl::Status PreflightError(const Parts&... parts) {
  return WithExitCode(FailedPrecondition(parts...), ExitCode::kPreflight);
}
template <typename... Parts>
absl::Status CheckpointRefused(const Parts&... parts) {
  return WithExitCode(FailedPrecondition(parts...), ExitCode::kCheckpoint);
}
template <typename... Parts>
absl::Status ConfigError(const Parts&... parts) {
  return WithExitCode(InvalidArgument(parts...), ExitCode::kBadConfig);
}
template <typename... Parts>
absl::Status DataError(const Parts&... parts) {
  return WithExitCode(InvalidArgument(parts...), ExitCode::kData);
}
template <typename... Parts>
absl::Status DoesNotFitError(const Parts&... parts) {
  return WithExitCode(absl::ResourceExhaustedError(absl::StrCat(parts...)), ExitCode::kDoesNotFit);
}
template <typename... Parts>
absl::Status DivergedError(const Parts&... parts) {
  return WithExitCode(absl::AbortedError(absl::StrCat(parts...)), ExitCode::kDiverged);
}

bool HasExitCode(const absl::Status& status);  // one was attached

// Returns the code attached to `status`, kDone if it is OK. Where none was attached, kInternal is
// that of a bug, of Internal alone; bad arguments are kBadConfig; what peers do to a rank, given up
// or out of time, is kPeerLost or kHang; and whatever else the world does is kData.
ExitCode GetExitCode(const absl::Status& status);

}  // namespace deepnet

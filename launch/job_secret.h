// Finds the secret by which the processes of a job that talk by TCP know each other.
#pragma once

#include <string>

#include "absl/status/statusor.h"

#include "launch/launcher.h"

namespace deepnet {

// Returns DEEPNET_JOB_SECRET or, where it is not set, what is in deepnet/job_secret of
// XDG_CONFIG_HOME (~/.config): a file that only its owner can read, which the first job makes of
// random digits. Fails with FailedPrecondition (ExitCode::kPreflight), naming the variable or the
// file, if it has fewer than 16 bytes, or if others own or can read the file, or it cannot be made.
absl::StatusOr<std::string> FindJobSecret(const GetEnvFn& environment);

}  // namespace deepnet

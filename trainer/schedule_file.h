// Schedules that a user wrote into a file.
#pragma once

#include <string>

#include "absl/status/status.h"

#include "proto/plan.pb.h"

namespace deepnet {

// If parallel->schedule() is neither empty, nor a schedule's name, nor its text, reads the file of
// that name, relative to `root`, and puts its text there. Fails with InvalidArgument
// (ExitCode::kBadConfig) that names the file if it cannot be read.
absl::Status ReadScheduleFile(const std::string& root, ParallelSpec* parallel);

}  // namespace deepnet

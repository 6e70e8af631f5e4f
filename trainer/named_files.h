// Files that a RunSpec names in place of what they hold: schedules and models of devices.
#pragma once

#include <string>

#include "absl/status/status.h"

#include "proto/run.pb.h"

namespace deepnet {

// Where parallel.schedule is neither empty, nor a schedule's name, nor its text, reads the file of
// that name, relative to `root`, and puts its text there; cluster.device_model likewise. Fails with
// InvalidArgument (ExitCode::kBadConfig) that names field and file if one cannot be read.
absl::Status ReadNamedFiles(const std::string& root, RunSpec* run);

}  // namespace deepnet

// The examination of a job's ranks, for `doctor` and for `train --check`.
#pragma once

#include "absl/status/statusor.h"

#include "launch/commands/command.h"
#include "parallel/base/exit_code.h"
#include "parallel/comm/communicator.h"
#include "proto/doctor.pb.h"
#include "proto/run.pb.h"

namespace deepnet {

// Returns the exit code of a report that has failures.
ExitCode CodeOf(const DoctorReport& report);

// Examines the ranks of `world` for `run`, whose compute.device is decided, and reads the run's
// corpus to its end; without `has_run`, for its compute only. Collective; every rank gets the same
// report. A rank that stands still ends the job with ExitCode::kHang and its name.
absl::StatusOr<DoctorReport> ExamineJob(const CommandLine& line, const RunSpec& run, bool has_run,
                                        Communicator& world);

}  // namespace deepnet

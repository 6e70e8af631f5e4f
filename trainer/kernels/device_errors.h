// Exceptions as statuses: LibTorch and kernels throw, everything above them returns absl::Status.
//
// Whatever holds transfers that are under way catches below them, so that the job ends with the
// error itself (EndJob) before they are dropped.
#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

#include "trainer/kernels/ops.h"

namespace deepnet {

// The facts that an error of a rank's device is told with.
struct DeviceUse {
  const Ops* ops = nullptr;   // null: there is none yet
  int64_t planned_bytes = 0;  // of the rank; 0: there is no plan
};

// Returns the exception that is being handled as a status, so only inside of a catch block:
//   - memory that cannot be had, of a device or the host: ResourceExhausted,
//     ExitCode::kDoesNotFit; the text has what was asked for, what is in use and what was planned;
//   - what the system refused (std::system_error, of files too): Unknown;
//   - anything else: Internal without an exit code; an error of CUDA names the last launch.
// Both name the GPU, where `use` has one, and this host.
absl::Status StatusOfException(const DeviceUse& use = {});

// Returns what `work` returns, or the exception that it throws. An error of CUDA that comes as a
// status, as those of messages do, is completed in the same way.
absl::Status CatchErrors(absl::FunctionRef<absl::Status()> work, const DeviceUse& use = {});

}  // namespace deepnet

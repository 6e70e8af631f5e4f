// Threads as the program starts them: one that the system does not give is a status, not an
// exception.
#pragma once

#include <functional>
#include <thread>

#include "absl/status/statusor.h"

namespace deepnet {

// Runs `work` in a thread of its own, which the caller joins. Fails with ResourceExhausted
// (ExitCode::kDoesNotFit) where the system refuses it: a limit of processes (ulimit -u, the pids of
// a control group) or of address space.
absl::StatusOr<std::thread> StartThread(std::function<void()> work);

}  // namespace deepnet

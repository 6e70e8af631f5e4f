// Threads as the program starts them: one that the system does not give is a status, not an
// exception.
#pragma once

#include <functional>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace deepnet {

// Runs `work` in a thread of its own, which the caller joins. Fails with ResourceExhausted
// (ExitCode::kDoesNotFit) where the system refuses it: a limit of processes (ulimit -u, the pids of
// a control group) or of address space.
absl::StatusOr<std::thread> StartThread(std::function<void()> work);

// Fails as StartThread does if the system does not give `count` threads at once, of which the
// caller's is one: for libraries that start so many themselves and end the process where they get
// none.
absl::Status TryThreads(int count);

}  // namespace deepnet

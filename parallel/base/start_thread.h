// Threads as the program starts them: one that the system does not give is a status, not an
// exception.
#pragma once

#include <functional>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace deepnet {

// Runs `work` in a thread of its own, which the caller joins. Fails with ResourceExhausted
// (ExitCode::kDoesNotFit) where the system refuses it, by a limit of processes or address space.
absl::StatusOr<std::thread> StartThread(std::function<void()> work);

// Fails likewise if the system does not give `count` threads at once, the caller's included: for
// libraries that start so many themselves and end the process where they get none.
absl::Status TryThreads(int count);

}  // namespace deepnet

// Ranks as threads, for tests.
//
// Example:
//   EXPECT_OK(FirstError(RunRanks(4, [](Communicator& comm) { return comm.Barrier(); })));
#pragma once

#include <functional>
#include <vector>

#include "absl/status/status.h"

#include "parallel/comm/communicator.h"

namespace deepnet {

// Calls body(communicator) once per rank of a world of threads, all at the same time, and returns
// what each returned, in rank order. A rank that fails ends the others (Abort with its exit code),
// so a test cannot hang on one rank's error.
std::vector<absl::Status> RunRanks(int num_ranks,
                                   const std::function<absl::Status(Communicator& comm)>& body);

// The first error in rank order that is more than the echo (Aborted) of another rank's; else the
// first echo; else OK.
absl::Status FirstError(const std::vector<absl::Status>& statuses);

}  // namespace deepnet

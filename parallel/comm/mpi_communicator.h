// Ranks that are processes started by mpirun (or srun), on one host or many.
//
// One thread of the process owns MPI: it starts it, makes every call, and ends it, so that any MPI
// 3.1 library will do, whatever threads it allows. Callers hand it messages and sleep until they
// are done. It sleeps too, between two looks or until it is called: no core is kept busy by
// waiting, and what is under way moves on while callers compute.
//
// Long messages are cut, so there is no limit to their size. Host memory only, whatever the library
// could do.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"

#include "parallel/comm/communicator.h"

namespace deepnet {

// Starts MPI, once in a process's life, and returns all ranks of the job; without a launcher this
// is one. FailedPrecondition (ExitCode::kPreflight) where the program was built without MPI or MPI
// does not start. A lost peer ends the job through mpirun, or is Unavailable where the library
// reports it; one that hangs is for limits and Abort.
//
// Its end is collective: MPI ends when every rank has come there. The communicators that Split made
// are gone by then. If a transfer was given up, it ends the job as Abort(kInternal) does.
absl::StatusOr<std::unique_ptr<Communicator>> MakeMpiCommunicator();

// Returns the name and version of the library, "Open MPI v4.1.4"; empty where the program was built
// without MPI. Any thread may call it, before, during and after a job.
std::string MpiVersion();

}  // namespace deepnet

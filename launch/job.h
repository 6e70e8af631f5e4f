// The ranks of this job: one process alone, or those that a launcher started.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "parallel/comm/communicator.h"

namespace deepnet {

struct CommandLine;  // launch/commands/command.h

// Joins the job that this process was started for, as FindLaunch (launcher.h) says: by MPI, by TCP,
// or alone, and returns all its ranks. With several, rank 0 says on stderr which it was.
// FailedPrecondition (ExitCode::kPreflight) where MPI does not start or has another number of ranks
// than its launcher said; where variables are missing or wrong; and, naming the rank or the port,
// where the ranks do not find each other by TCP within `limit`.
absl::StatusOr<std::unique_ptr<Communicator>> JoinJob(absl::Duration limit = absl::Minutes(10));

// Read Slurm's variables about this job, where it has set them.
std::string JobId();   // empty: there is none
int JobRestarts();     // how often it has put the job back into the queue
double JobDeadline();  // SecondsNow() at which it ends the job; infinity: unknown

// Runs a command on all ranks of the job: JoinJob, then `work`. Returns its status, or that of the
// exception that it throws; one that all ranks know of (IsAgreed) keeps its text on rank 0 only.
// With any other error this rank ends the whole job, after saying why on stderr.
absl::Status RunOnRanks(
    const CommandLine& line,
    absl::FunctionRef<absl::Status(const CommandLine& line, Communicator& world)> work);

// From now on SIGTERM, SIGUSR1 and SIGINT say so on stderr and end the process with
// ExitCode::kSavedRunAgain: nothing is lost while ranks meet or weights are imported. SIGUSR2 is
// kept for ListenToSignals.
void EndAtSignals();

// From now on signals are requests to a run: SIGTERM, SIGUSR1 or one SIGINT: save and end; SIGUSR2:
// save and go on; a second SIGINT: end at once.
void ListenToSignals();

// Returns the bits of trainer/stop_requests.h that handlers add, for TrainOptions::request.
std::atomic<int>& SignalRequests();

}  // namespace deepnet

// The ranks of this job: one process alone, or those that mpirun (or srun) started.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "parallel/comm/communicator.h"
#include "parallel/comm/mpi_communicator.h"

namespace deepnet {

class Job {
 public:
  // Null: this process is alone, without MPI.
  explicit Job(std::unique_ptr<MpiJob> mpi) : mpi_(std::move(mpi)) {}

  // All ranks.
  Communicator& world() { return mpi_ != nullptr ? mpi_->world() : alone_; }

 private:
  const std::unique_ptr<MpiJob> mpi_;
  SelfCommunicator alone_;
};

// Starts MPI where a launcher of MPI started this process, and only there. FailedPrecondition
// (ExitCode::kPreflight) where MPI does not start, has another number of ranks than the launcher
// said, or where another kind of launcher started several processes that MPI knows nothing of.
absl::StatusOr<std::unique_ptr<Job>> JoinJob();

// Read Slurm's variables about this job, where it has set them.
std::string JobId();   // empty: there is none
int JobRestarts();     // how often it has put the job back into the queue
double JobDeadline();  // SecondsNow() at which it ends the job; infinity: unknown

// Returns what a rank's command ends with for `status`. A status that all ranks know of (IsAgreed)
// keeps its text on rank 0 only. With any other error this rank ends the whole job, after saying
// why on stderr.
absl::Status LeaveJob(Communicator& world, const absl::Status& status);

// Signals as requests to a run: SIGTERM, SIGUSR1 or one SIGINT: save and end; SIGUSR2: save and go
// on; a second SIGINT: end at once.

// Listens from now on. Call it as early as possible: a signal before that ends the process.
void ListenToSignals();

// Returns the bits of trainer/trainer.h that handlers add, for TrainOptions::request.
std::atomic<int>& SignalRequests();

}  // namespace deepnet

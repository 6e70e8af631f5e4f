#include "launch/job.h"

#include <csignal>
#include <cstdlib>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

#include "parallel/base/clock.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/agreement.h"
#include "trainer/trainer.h"

namespace deepnet {
namespace {

// The number in an environment variable; 0 if there is none.
int NumberIn(const char* variable) {
  const char* text = std::getenv(variable);
  int number = 0;
  return text != nullptr && absl::SimpleAtoi(text, &number) ? number : 0;
}

absl::Status Preflight(const std::string& message) {
  return WithExitCode(absl::FailedPreconditionError(message), ExitCode::kPreflight);
}

// Launchers that start processes without MPI, by the variable in which they say how many.
absl::Status CheckNoOtherLauncher() {
  if (const int ranks = NumberIn("WORLD_SIZE"); ranks > 1) {
    return Preflight(absl::StrCat("WORLD_SIZE is ", ranks,
                                  ": deepnet's ranks find each other by MPI; start them with "
                                  "mpirun -n ",
                                  ranks, " deepnet ..."));
  }
  const int tasks = NumberIn("SLURM_STEP_NUM_TASKS");
  if (std::getenv("SLURM_STEP_ID") != nullptr && tasks > 1) {
    return Preflight(
        absl::StrCat("srun started ", tasks, " tasks without MPI; use srun --mpi=pmix, or mpirun"));
  }
  return absl::OkStatus();
}

absl::Status CheckSize(int ranks) {
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
    const int said = NumberIn(variable);
    if (said == 0 || said == ranks) continue;
    return Preflight(absl::StrCat(variable, " is ", said, ", but MPI has ", ranks,
                                  " ranks: the program is linked to another MPI than the one that "
                                  "started it"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Job>> JoinJob() {
  if (!MpiJob::StartedByLauncher()) {
    RETURN_IF_ERROR(CheckNoOtherLauncher());
    return std::make_unique<Job>(nullptr);
  }
  ASSIGN_OR_RETURN(std::unique_ptr<MpiJob> mpi, MpiJob::Start());
  RETURN_IF_ERROR(CheckSize(mpi->world().size()));
  return std::make_unique<Job>(std::move(mpi));
}

std::string JobId() {
  const char* const id = std::getenv("SLURM_JOB_ID");
  return id != nullptr ? id : "";
}

int JobRestarts() { return NumberIn("SLURM_RESTART_COUNT"); }

double JobDeadline() {
  const int end = NumberIn("SLURM_JOB_END_TIME");  // seconds since 1970
  if (end == 0) return std::numeric_limits<double>::infinity();
  return SecondsNow() + static_cast<double>(end) -
         absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch());
}

absl::Status LeaveJob(Communicator& world, const absl::Status& status) {
  if (status.ok() || world.size() == 1) return status;
  if (IsAgreed(status) && world.rank() == 0) return status;
  if (!IsAgreed(status)) EndJob(world, status);
  return WithExitCode(absl::Status(status.code(), ""), GetExitCode(status));
}

namespace {

// Handlers take no argument, so that they can reach nothing else.
std::atomic<int> g_requests{0};          // NOLINT
std::atomic<bool> g_interrupted{false};  // NOLINT
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

extern "C" void HandleStop(int) { g_requests.fetch_or(kStopRequest); }
extern "C" void HandleSave(int) { g_requests.fetch_or(kSaveRequest); }
extern "C" void HandleInterrupt(int signal) {
  g_requests.fetch_or(kStopRequest);
  if (!g_interrupted.exchange(true)) return;
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

}  // namespace

void ListenToSignals() {
  std::signal(SIGTERM, HandleStop);
  std::signal(SIGUSR1, HandleStop);
  std::signal(SIGUSR2, HandleSave);
  std::signal(SIGINT, HandleInterrupt);
}

std::atomic<int>& SignalRequests() { return g_requests; }

}  // namespace deepnet

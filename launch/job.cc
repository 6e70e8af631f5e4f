#include "launch/job.h"

#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "launch/commands/command.h"
#include "launch/launcher.h"
#include "launch/rendezvous_store.h"
#include "parallel/base/clock.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/logging.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/agreement.h"
#include "parallel/comm/backends.h"
#include "trainer/stop_requests.h"

namespace deepnet {
namespace {

// Returns the number in an environment variable; 0 if there is none.
template <typename Number>
Number NumberIn(const char* variable) {
  const char* text = std::getenv(variable);
  Number number = 0;
  return text != nullptr && absl::SimpleAtoi(text, &number) ? number : 0;
}

absl::Status CheckSize(int ranks) {
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
    const int said = NumberIn<int>(variable);
    if (said == 0 || said == ranks) continue;
    return PreflightError(variable, " is ", said, ", but MPI has ", ranks,
                          " ranks: the program is linked to another MPI than the one that "
                          "started it");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Communicator>> JoinByTcp(const Launch& launch,
                                                        absl::Duration limit) {
  ASSIGN_OR_RETURN(std::string secret, FindJobSecret(std::getenv));
  const SayWaiting say = [&launch](const std::string& whom) {
    Logger(StderrOptions()).Info(absl::StrCat("rank ", launch.rank, " waits for ", whom));
  };
  ASSIGN_OR_RETURN(std::shared_ptr<RendezvousStore> store, OpenRendezvousStore(launch, limit, say));
  return MakeTcpCommunicator(
      {.rank = launch.rank,
       .size = launch.size,
       .store = std::move(store),
       .limit = limit,
       .say = say,
       .interface = launch.interface,
       .toward = launch.host,
       .secret = std::move(secret),
       .refused = [rank = launch.rank](const std::string& what) {
         Logger(StderrOptions()).Warning(absl::StrCat("rank ", rank, ": ", what));
       }});
}

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> JoinJob(absl::Duration limit) {
  const bool has_mpi = !MpiVersion().empty();
  ASSIGN_OR_RETURN(const Launch launch, FindLaunch(std::getenv, has_mpi));
  if (launch.by == Launch::By::kNobody) return std::make_unique<SelfCommunicator>();
  const bool by_mpi = launch.by == Launch::By::kMpi;
  ASSIGN_OR_RETURN(std::unique_ptr<Communicator> world,
                   by_mpi ? MakeMpiCommunicator() : JoinByTcp(launch, limit));
  if (by_mpi) RETURN_IF_ERROR(CheckSize(world->size()));
  if (world->rank() == 0 && world->size() > 1) {
    const std::string how =
        by_mpi ? absl::StrCat("MPI (", MpiVersion(), ")")
               : absl::StrCat("TCP (", launch.said_by, "), met at ", launch.Place());
    Logger(StderrOptions()).Info(absl::StrCat(world->size(), " ranks by ", how));
  }
  return world;
}

std::string JobId() {
  const char* const id = std::getenv("SLURM_JOB_ID");
  return id != nullptr ? id : "";
}

int JobRestarts() { return NumberIn<int>("SLURM_RESTART_COUNT"); }

double JobDeadline() {
  const int64_t end = NumberIn<int64_t>("SLURM_JOB_END_TIME");  // seconds since 1970
  if (end <= 0) return std::numeric_limits<double>::infinity();
  return SecondsNow() + static_cast<double>(end) -
         absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch());
}

absl::Status RunOnRanks(
    const CommandLine& line,
    absl::FunctionRef<absl::Status(const CommandLine& line, Communicator& world)> work) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> world, JoinJob());
  absl::Status status;
  try {
    status = work(line, *world);
  } catch (...) {
    if (line.status_of_exception == nullptr) throw;
    status = line.status_of_exception();
  }
  if (status.ok() || world->size() == 1) return status;
  if (IsAgreed(status) && world->rank() == 0) return status;
  if (!IsAgreed(status)) EndJob(*world, status);
  return WithExitCode(absl::Status(status.code(), ""), GetExitCode(status));
}

namespace {

// Handlers take no argument, so that they can reach nothing else.
std::atomic<int> g_requests{0};          // NOLINT
std::atomic<bool> g_interrupted{false};  // NOLINT
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

extern "C" void HandleStop(int) { g_requests.fetch_or(kStopRequest); }
extern "C" void HandleEarlyStop(int) {
  constexpr char kText[] = "ended by a signal before training began: there is nothing to save\n";
  static_cast<void>(!write(STDERR_FILENO, kText, sizeof(kText) - 1));
  _exit(static_cast<int>(ExitCode::kSavedRunAgain));
}
extern "C" void HandleSave(int) { g_requests.fetch_or(kSaveRequest); }
extern "C" void HandleInterrupt(int signal) {
  g_requests.fetch_or(kStopRequest);
  if (!g_interrupted.exchange(true)) return;
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

}  // namespace

void EndAtSignals() {
  for (const int signal : {SIGTERM, SIGUSR1, SIGINT}) std::signal(signal, HandleEarlyStop);
  std::signal(SIGUSR2, HandleSave);
}

void ListenToSignals() {
  std::signal(SIGTERM, HandleStop);
  std::signal(SIGUSR1, HandleStop);
  std::signal(SIGUSR2, HandleSave);
  std::signal(SIGINT, HandleInterrupt);
}

std::atomic<int>& SignalRequests() { return g_requests; }

}  // namespace deepnet

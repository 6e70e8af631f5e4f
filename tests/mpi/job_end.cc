// A job of two ranks that ends badly, for tests of what its launcher sees.
//
//   job_end abort     rank 1 ends the job with code 42 while rank 0 waits for it
//   job_end busy      the same in the middle of a message
//   job_end hang      rank 0 waits for rank 1 in vain, for a limited time, and ends the job (8)
//   job_end give_up   rank 0 leaves a send that nobody takes, and its main() as if all were well
//   job_end killed    rank 1 is killed while rank 0 waits for it
//   job_end left      rank 1 ends the job with code 42 after rank 0 has left it
//   job_end join      ranks only join the job, within 3 seconds
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"

#include "launch/job.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"

namespace deepnet {
namespace {

absl::Status ReceiveFrom(Communicator& world, int peer, absl::Duration limit) {
  char byte = 0;
  ASSIGN_OR_RETURN(const auto got, world.Receive(Buffer::Of(std::span(&byte, 1)), peer, 0));
  return got->Wait(limit);
}

absl::Status LeaveASend(Communicator& world, int peer) {
  std::vector<char> bytes(64 << 20);
  return world.Send(Buffer::Of(std::span(bytes)), peer, 1).status();
}

// Says if a process is stopped: the letter behind its name, which is in brackets.
bool IsStopped(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  const size_t end = text.rfind(')');
  return end != text.npos && text.substr(end, 3) == ") T";
}

// Ends the job in the middle of a message: rank 0 stands still while rank 1 sends more than the
// system holds and ends the job, and goes on then.
absl::Status EndBusy(Communicator& world) {
  constexpr int kMessages = 512;
  std::vector<char> bytes(size_t{64} << 10);
  pid_t pid = getpid();
  const Buffer of_pid = Buffer::Of(std::span(&pid, 1));
  if (world.rank() == 0) {
    ASSIGN_OR_RETURN(const auto told, world.Send(of_pid, 1, 1));
    RETURN_IF_ERROR(told->Wait(absl::InfiniteDuration()));
    std::raise(SIGSTOP);
    return ReceiveFrom(world, 1, absl::InfiniteDuration());
  }
  ASSIGN_OR_RETURN(const auto heard, world.Receive(of_pid, 0, 1));
  RETURN_IF_ERROR(heard->Wait(absl::InfiniteDuration()));
  while (!IsStopped(pid)) absl::SleepFor(absl::Milliseconds(1));
  std::vector<std::unique_ptr<Transfer>> sent(kMessages);
  for (auto& one : sent) {
    ASSIGN_OR_RETURN(one, world.Send(Buffer::Of(std::span(bytes)), 0, 2));
  }
  std::thread([pid] {
    absl::SleepFor(absl::Milliseconds(100));
    kill(pid, SIGCONT);
  }).detach();
  world.Abort(42);
  return absl::OkStatus();
}

absl::Status EndBadly(Communicator& world, const std::string& how) {
  const bool first = world.rank() == 0;
  std::printf("rank %d was here. ", world.rank());  // to a pipe, which gets it when it is flushed
  if (!first && how == "abort") world.Abort(42);
  if (how == "busy") return EndBusy(world);
  if (how == "left") {
    if (!first && !ReceiveFrom(world, 0, absl::InfiniteDuration()).ok()) world.Abort(42);
    return absl::OkStatus();
  }
  if (!first && how == "killed") std::raise(SIGKILL);
  if (first && how == "hang") {
    const absl::Status late = ReceiveFrom(world, 1, absl::Milliseconds(200));
    if (absl::IsDeadlineExceeded(late)) world.Abort(static_cast<int>(ExitCode::kHang));
    return late;
  }
  if (first && how == "give_up") return LeaveASend(world, 1);
  return ReceiveFrom(world, 1 - world.rank(), absl::InfiniteDuration());
}

int Run(const std::string& how) {
  const auto job = JoinJob(how == "join" ? absl::Seconds(3) : absl::Minutes(1));
  if (!job.ok()) {
    std::fprintf(stderr, "%s\n", std::string(job.status().message()).c_str());
    return static_cast<int>(GetExitCode(job.status()));
  }
  if (how == "join") return 0;
  const absl::Status status = EndBadly(**job, how);
  std::fprintf(stderr, "rank %d: %s\n", (*job)->rank(), status.ToString().c_str());
  return 0;  // a mistake that the end of the job must show
}

}  // namespace
}  // namespace deepnet

int main(int argc, char** argv) { return deepnet::Run(argc > 1 ? argv[1] : ""); }

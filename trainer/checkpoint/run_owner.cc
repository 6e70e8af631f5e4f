#include "trainer/checkpoint/run_owner.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <random>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

#include "parallel/base/host.h"

namespace deepnet {
namespace {

std::string FirstLine(const std::string& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

// "pid:[4026531836]"; empty where the system does not say.
std::string PidNamespace() {
  char name[64];
  const ssize_t length = readlink("/proc/self/ns/pid", name, sizeof(name));
  return length > 0 ? std::string(name, static_cast<size_t>(length)) : "";
}

struct Process {
  char state = '?';
  int64_t start = 0;  // clock ticks
};

// From /proc/<pid>/stat, where the state and the start are fields 3 and 22; the second is a name in
// brackets, which may hold anything.
Process LookUp(int64_t pid) {
  const std::string line = FirstLine(absl::StrCat("/proc/", pid, "/stat"));
  const size_t name_end = line.rfind(')');
  if (name_end == line.npos) return {};
  std::istringstream fields(line.substr(name_end + 1));
  Process process;
  fields >> process.state;
  std::string skipped;
  for (int field = 4; field < 22; ++field) fields >> skipped;
  fields >> process.start;
  return process;
}

std::string BootId() { return FirstLine("/proc/sys/kernel/random/boot_id"); }

}  // namespace

RunOwner MakeRunOwner(const std::string& job_id) {
  std::random_device random;
  RunOwner owner;
  owner.set_token(absl::StrFormat("%08x%08x", random(), random()));
  owner.set_host(HostName());
  owner.set_boot_id(BootId());
  owner.set_pid_namespace(PidNamespace());
  owner.set_pid(getpid());
  owner.set_process_start(LookUp(getpid()).start);
  owner.set_job_id(job_id);
  owner.set_since(absl::FormatTime("%Y-%m-%d %H:%M:%S", absl::Now(), absl::LocalTimeZone()));
  return owner;
}

OwnerState StateOfOwner(const RunOwner& owner) {
  const bool is_near = owner.host() == HostName() && !owner.boot_id().empty() &&
                       owner.boot_id() == BootId() && !owner.pid_namespace().empty() &&
                       owner.pid_namespace() == PidNamespace() && owner.pid() > 0;
  if (!is_near) return OwnerState::kUnknown;
  if (kill(static_cast<pid_t>(owner.pid()), 0) != 0 && errno == ESRCH) return OwnerState::kGone;
  const Process process = LookUp(owner.pid());
  if (process.start == 0) return OwnerState::kUnknown;  // the system does not show it
  const bool is_another = process.start != owner.process_start();
  const bool has_ended = process.state == 'Z' || process.state == 'X';
  return is_another || has_ended ? OwnerState::kGone : OwnerState::kRuns;
}

std::string NameOwner(const RunOwner& owner) {
  return absl::StrCat("process ", owner.pid(), " on ", owner.host(),
                      owner.job_id().empty() ? "" : absl::StrCat(" (job ", owner.job_id(), ")"),
                      ", since ", owner.since());
}

}  // namespace deepnet

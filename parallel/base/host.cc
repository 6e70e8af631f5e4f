#include "parallel/base/host.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <future>
#include <limits>
#include <map>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include <sys/resource.h>

#include "parallel/base/crc32c.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/utf8.h"

namespace deepnet {
namespace {

// More cores than kernels count (8,192): where the set is too small for the kernel's, it says
// nothing.
constexpr int kMaxCores = 16 * CPU_SETSIZE;
using CoreSet = std::array<cpu_set_t, kMaxCores / CPU_SETSIZE>;

constexpr double kRounding = 1e-6;  // of a sum of shares
constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

std::vector<std::string> CoresOf(const std::string& list) {
  return absl::StrSplit(list, ',', absl::SkipEmpty());
}

// Binds the calling thread to `cores`; to what it may use of them, where it may not use all.
void UseCores(std::span<const std::string> cores) {
  CoreSet set = {};
  for (const std::string& core : cores) {
    int number = 0;
    if (absl::SimpleAtoi(core, &number)) CPU_SET_S(number, sizeof(set), set.data());
  }
  sched_setaffinity(0, sizeof(set), set.data());  // where it fails, all stays as it is
}

std::vector<std::string> Lines(const std::string& path) {
  std::vector<std::string> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

// Returns what the line of /proc/meminfo that begins with `what` says; all of the host's memory
// where there is none.
int64_t MeminfoBytes(const std::string& root, absl::string_view what) {
  for (const std::string& line : Lines(root + "/proc/meminfo")) {
    absl::string_view rest = line;
    int64_t kibibytes = 0;
    if (absl::ConsumePrefix(&rest, what) && absl::ConsumeSuffix(&rest, "kB") &&
        absl::SimpleAtoi(rest, &kibibytes)) {
      return kibibytes * 1024;
    }
  }
  return int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
}

// Returns the lowest limit that `file` states in the folder of `group` below `groups` or in one
// above it. A group without that file, or with "max" in it, has none; where a container sees only
// its own groups, those above are not there.
int64_t LowestLimit(const std::string& groups, std::string group, const std::string& file) {
  int64_t lowest = kNoLimit;
  while (true) {
    const std::vector<std::string> lines = Lines(absl::StrCat(groups, group, "/", file));
    int64_t limit = 0;
    if (!lines.empty() && absl::SimpleAtoi(lines[0], &limit)) lowest = std::min(lowest, limit);
    if (group.empty() || group == "/") return lowest;
    group.resize(group.rfind('/') == std::string::npos ? 0 : group.rfind('/'));
  }
}

}  // namespace

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? EscapedUtf8(name) : "unknown host";
}

std::string ProgramFingerprint() {
  std::ifstream program("/proc/self/exe", std::ios::binary);
  if (!program) return "unknown";
  uint32_t crc = 0;
  std::vector<char> block(1 << 20);
  while (program) {
    program.read(block.data(), static_cast<std::streamsize>(block.size()));
    crc = Crc32c({block.data(), static_cast<size_t>(program.gcount())}, crc);
  }
  return absl::StrFormat("%08x", crc);
}

int UsableCores() { return static_cast<int>(CoresOf(UsableCoreList()).size()); }

std::string UsableCoreList() {
  CoreSet set = {};
  if (sched_getaffinity(0, sizeof(set), set.data()) != 0) return "0";
  std::vector<int> cores;
  for (int core = 0; core < kMaxCores; ++core) {
    if (CPU_ISSET_S(core, sizeof(set), set.data())) cores.push_back(core);
  }
  return absl::StrJoin(cores, ",");
}

int ThreadsPerRank(std::span<const std::string> lists, const std::string& own) {
  std::map<std::string, int> users;  // of each core
  for (const std::string& list : lists) {
    for (const std::string& core : CoresOf(list)) ++users[core];
  }
  double share = 0;
  for (const std::string& core : CoresOf(own)) share += 1.0 / std::max(1, users[core]);
  return std::max(1, static_cast<int>(share + kRounding));
}

BorrowedCores::BorrowedCores(std::span<const std::string> lists) : own_(UsableCoreList()) {
  UseCores(CoresOf(absl::StrCat(own_, ",", absl::StrJoin(lists, ","))));
}

BorrowedCores::~BorrowedCores() { UseCores(CoresOf(own_)); }

int64_t UsableMemoryBytes(const std::string& root) {
  int64_t bytes = MeminfoBytes(root, "MemTotal:");
  for (const std::string& line : Lines(root + "/proc/self/cgroup")) {
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() < 3) continue;
    const std::vector<std::string> controllers = absl::StrSplit(fields[1], ',');
    const std::string groups = root + "/sys/fs/cgroup";
    if (fields[1].empty()) {
      bytes = std::min(bytes, LowestLimit(groups, fields[2], "memory.max"));
    } else if (absl::c_linear_search(controllers, "memory")) {
      bytes = std::min(bytes, LowestLimit(groups + "/memory", fields[2], "memory.limit_in_bytes"));
    }
  }
  return bytes;
}

int64_t AvailableMemoryBytes(const std::string& root) {
  return MeminfoBytes(root, "MemAvailable:");
}

int64_t PeakResidentBytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * int64_t{1024};  // Linux counts KiB
}

absl::StatusOr<std::thread> StartThread(std::function<void()> work) {
  try {
    return std::thread(std::move(work));
  } catch (const std::system_error& error) {
    return DoesNotFitError("the system refuses another thread (", error.code().message(),
                           "): its limits of processes (ulimit -u) and memory decide");
  }
}

absl::Status TryThreads(int count) {
  std::promise<void> go;
  const std::shared_future<void> gone(go.get_future());
  std::vector<std::thread> threads;
  absl::Status status;
  for (int running = 1; status.ok() && running < count; ++running) {
    absl::StatusOr<std::thread> thread = StartThread([gone] { gone.wait(); });
    status = WithPrefix(absl::StrCat(running, " of ", count, " threads run"), thread.status());
    if (thread.ok()) threads.push_back(*std::move(thread));
  }
  go.set_value();
  for (std::thread& thread : threads) thread.join();
  return status;
}

}  // namespace deepnet

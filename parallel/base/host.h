// Describes this process and the host it runs on, and what it may use of it: cores, memory,
// threads.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace deepnet {

// "node17"; "unknown host" where the system does not say.
std::string HostName();

// Hexadecimal CRC32C of the running program's file: ranks that differ in it run different builds.
// "unknown" where the system does not show the file.
std::string ProgramFingerprint();

// Returns the number of cores this process may use, by its affinity mask.
int UsableCores();

// The same as a list of their numbers, "0,1,2,5".
std::string UsableCoreList();

// Returns the threads, at least 1, for a rank that may use the cores `own`. `lists` has the
// UsableCoreList of every rank of its host, its own included: cores that several ranks may use are
// shared evenly, so ranks that a launcher has bound apart get all of theirs.
int ThreadsPerRank(std::span<const std::string> lists, const std::string& own);

// Lets the calling thread, and threads that it starts, use also the cores of `lists`, those of
// ranks of its host that wait for it, as far as the system allows; until the object is gone.
class BorrowedCores {
 public:
  explicit BorrowedCores(std::span<const std::string> lists);
  ~BorrowedCores();
  BorrowedCores(const BorrowedCores&) = delete;
  BorrowedCores& operator=(const BorrowedCores&) = delete;

 private:
  const std::string own_;
};

// Returns the bytes of memory that this process and those beside it may use: all of the host, or
// less where a control group (version 1 or 2), its own or one above it, has a limit. `root`: the
// folder that stands for the root of the file system.
int64_t UsableMemoryBytes(const std::string& root = "/");

// Returns the bytes that the host can give now without swapping.
int64_t AvailableMemoryBytes(const std::string& root = "/");

// Returns the most bytes of main memory that were resident at once since the process, or the one it
// replaced by exec, began, shared libraries and mapped files included.
int64_t PeakResidentBytes();

// Runs `work` in a thread of its own, which the caller joins. Fails with ResourceExhausted
// (ExitCode::kDoesNotFit) where the system refuses it, by a limit of processes or address space.
absl::StatusOr<std::thread> StartThread(std::function<void()> work);

// Fails likewise if the system does not give `count` threads at once, the caller's included: for
// libraries that start so many themselves and end the process where they get none.
absl::Status TryThreads(int count);

}  // namespace deepnet

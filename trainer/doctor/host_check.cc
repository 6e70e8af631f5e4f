#include "trainer/doctor/host_check.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

#include "parallel/base/clock.h"
#include "parallel/base/host.h"
#include "parallel/base/status_macros.h"

namespace deepnet {
namespace {

constexpr char kText[] = "deepnet doctor";

absl::Status WriteDurably(FileSystem& files, const std::string& path, const char* text = kText) {
  ASSIGN_OR_RETURN(const auto file, files.CreateNew(path));
  RETURN_IF_ERROR(file->Append(text));
  RETURN_IF_ERROR(file->Sync());
  RETURN_IF_ERROR(file->Close());
  return files.SyncFolder(ParentFolder(path));
}

absl::Status CheckRename(FileSystem& files, const std::string& from, const std::string& to) {
  RETURN_IF_ERROR(WriteDurably(files, to, "replaced"));
  RETURN_IF_ERROR(files.Rename(from, to));
  ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(files, to, 1 << 20));
  if (text == kText) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("'", to, "' has other bytes than were written"));
}

// Run folders are locked by a file that only one process can create.
absl::Status CheckExclusive(FileSystem& files, const std::string& path) {
  RETURN_IF_ERROR(files.CreateNew(path).status());
  if (absl::IsAlreadyExists(files.CreateNew(path).status())) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("'", path, "' could be created twice"));
}

}  // namespace

DoctorRank DescribeHost() {
  DoctorRank rank;
  rank.set_host(HostName());
  rank.set_cores(UsableCores());
  rank.set_cores_list(UsableCoreList());
  rank.set_host_cores(static_cast<int32_t>(sysconf(_SC_NPROCESSORS_ONLN)));
  rlimit limit{};
  int64_t bytes = UsableMemoryBytes();
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    bytes = std::min(bytes, static_cast<int64_t>(limit.rlim_cur));
  }
  rank.set_memory_bytes(bytes);
  rank.set_build(ProgramFingerprint());
  return rank;
}

absl::StatusOr<int64_t> FreeBytes(const std::string& folder) {
  struct statvfs of {};
  if (statvfs(folder.c_str(), &of) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot look at '", folder, "'"));
  }
  return static_cast<int64_t>(of.f_bavail) * static_cast<int64_t>(of.f_frsize);
}

absl::Status CheckLocks(const std::string& path) {
  const int first = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
  const int second = open(path.c_str(), O_RDWR | O_CLOEXEC);
  const bool locked = first >= 0 && flock(first, LOCK_EX | LOCK_NB) == 0;
  const int error = errno;
  const bool kept_out = locked && flock(second, LOCK_EX | LOCK_NB) != 0;
  close(second);
  close(first);
  if (!locked) return absl::ErrnoToStatus(error, absl::StrCat("cannot lock '", path, "'"));
  if (kept_out) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("'", path, "' can be locked twice"));
}

std::string NearestFolder(FileSystem& files, std::string folder) {
  while (!files.List(folder).ok() && ParentFolder(folder) != folder) folder = ParentFolder(folder);
  return folder;
}

void CheckFolder(const FolderAccess& access, const std::string& folder, const std::string& name,
                 DoctorRank& rank) {
  FileSystem& files = *access.files;
  const std::string first = JoinPath(folder, name), second = first + ".renamed";
  const auto tidy = absl::MakeCleanup([&] {
    for (const std::string& path : {first, second}) files.Delete(path).IgnoreError();
  });
  const auto report = [&](const char* what, const absl::Status& status) {
    if (status.ok()) return;
    rank.add_folder_failures(absl::StrCat(what, ": ", std::string(status.message())));
  };
  rank.set_folder(folder);
  const auto free = access.free_bytes(folder);
  report("free space", free.status());
  rank.set_free_bytes(free.value_or(0));
  const double start = SecondsNow();
  const absl::Status written = WriteDurably(files, first);
  rank.set_sync_seconds(SecondsNow() - start);
  report("write and fsync", written);
  if (!written.ok()) return;
  report("rename", CheckRename(files, first, second));
  files.Delete(first).IgnoreError();
  report("create exclusively", CheckExclusive(files, first));
  report("flock", access.check_locks(first));
}

}  // namespace deepnet

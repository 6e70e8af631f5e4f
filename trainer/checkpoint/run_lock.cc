#include "trainer/checkpoint/run_lock.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "google/protobuf/text_format.h"

#include "parallel/base/exit_code.h"
#include "parallel/base/host.h"
#include "parallel/base/messages.h"
#include "parallel/base/status_macros.h"
#include "trainer/checkpoint/format.h"

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
  std::error_code ignored;
  return std::filesystem::read_symlink("/proc/self/ns/pid", ignored).string();
}

struct Process {
  char state = '?';
  int64_t start = 0;  // clock ticks
};

// Reads /proc/<pid>/stat, where the state and the start are fields 3 and 22; field 2 is a name in
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

constexpr char kLockFile[] = "lock";
constexpr int64_t kMaxLockBytes = int64_t{64} << 20;
constexpr size_t kMaxOwnerBytes = 4096;
constexpr absl::Duration kLongestBeat = absl::Minutes(1);
constexpr int kAttempts = 5;

// A beat is a line that protobuf's text format takes for a comment.
constexpr char kBeat[] = "#\n";

// The contents of a lock; an owner without a token could not be read, or not yet.
struct Found {
  std::string contents;
  RunOwner owner;
};

absl::StatusOr<Found> Look(FileSystem& fs, const std::string& path) {
  Found found;
  ASSIGN_OR_RETURN(found.contents, ReadWholeFile(fs, path, kMaxLockBytes));
  const bool readable = ParseTextProto(found.contents, &found.owner) &&
                        IsFileName(found.owner.token()) &&
                        found.owner.ByteSizeLong() <= kMaxOwnerBytes;
  if (!readable) found.owner.Clear();
  return found;
}

absl::Status InUse(const std::string& path, const std::string& what) {
  return absl::AlreadyExistsError(
      absl::StrCat("the run folder is in use: ", what, " holds its lock '", path, "'"));
}

class Acquirer {
 public:
  Acquirer(FileSystem& fs, std::string path, const RunOwner& owner, const RunLockOptions& options)
      : fs_(fs), path_(std::move(path)), owner_(owner), options_(options) {}

  absl::StatusOr<std::unique_ptr<AppendFile>> Acquire() {
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      absl::StatusOr<std::unique_ptr<AppendFile>> file = Create(path_);
      if (!absl::IsAlreadyExists(file.status())) return file;
      const absl::StatusOr<Found> found = Look(fs_, path_);
      if (absl::IsNotFound(found.status())) continue;  // just released
      RETURN_IF_ERROR(found.status());
      RETURN_IF_ERROR(MakeSureItIsDead(*found));
      RETURN_IF_ERROR(TakeOver(*found));
    }
    return InUse(path_, "somebody who comes and goes");
  }

 private:
  absl::StatusOr<std::unique_ptr<AppendFile>> Create(const std::string& path) {
    std::string text;
    google::protobuf::TextFormat::PrintToString(owner_, &text);
    ASSIGN_OR_RETURN(std::unique_ptr<AppendFile> file, fs_.CreateNew(path));
    absl::Status written = file->Append(text);
    written.Update(file->Sync());
    written.Update(fs_.SyncFolder(ParentFolder(path)));
    if (written.ok()) return file;
    fs_.Delete(path).IgnoreError();
    return written;
  }

  // Returns OK if the owner of what was found is dead, or the lock is gone.
  absl::Status MakeSureItIsDead(const Found& found) {
    const bool readable = !found.owner.token().empty();
    const std::string name = readable ? NameOwner(found.owner) : "somebody who has just come";
    const OwnerState state = readable ? options_.state_of(found.owner) : OwnerState::kUnknown;
    if (state == OwnerState::kRuns) return InUse(path_, name);
    if (state == OwnerState::kGone) {
      options_.note(absl::StrCat(name, " is gone; its lock is taken over"));
      return absl::OkStatus();
    }
    const absl::Duration beat =
        std::clamp(absl::Seconds(found.owner.beat_seconds()),
                   std::min(options_.beat, absl::Seconds(10)), kLongestBeat);
    options_.note(absl::StrCat("the run folder is locked by ", name, "; watching for ",
                               absl::FormatDuration(options_.missed_beats * beat),
                               " whether that is still alive"));
    for (int missed = 0; missed < options_.missed_beats; ++missed) {
      options_.wait(beat);
      const absl::StatusOr<Found> now = Look(fs_, path_);
      if (absl::IsNotFound(now.status())) return absl::OkStatus();
      RETURN_IF_ERROR(now.status());
      if (now->contents != found.contents) return InUse(path_, NameOwner(now->owner));
    }
    options_.note(absl::StrCat(name, " has missed ", options_.missed_beats,
                               " beats; its lock is taken over"));
    return absl::OkStatus();
  }

  absl::Status TakeOver(const Found& dead) {
    const std::string claim = absl::StrCat(path_, ".takeover-", dead.owner.token());
    const absl::StatusOr<std::unique_ptr<AppendFile>> claimed = Create(claim);
    if (absl::IsAlreadyExists(claimed.status())) {
      return InUse(path_, absl::StrCat("somebody who is taking it over; if nobody is, delete '",
                                       claim, "': it"));
    }
    RETURN_IF_ERROR(claimed.status());
    const absl::StatusOr<Found> now = Look(fs_, path_);
    if (now.ok() && now->contents == dead.contents) RETURN_IF_ERROR(fs_.Rename(path_, claim));
    return fs_.Delete(claim);
  }

  FileSystem& fs_;
  const std::string path_;
  const RunOwner& owner_;
  const RunLockOptions& options_;
};

// Fails if a file of the run folder is a link: a run writes where its folder is. Links to folders
// are left alone, as of a checkpoint in an archive.
absl::Status RefuseLinks(FileSystem& fs, const std::string& run_folder) {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.List(run_folder));
  for (const std::string& name : names) {
    const std::string path = JoinPath(run_folder, name);
    ASSIGN_OR_RETURN(const FileType type, fs.TypeOf(path));
    if (type != FileType::kLink || fs.List(path).ok()) continue;
    return WithExitCode(
        FailedPrecondition(
            "'", path,
            "' is a symbolic link. Files of a run folder must be files: else what a run "
            "writes goes elsewhere. Copy the file to where the link is, or remove the link"),
        ExitCode::kBadConfig);
  }
  return absl::OkStatus();
}

// Deletes the files that a process which was killed had not finished.
absl::Status RemoveUnusedFiles(FileSystem& fs, const std::string& run_folder) {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.List(run_folder));
  for (const std::string& name : names) {
    const std::string path = JoinPath(run_folder, name);
    if (!IsUnusedName(name) || fs.TypeOf(path).value_or(FileType::kNone) != FileType::kFile)
      continue;
    RETURN_IF_ERROR(fs.Delete(path));
  }
  return absl::OkStatus();
}

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
                       owner.pid_namespace() == PidNamespace() && owner.pid() > 0 &&
                       owner.pid() <= std::numeric_limits<pid_t>::max();
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

absl::StatusOr<std::unique_ptr<RunLock>> RunLock::Acquire(FileSystem& fs,
                                                          const std::string& run_folder,
                                                          RunOwner owner,
                                                          const RunLockOptions& options) {
  const std::string path = JoinPath(run_folder, kLockFile);
  if (options.beat < absl::InfiniteDuration()) {
    owner.set_beat_seconds(absl::ToDoubleSeconds(options.beat));
  }
  const std::string context = absl::StrCat("'", run_folder, "'");
  RETURN_IF_ERROR(CheckpointError(fs.MakeFolder(run_folder), context));
  RETURN_IF_ERROR(RefuseLinks(fs, run_folder));
  ASSIGN_OR_RETURN(std::unique_ptr<AppendFile> file,
                   CheckpointError(Acquirer(fs, path, owner, options).Acquire(), context));
  std::unique_ptr<RunLock> lock(new RunLock(fs, path, std::move(file), std::move(owner)));
  if (options.beat < absl::InfiniteDuration()) {
    ASSIGN_OR_RETURN(lock->heartbeat_, StartThread([lock = lock.get(), beat = options.beat] {
                       lock->KeepBeating(beat);
                     }));
  }
  RETURN_IF_ERROR(CheckpointError(RemoveUnusedFiles(fs, run_folder), context));
  return lock;
}

RunLock::~RunLock() {
  {
    const absl::MutexLock lock(&mutex_);
    leaving_ = true;
  }
  if (heartbeat_.joinable()) heartbeat_.join();
  if (!Check().ok()) return;
  fs_.Delete(path_).IgnoreError();
  fs_.SyncFolder(ParentFolder(path_)).IgnoreError();
}

absl::Status RunLock::Check() {
  const absl::MutexLock lock(&mutex_);
  if (!lost_.ok()) return lost_;
  const absl::StatusOr<Found> found = Look(fs_, path_);
  const bool readable = found.ok() || absl::IsNotFound(found.status());
  if (!readable || (found.ok() && found->owner.token() == owner_.token())) return lost_;
  const std::string now = found.ok() ? NameOwner(found->owner) : "nobody";
  lost_ = WithExitCode(absl::AbortedError(absl::StrCat("the run folder's lock '", path_,
                                                       "' was taken away and is held by ", now)),
                       ExitCode::kCheckpoint);
  return lost_;
}

absl::Status RunLock::Beat() {
  {
    const absl::MutexLock lock(&mutex_);
    if (file_->Append(kBeat).ok()) file_->Sync().IgnoreError();
  }
  return Check();
}

void RunLock::KeepBeating(absl::Duration beat) {
  for (;;) {
    {
      const absl::MutexLock lock(&mutex_);
      if (mutex_.AwaitWithTimeout(absl::Condition(&leaving_), beat)) return;
    }
    if (!Beat().ok()) return;
  }
}

}  // namespace deepnet

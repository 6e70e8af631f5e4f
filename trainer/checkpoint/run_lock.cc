#include "trainer/checkpoint/run_lock.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/text_format.h"

#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "trainer/checkpoint/format.h"

namespace deepnet {
namespace {

constexpr char kLockFile[] = "lock";
constexpr int64_t kMaxLockBytes = int64_t{64} << 20;
constexpr int kAttempts = 5;

// Beats are lines that text form takes for comments.
constexpr char kBeat[] = "#\n";

// What is in a lock now; an owner without a token: not, or not yet, readable.
struct Found {
  std::string contents;
  RunOwner owner;
};

class SilentCollector final : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int, int, const std::string&) override {}
};

absl::StatusOr<Found> Look(FileSystem& fs, const std::string& path) {
  Found found;
  ASSIGN_OR_RETURN(found.contents, ReadWholeFile(fs, path, kMaxLockBytes));
  SilentCollector silent;
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&silent);
  if (!parser.ParseFromString(found.contents, &found.owner)) found.owner.Clear();
  return found;
}

absl::Status InUse(const std::string& path, const std::string& what) {
  return WithExitCode(absl::AlreadyExistsError(absl::StrCat("the run folder is in use: ", what,
                                                            " holds its lock '", path, "'")),
                      ExitCode::kCheckpoint);
}

class Taker {
 public:
  Taker(FileSystem& fs, std::string path, const RunOwner& owner, const RunLockOptions& options)
      : fs_(fs), path_(std::move(path)), owner_(owner), options_(options) {}

  absl::StatusOr<std::unique_ptr<AppendFile>> Take() {
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

  // OK: the owner of what was found is dead, or the lock is gone.
  absl::Status MakeSureItIsDead(const Found& found) {
    const bool readable = !found.owner.token().empty();
    const std::string name = readable ? NameOwner(found.owner) : "somebody who has just come";
    const OwnerState state = readable ? options_.state_of(found.owner) : OwnerState::kUnknown;
    if (state == OwnerState::kRuns) return InUse(path_, name);
    if (state == OwnerState::kGone) {
      Note(absl::StrCat(name, " is gone; its lock is taken over"));
      return absl::OkStatus();
    }
    const absl::Duration beat = std::max(std::min(options_.beat, absl::Seconds(10)),
                                         absl::Seconds(found.owner.beat_seconds()));
    Note(absl::StrCat("the run folder is locked by ", name, "; watching for ",
                      absl::FormatDuration(options_.missed_beats * beat),
                      " whether that is still alive"));
    for (int missed = 0; missed < options_.missed_beats; ++missed) {
      options_.wait(beat);
      const absl::StatusOr<Found> now = Look(fs_, path_);
      if (absl::IsNotFound(now.status())) return absl::OkStatus();
      RETURN_IF_ERROR(now.status());
      if (now->contents != found.contents) return InUse(path_, NameOwner(now->owner));
    }
    Note(absl::StrCat(name, " has missed ", options_.missed_beats,
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
    if (now.ok() && now->contents == dead.contents) {
      RETURN_IF_ERROR(fs_.Rename(path_, claim));
    }
    return fs_.Delete(claim);
  }

  void Note(const std::string& sentence) const {
    if (options_.note) options_.note(sentence);
  }

  FileSystem& fs_;
  const std::string path_;
  const RunOwner& owner_;
  const RunLockOptions& options_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RunLock>> RunLock::Acquire(FileSystem& fs,
                                                          const std::string& run_folder,
                                                          RunOwner owner, RunLockOptions options) {
  const std::string path = JoinPath(run_folder, kLockFile);
  if (options.beat < absl::InfiniteDuration()) {
    owner.set_beat_seconds(absl::ToDoubleSeconds(options.beat));
  }
  const auto take = [&]() -> absl::StatusOr<std::unique_ptr<AppendFile>> {
    RETURN_IF_ERROR(fs.MakeFolder(run_folder));
    return Taker(fs, path, owner, options).Take();
  };
  absl::StatusOr<std::unique_ptr<AppendFile>> file = take();
  if (!file.ok()) return CheckpointError(file.status(), absl::StrCat("'", run_folder, "'"));
  return std::unique_ptr<RunLock>(
      new RunLock(fs, path, *std::move(file), std::move(owner), options));
}

RunLock::RunLock(FileSystem& fs, std::string path, std::unique_ptr<AppendFile> file, RunOwner owner,
                 const RunLockOptions& options)
    : fs_(fs), path_(std::move(path)), owner_(std::move(owner)), file_(std::move(file)) {
  if (options.beat < absl::InfiniteDuration()) {
    heartbeat_ = std::thread([this, beat = options.beat] { KeepBeating(beat); });
  }
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

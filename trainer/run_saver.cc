// The ranks walk through the phases together; each phase is one piece of work in the background,
// and what a rank learns of the others, it learns in Advance.
#include "trainer/run_saver.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "parallel/base/check.h"
#include "parallel/base/clock.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/agreement.h"
#include "parallel/comm/collectives.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/retention.h"

namespace deepnet {
namespace {

// Adds the time between its making and its end to `seconds`.
class Stopwatch {
 public:
  explicit Stopwatch(double& seconds) : seconds_(seconds), began_(SecondsNow()) {}
  ~Stopwatch() { seconds_ += SecondsNow() - began_; }

  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double& seconds_;
  const double began_;
};

int64_t TensorBytes(const Manifest& manifest) {
  int64_t bytes = 0;
  for (const ShardFile& file : manifest.files()) bytes += file.bytes();
  return bytes;
}

}  // namespace

RunSaver::RunSaver(FileSystem& fs, RunSaverOptions options, const RankPart& part)
    : fs_(fs), options_(std::move(options)), part_(part), snapshot_(part, options_.copies) {}

absl::Status RunSaver::Open() {
  task_.Start([this] {
    snapshot_.TakeMemory();
    return absl::OkStatus();
  });
  const absl::Status removed = leads() ? RemoveUnfinished(fs_, options_.folder) : absl::OkStatus();
  return AgreeOnStatus(*part_.world,
                       removed.ok() ? removed : WithExitCode(removed, ExitCode::kCheckpoint));
}

void RunSaver::Begin(const Manifest& state) {
  DEEPNET_CHECK(!busy());
  began_ = SecondsNow();
  stall_seconds_ = 0.0;
  const Stopwatch stall(stall_seconds_);
  manifest_ = state;
  manifest_.clear_files();
  snapshot_.Look();
  phase_ = Phase::kWriting;
  copied_ = !options_.copies;
  task_.Start([this]() -> absl::Status {
    snapshot_.Copy();
    copied_ = true;
    copied_.notify_all();
    ASSIGN_OR_RETURN(file_,
                     WriteShard(fs_, options_.folder, manifest_.step(), part_.world->rank(),
                                part_.world->size(), manifest_.block_bytes(), snapshot_.tensors()));
    return absl::OkStatus();
  });
  if (!options_.copies) task_.Wait().IgnoreError();  // Advance asks again
}

void RunSaver::AwaitCopy() {
  if (copied_) return;
  const Stopwatch stall(stall_seconds_);
  copied_.wait(false);
}

absl::Status RunSaver::Advance() {
  DEEPNET_CHECK(busy());
  const Stopwatch stall(stall_seconds_);
  switch (phase_) {
    case Phase::kNone:
      break;
    case Phase::kWriting:
      return EndWriting();
    case Phase::kCommitting:
      return EndCommit();
    case Phase::kTidying:
      if (const absl::Status tidied = task_.Wait(); !tidied.ok()) {
        options_.warn(std::string(tidied.message()));
      }
      phase_ = Phase::kNone;
  }
  return absl::OkStatus();
}

absl::Status RunSaver::EndWriting() {
  Communicator& world = *part_.world;
  outcome_ = AgreeOnStatus(world, task_.Wait());
  if (!outcome_.ok()) return EndSave();
  ASSIGN_OR_RETURN(const std::vector<std::string> files,
                   AllGatherText(world, file_.SerializeAsString()));
  for (const std::string& bytes : files) manifest_.add_files()->ParseFromString(bytes);
  phase_ = Phase::kCommitting;
  task_.Start([this] { return leads() ? Commit() : absl::OkStatus(); });
  return absl::OkStatus();
}

absl::Status RunSaver::Commit() {
  if (options_.lock != nullptr) RETURN_IF_ERROR(options_.lock->Check());
  RETURN_IF_ERROR(CommitCheckpoint(fs_, options_.folder, manifest_));
  for (const BestScore& best : manifest_.best()) {
    if (best.step() != manifest_.step()) continue;
    RETURN_IF_ERROR(
        SetPointer(fs_, options_.folder, absl::StrCat("best-", best.metric()), best.step()));
  }
  committed_ = SecondsNow();
  return absl::OkStatus();
}

absl::Status RunSaver::EndCommit() {
  outcome_ = AgreeOnStatus(*part_.world, task_.Wait());
  return EndSave();
}

absl::Status RunSaver::EndSave() {
  if (!outcome_.ok() && !IsAgreed(outcome_)) return outcome_;  // a rank is lost
  SaveRecord record;
  record.set_kind("save");
  record.set_step(manifest_.step());
  record.set_stall_seconds(stall_seconds_);
  if (outcome_.ok()) {
    const double end = leads() ? committed_ : SecondsNow();
    record.set_seconds(end - began_);
    record.set_bytes(TensorBytes(manifest_));
    longest_seconds_ = std::max(longest_seconds_, record.seconds());
  } else {
    record.set_seconds(SecondsNow() - began_);
    record.set_error(std::string(outcome_.message()));
  }
  options_.on_end(record);
  if (absl::IsAborted(outcome_)) return outcome_;  // the folder is another job's now
  phase_ = Phase::kTidying;
  task_.Start([this, ok = outcome_.ok()] { return leads() ? Tidy(ok) : absl::OkStatus(); });
  return absl::OkStatus();
}

absl::Status RunSaver::Tidy(bool saved) {
  if (options_.lock != nullptr) RETURN_IF_ERROR(options_.lock->Check());
  if (!saved) return RemoveUnfinished(fs_, options_.folder);
  if (hurry_) return absl::OkStatus();
  return DeleteOldCheckpoints(fs_, options_.folder, options_.keep_latest, options_.keep_every_steps,
                              &hurry_);
}

absl::Status RunSaver::Finish(bool tidy) {
  hurry_ = !tidy;
  while (busy()) {
    {
      const Stopwatch stall(stall_seconds_);
      task_.Wait().IgnoreError();  // Advance asks again
    }
    RETURN_IF_ERROR(Advance());
  }
  hurry_ = false;
  return absl::OkStatus();
}

}  // namespace deepnet

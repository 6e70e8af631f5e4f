#include "trainer/async_checkpointer.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"

#include "parallel/base/check.h"
#include "parallel/base/clock.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/agreement.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/format.h"
#include "trainer/kernels/device_errors.h"

namespace deepnet {
namespace {

// Adds the lifetime of the result to `seconds`.
auto Stopwatch(double& seconds) {
  return absl::MakeCleanup([&seconds, began = SecondsNow()] { seconds += SecondsNow() - began; });
}

}  // namespace

AsyncCheckpointer::AsyncCheckpointer(FileSystem& fs, AsyncCheckpointerOptions options,
                                     const RankContext& context)
    : fs_(fs),
      options_(std::move(options)),
      context_(context),
      snapshot_(context, options_.copies) {}

absl::Status AsyncCheckpointer::Open() {
  absl::Status opened = snapshot_.Pin(options_.threads);
  task_.Start([this] {
    snapshot_.TouchMemory();
    return absl::OkStatus();
  });
  if (opened.ok() && leads()) {
    opened = WithExitCode(RemoveUnfinished(fs_, options_.folder), ExitCode::kCheckpoint);
  }
  return AgreeOnStatus(*context_.world, opened);
}

void AsyncCheckpointer::Begin(const Manifest& state) {
  DEEPNET_CHECK(!busy());
  began_ = SecondsNow();
  stall_seconds_ = 0.0;
  const auto stall = Stopwatch(stall_seconds_);
  manifest_ = state;
  manifest_.clear_files();
  snapshot_.Look();
  phase_ = Phase::kWriting;
  copied_ = !options_.copies || snapshot_.on_device();
  task_.Start([this]() -> absl::Status {
    device_error_ = snapshot_.Copy();
    copied_ = true;
    copied_.notify_all();
    RETURN_IF_ERROR(device_error_);
    ASSIGN_OR_RETURN(file_, WriteShard(fs_, options_.folder, manifest_.step(),
                                       {.index = context_.world->rank(),
                                        .count = context_.world->size(),
                                        .block_bytes = manifest_.block_bytes()},
                                       snapshot_.tensors()));
    return absl::OkStatus();
  });
  if (!options_.copies) task_.Wait().IgnoreError();  // Advance asks again
}

void AsyncCheckpointer::AwaitCopy() {
  snapshot_.HoldUpdate();
  if (copied_) return;
  const auto stall = Stopwatch(stall_seconds_);
  copied_.wait(false);
}

// The ranks go through the phases together. Each phase is one task in the background, and only
// Advance exchanges how it went.
absl::Status AsyncCheckpointer::Advance() {
  const auto stall = Stopwatch(stall_seconds_);
  switch (phase_) {
    case Phase::kNone:
      break;
    case Phase::kWriting:
      return EndWriting();
    case Phase::kCommitting:
      outcome_ = AgreeOnStatus(*context_.world, task_.Wait());
      return EndSave();
    case Phase::kTidying:
      if (const absl::Status tidied = task_.Wait(); !tidied.ok()) {
        options_.warn(std::string(tidied.message()));
      }
      phase_ = Phase::kNone;
  }
  return absl::OkStatus();
}

absl::Status AsyncCheckpointer::EndWriting() {
  Communicator& world = *context_.world;
  const absl::Status written = task_.Wait();
  // A device that fails ends the job: there is nothing to go on with.
  RETURN_IF_ERROR(CatchErrors([&] { return device_error_; }, context_.device_use()));
  outcome_ = AgreeOnStatus(world, written);
  if (!outcome_.ok()) return EndSave();
  ASSIGN_OR_RETURN(const std::vector<ShardFile> files, AllGatherMessages(world, file_));
  manifest_.mutable_files()->Assign(files.begin(), files.end());
  phase_ = Phase::kCommitting;
  task_.Start([this] { return leads() ? Commit() : absl::OkStatus(); });
  return absl::OkStatus();
}

absl::Status AsyncCheckpointer::Commit() {
  if (options_.lock != nullptr) RETURN_IF_ERROR(options_.lock->Check());
  RETURN_IF_ERROR(CommitCheckpoint(fs_, options_.folder, manifest_));
  for (const BestScore& best : manifest_.best()) {
    if (best.step() != manifest_.step()) continue;
    RETURN_IF_ERROR(SetPointer(fs_, options_.folder,
                               absl::StrCat(kBestPointerPrefix, best.metric()), best.step()));
  }
  committed_ = SecondsNow();
  return absl::OkStatus();
}

absl::Status AsyncCheckpointer::EndSave() {
  if (!outcome_.ok() && !IsAgreed(outcome_)) return outcome_;  // a rank is lost
  SaveRecord record;
  record.set_kind("save");
  record.set_step(manifest_.step());
  record.set_stall_seconds(stall_seconds_);
  record.set_seconds((outcome_.ok() && leads() ? committed_ : SecondsNow()) - began_);
  if (outcome_.ok()) {
    record.set_bytes(TensorBytes(manifest_));
    longest_seconds_ = std::max(longest_seconds_, record.seconds());
  } else {
    record.set_error(std::string(outcome_.message()));
  }
  options_.on_end(record);
  if (absl::IsAborted(outcome_)) return outcome_;  // the folder is another job's now
  phase_ = Phase::kTidying;
  task_.Start([this, ok = outcome_.ok()] { return leads() ? Tidy(ok) : absl::OkStatus(); });
  return absl::OkStatus();
}

absl::Status AsyncCheckpointer::Tidy(bool saved) {
  if (options_.lock != nullptr) RETURN_IF_ERROR(options_.lock->Check());
  if (!saved) return RemoveUnfinished(fs_, options_.folder);
  if (hurry_) return absl::OkStatus();
  return DeleteOldCheckpoints(fs_, options_.folder, options_.keep, &hurry_);
}

absl::Status AsyncCheckpointer::Finish(bool tidy) {
  hurry_ = !tidy;
  while (busy()) {
    {
      const auto stall = Stopwatch(stall_seconds_);
      task_.Wait().IgnoreError();  // Advance asks again
    }
    RETURN_IF_ERROR(Advance());
  }
  hurry_ = false;
  return absl::OkStatus();
}

}  // namespace deepnet

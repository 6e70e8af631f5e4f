#include "parallel/exec/vigil.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "parallel/base/clock.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "parallel/exec/watchdog.h"

namespace deepnet {
namespace {

// Rounds within the longest silence: a rank is found out after at most 1 + 1 / kRounds of it.
constexpr int kRounds = 4;
// How soon a rank that leaves with an error stops waiting for a round's letters.
constexpr absl::Duration kSlice = absl::Milliseconds(50);
constexpr size_t kMostText = 200;

// What a rank tells the others in a round; of one size, so that nobody has to ask for it.
struct Letter {
  int64_t beats = 0;
  bool waits = false;
  bool leaves = false;
  char what[kMostText + 1] = {};
};

// What is known of a rank: its last letter, and when it last beat.
struct Seen {
  Letter last;
  double beat_at = 0.0;  // seconds of SecondsNow()
};

absl::Status Hang(const std::string& text, absl::Duration longest) {
  return WithExitCode(absl::DeadlineExceededError(absl::StrCat(text, ": no progress for ",
                                                               absl::FormatDuration(longest),
                                                               " (parallel.step_timeout_seconds)")),
                      ExitCode::kHang);
}

std::string TextOf(int rank, const Letter& letter) {
  return absl::StrCat("rank ", rank, ", ", letter.what, letter.waits ? " (waits)" : "");
}

}  // namespace

class Vigil::Impl {
 public:
  Impl(std::unique_ptr<Communicator> group, const Pulse& pulse, absl::Duration longest,
       OnStuck on_stuck)
      : group_(std::move(group)),
        pulse_(pulse),
        longest_(longest),
        on_stuck_(std::move(on_stuck)),
        letters_(group_->size()),
        seen_(group_->size()),
        thread_([this] { Watch(); }) {}

  ~Impl() { Leave(given_up_); }

  absl::Status End() {
    Leave(ended_);
    return outcome_;
  }

 private:
  // Sets `how`, one of the flags, and waits for the thread.
  void Leave(bool& how) {
    {
      const std::lock_guard lock(mutex_);
      how = true;
    }
    changed_.notify_one();
    if (thread_.joinable()) thread_.join();
  }

  bool GivenUp() {
    const std::lock_guard lock(mutex_);
    return given_up_;
  }

  void Watch() {
    for (Seen& seen : seen_) seen.beat_at = SecondsNow();
    while (true) {
      const bool leaves = Sleep();
      if (GivenUp()) return;
      const absl::Status told = Exchange(leaves);
      if (GivenUp()) return;
      if (absl::IsAborted(told)) {  // the job has ended without this
        outcome_ = told;
        return;
      }
      if (!told.ok()) return Report(OfSilentThread(told));
      const auto leaving = [](const Letter& letter) { return letter.leaves; };
      if (std::all_of(letters_.begin(), letters_.end(), leaving)) return;
      const absl::Status judged = Judge();
      if (!judged.ok()) return Report(judged);
    }
  }

  void Report(const absl::Status& stuck) {
    outcome_ = stuck;
    on_stuck_(stuck);
  }

  // Until the next round; not at all at this rank's end, which is what it returns.
  bool Sleep() {
    std::unique_lock lock(mutex_);
    const double seconds = absl::ToDoubleSeconds(longest_) / kRounds;
    changed_.wait_for(lock, std::chrono::duration<double>(seconds),
                      [this] { return ended_ || given_up_; });
    return ended_;
  }

  absl::Status Exchange(bool leaves) {
    asked_at_ = SecondsNow();
    const Pulse::State state = pulse_.Read();
    Letter& mine = letters_[group_->rank()];
    mine = {.beats = state.beats, .waits = state.waits || leaves, .leaves = leaves};
    state.what.copy(mine.what, kMostText);
    std::vector<Buffer> all;
    for (Letter& letter : letters_) all.push_back(Buffer::Of(std::span(&letter, 1)));
    ASSIGN_OR_RETURN(transfer_, group_->AllGather(all[group_->rank()], all));
    absl::Status status;
    do {
      status = transfer_->Wait(std::min(kSlice, longest_));
    } while (absl::IsDeadlineExceeded(status) && !GivenUp() &&
             SecondsNow() - asked_at_ < absl::ToDoubleSeconds(longest_));
    return status;
  }

  // A rank whose threads have all stopped.
  absl::Status OfSilentThread(const absl::Status& status) const {
    if (!absl::IsDeadlineExceeded(status)) {
      return WithExitCode(status, ExitCode::kPeerLost);
    }
    std::vector<std::string> last;
    for (int rank = 0; rank < group_->size(); ++rank) {
      if (rank != group_->rank()) last.push_back(TextOf(rank, seen_[rank].last));
    }
    return Hang(absl::StrCat("rank ", group_->rank(), " hears nothing of another one; last heard: ",
                             absl::StrJoin(last, "; ")),
                longest_);
  }

  // By the moment at which letters were asked for: what a slow exchange takes is nobody's silence.
  absl::Status Judge() {
    const double now = asked_at_;
    std::vector<std::string> stopped, silent;
    for (size_t rank = 0; rank < letters_.size(); ++rank) {
      Seen& seen = seen_[rank];
      if (letters_[rank].beats != seen.last.beats) seen.beat_at = now;
      seen.last = letters_[rank];
      if (now - seen.beat_at < absl::ToDoubleSeconds(longest_)) continue;
      silent.push_back(TextOf(static_cast<int>(rank), seen.last));
      if (!seen.last.waits) stopped.push_back(silent.back());
    }
    if (!stopped.empty()) return Hang(absl::StrJoin(stopped, "; "), longest_);
    if (silent.size() < letters_.size()) return absl::OkStatus();
    return Hang(absl::StrCat("all ranks wait: ", absl::StrJoin(silent, "; ")), longest_);
  }

  const std::unique_ptr<Communicator> group_;
  const Pulse& pulse_;
  const absl::Duration longest_;
  const OnStuck on_stuck_;
  std::vector<Letter> letters_;  // [rank]; of the thread, as are:
  std::vector<Seen> seen_;       // [rank]
  double asked_at_ = 0.0;        // when the last exchange began
  // Kept when it is given up: dropped before the job ends, it would end it with another code.
  std::unique_ptr<Transfer> transfer_;
  absl::Status outcome_;  // to be read when it has ended
  std::mutex mutex_;      // guards the flags
  std::condition_variable changed_;
  bool ended_ = false, given_up_ = false;
  std::thread thread_;  // last: starts when all else is there
};

Vigil::Vigil(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Vigil::~Vigil() = default;

absl::Status Vigil::End() { return impl_->End(); }

absl::StatusOr<std::unique_ptr<Vigil>> Vigil::Keep(Communicator& world, const Pulse& pulse,
                                                   absl::Duration longest, OnStuck on_stuck) {
  Watchdog watchdog(on_stuck);
  watchdog.Begin(
      absl::StrCat("rank ", world.rank(), ", begin of the run: Split of ", world.size(), " ranks"),
      longest);
  ASSIGN_OR_RETURN(auto group, world.Split(/*color=*/0, /*key=*/world.rank()));
  watchdog.End();
  return std::unique_ptr<Vigil>(
      new Vigil(std::make_unique<Impl>(std::move(group), pulse, longest, std::move(on_stuck))));
}

}  // namespace deepnet

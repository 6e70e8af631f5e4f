#include "parallel/comm/heartbeat.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "parallel/base/clock.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/host.h"
#include "parallel/base/status_macros.h"
#include "parallel/base/utf8.h"
#include "parallel/comm/agreement.h"

namespace deepnet {
namespace {

constexpr double kDefaultTimeoutSeconds = 300.0;
constexpr int kFirstStepFactor = 4;

// Rounds within the longest silence: a rank is found out after at most 1 + 1 / kRounds of it.
constexpr int kRounds = 16;
// A rank that leaves with an error stops waiting for a round's letters after at most this long.
constexpr absl::Duration kSlice = absl::Milliseconds(50);
constexpr size_t kMaxText = 200;

// The message of a rank to the others in a round; all have one size, so that nobody asks for it.
struct Letter {
  int64_t beats = 0;
  double longest_seconds = 0.0;  // of silence that its phase allows
  bool waits = false;
  bool leaves = false;
  char what[kMaxText + 1] = {};
};

// The last that was heard of a rank.
struct Seen {
  Letter last;
  double beat_at = SecondsNow();
};

absl::Status Hang(const std::string& text, absl::Duration silence) {
  return WithExitCode(absl::DeadlineExceededError(absl::StrCat(text, ": no progress for ",
                                                               absl::FormatDuration(silence),
                                                               " (parallel.comm_timeout_seconds)")),
                      ExitCode::kHang);
}

// Adds for whom the late one seems to wait.
absl::Status WithSuspect(const absl::Status& status, const Heartbeat& heartbeat) {
  const std::string suspect = heartbeat.suspect();
  if (!absl::IsDeadlineExceeded(status) || suspect.empty()) return status;
  return WithPrefix(absl::StrCat("seems to wait for ", suspect), status);
}

std::string TextOf(int rank, const Letter& letter) {
  return absl::StrCat("rank ", rank, ", ", letter.what, letter.waits ? " (waits)" : "");
}

}  // namespace

absl::Duration CommTimeout(const ParallelSpec& parallel, bool first_step) {
  const double seconds = parallel.comm_timeout_seconds() > 0 ? parallel.comm_timeout_seconds()
                                                             : kDefaultTimeoutSeconds;
  return absl::Seconds(seconds) * (first_step ? kFirstStepFactor : 1);
}

void Heartbeat::Begin(std::string phase, absl::Duration longest_silence) {
  const MutexLock lock(mutex_);
  phase_ = std::move(phase);
  longest_silence_ = longest_silence;
  action_.clear();
  call_.clear();
  waits_ = false;
  Beat();
}

void Heartbeat::Act(std::string action) {
  const MutexLock lock(mutex_);
  action_ = std::move(action);
  call_.clear();
  waits_ = false;
  Beat();
}

void Heartbeat::Call(std::string call) {
  const MutexLock lock(mutex_);
  call_ = std::move(call);
  waits_ = false;
  Beat();
}

void Heartbeat::Wait(std::string call) {
  const MutexLock lock(mutex_);
  call_ = std::move(call);
  waits_ = true;
}

void Heartbeat::GoOn() {
  const MutexLock lock(mutex_);
  waits_ = false;
  Beat();
}

void Heartbeat::SetSuspect(std::string rank) {
  const MutexLock lock(mutex_);
  suspect_ = std::move(rank);
}

std::string Heartbeat::suspect() const {
  const MutexLock lock(mutex_);
  return suspect_;
}

std::string Heartbeat::PhaseAndAction() const {
  const MutexLock lock(mutex_);
  return absl::StrCat(phase_, phase_.empty() || action_.empty() ? "" : ", ", action_);
}

Heartbeat::State Heartbeat::Read() const {
  State state{.beats = beats_, .what = PhaseAndAction()};
  const MutexLock lock(mutex_);
  state.waits = waits_;
  state.longest_silence = longest_silence_;
  if (!call_.empty()) absl::StrAppend(&state.what, state.what.empty() ? "" : ", ", call_);
  return state;
}

class MonitoredCommunicator::MonitoredTransfer final : public Transfer {
 public:
  MonitoredTransfer(MonitoredCommunicator& comm, std::string call, std::unique_ptr<Transfer> inner)
      : comm_(comm),
        call_(std::move(call)),
        place_(comm.heartbeat_.PhaseAndAction()),
        inner_(std::move(inner)) {}

  ~MonitoredTransfer() override {
    if (!late_) return;
    const absl::Status late =
        absl::DeadlineExceededError(absl::StrCat(call_, ": not finished in time"));
    EndJob(comm_, WithExitCode(WithPrefix(absl::StrCat("rank ", comm_.heartbeat_.rank(), ", ",
                                                       comm_.heartbeat_.PhaseAndAction()),
                                          WithSuspect(late, comm_.heartbeat_)),
                               ExitCode::kHang));
  }

  absl::Status Wait(absl::Duration limit) override {
    const bool unlimited = limit == absl::InfiniteDuration();
    if (!inner_->Done()) comm_.heartbeat_.Wait(call_);
    const absl::Status status =
        WithSuspect(inner_->Wait(unlimited ? comm_.comm_timeout_ : limit), comm_.heartbeat_);
    if (status.ok()) comm_.heartbeat_.GoOn();
    late_ = absl::IsDeadlineExceeded(status) && !unlimited;
    return late_ ? status : comm_.EndIfStuck(status, place_);
  }
  bool Done() override { return inner_->Done(); }

 private:
  MonitoredCommunicator& comm_;
  const std::string call_;
  const std::string place_;
  const std::unique_ptr<Transfer> inner_;
  bool late_ = false;  // the last Wait ran out of the time that its caller stated
};

MonitoredCommunicator::MonitoredCommunicator(Communicator& inner, Heartbeat& heartbeat,
                                             absl::Duration comm_timeout)
    : inner_(inner), heartbeat_(heartbeat), comm_timeout_(comm_timeout) {}

std::string MonitoredCommunicator::WithAll(const char* call) const {
  return absl::StrCat(call, " of ", size(), " ranks");
}

Communicator::TransferOr MonitoredCommunicator::StartMessages(Direction direction,
                                                              std::span<const Buffer> buffers,
                                                              int peer, int tag) {
  return Follow(absl::StrCat(MessageText(direction, peer), " of a group of ", size()),
                [&] { return inner_.StartMessages(direction, buffers, peer, tag); });
}

absl::Status MonitoredCommunicator::Connect(const Connections& connections, absl::Duration limit) {
  heartbeat_.Wait(WithAll("Connect"));
  const absl::Status status =
      WithSuspect(inner_.Connect(connections, std::min(limit, comm_timeout_)), heartbeat_);
  if (status.ok()) heartbeat_.GoOn();
  return EndIfStuck(status, heartbeat_.PhaseAndAction());
}

Communicator::TransferOr MonitoredCommunicator::AllToAll(std::span<const Buffer> send,
                                                         std::span<const Buffer> receive) {
  return Follow(WithAll("AllToAll"), [&] { return inner_.AllToAll(send, receive); });
}

Communicator::TransferOr MonitoredCommunicator::AllGather(Buffer mine,
                                                          std::span<const Buffer> all) {
  return Follow(WithAll("AllGather"), [&] { return inner_.AllGather(mine, all); });
}

Communicator::TransferOr MonitoredCommunicator::ReduceScatter(Buffer blocks) {
  return Follow(WithAll("ReduceScatter"), [&] { return inner_.ReduceScatter(blocks); });
}

// The call itself blocks for others, and cannot say for whom; that all have come is known before.
absl::StatusOr<std::unique_ptr<Communicator>> MonitoredCommunicator::Split(int color, int key) {
  RETURN_IF_ERROR(Barrier());
  heartbeat_.Wait(WithAll("Split"));
  ASSIGN_OR_RETURN(auto part, inner_.Split(color, key));
  heartbeat_.GoOn();
  if (part == nullptr) return nullptr;
  auto monitored = std::make_unique<MonitoredCommunicator>(*part, heartbeat_, comm_timeout_);
  monitored->owned_ = std::move(part);
  return monitored;
}

Communicator::TransferOr MonitoredCommunicator::Follow(std::string call,
                                                       absl::FunctionRef<TransferOr()> start) {
  heartbeat_.Call(call);
  TransferOr transfer = start();
  if (!transfer.ok()) return EndIfStuck(transfer.status(), heartbeat_.PhaseAndAction());
  return std::make_unique<MonitoredTransfer>(*this, std::move(call), *std::move(transfer));
}

// The job ends before what is under way is dropped.
absl::Status MonitoredCommunicator::EndIfStuck(const absl::Status& status,
                                               const std::string& place) {
  const bool late = absl::IsDeadlineExceeded(status);
  const bool stuck = late || absl::IsUnavailable(status);
  if (!stuck || comm_timeout_ == absl::InfiniteDuration()) return status;
  const std::string why =
      late ? absl::StrCat("nothing has moved for ", absl::FormatDuration(comm_timeout_),
                          " (parallel.comm_timeout_seconds)")
           : "a peer is lost";
  absl::Status ended = WithExitCode(
      WithPrefix(absl::StrCat("rank ", heartbeat_.rank(), ", ", place, ": ", why), status),
      late ? ExitCode::kHang : ExitCode::kPeerLost);
  EndJob(*this, ended);
  return ended;
}

class HeartbeatMonitor::Impl {
 public:
  Impl(Heartbeat& heartbeat, absl::Duration longest, OnStuck on_stuck)
      : heartbeat_(heartbeat),
        longest_(longest),
        on_stuck_(std::move(on_stuck)),
        letters_(1),
        seen_(1) {
    absl::StatusOr<std::thread> thread = StartThread([this] { Watch(); });
    begun_ = thread.status();
    if (thread.ok()) thread_ = *std::move(thread);
  }

  ~Impl() { Stop(given_up_); }

  const absl::Status& status() const { return begun_; }

  absl::Status Join(Communicator& world) {
    heartbeat_.Act(absl::StrCat("Split of ", world.size(), " ranks"));
    RETURN_IF_ERROR(AgreeOnStatus(world, begun_));
    ASSIGN_OR_RETURN(auto group, world.Split(/*color=*/0, /*key=*/world.rank()));
    const MutexLock lock(mutex_);
    joining_ = std::move(group);
    return absl::OkStatus();
  }

  absl::Status Leave() {
    Stop(ended_);
    return outcome_;
  }

 private:
  // Sets `how`, one of the flags, and waits for the thread.
  void Stop(std::atomic<bool>& how) {
    {
      const MutexLock lock(mutex_);
      how = true;
    }
    changed_.NotifyOne();
    if (thread_.joinable()) thread_.join();
  }

  void Watch() {
    while (true) {
      const bool leaves = Sleep();
      if (given_up_) return;
      const absl::Status told = Exchange(leaves);
      if (given_up_) return;
      if (absl::IsAborted(told)) {  // the job has ended without this
        outcome_ = told;
        return;
      }
      if (!told.ok()) return Report(ExplainSilence(told));
      const auto leaving = [](const Letter& letter) { return letter.leaves; };
      if (std::all_of(letters_.begin(), letters_.end(), leaving)) return;
      const absl::Status judged = Judge();
      if (!judged.ok()) return Report(judged);
      heartbeat_.SetSuspect(LongestBusy());
    }
  }

  void Report(const absl::Status& stuck) {
    outcome_ = stuck;
    on_stuck_(stuck);
  }

  // Sleeps until the next round, and begins to watch a group that has been joined. Returns true,
  // without sleeping, at this rank's end.
  bool Sleep() {
    const MutexLock lock(mutex_);
    changed_.WaitFor(mutex_, longest_ / kRounds, [this] { return ended_ || given_up_; });
    if (joining_ != nullptr) {
      group_ = std::move(joining_);
      letters_.assign(group_->size(), Letter());
      seen_.assign(group_->size(), Seen());
    }
    return ended_;
  }

  // Nobody but this rank is known before a group is joined: then its waits are its own silence.
  absl::Status Exchange(bool leaves) {
    asked_at_ = SecondsNow();
    const Heartbeat::State state = heartbeat_.Read();
    Letter& mine = letters_[group_ != nullptr ? group_->rank() : 0];
    mine = {.beats = state.beats,
            .longest_seconds = absl::ToDoubleSeconds(std::min(state.longest_silence, longest_)),
            .waits = leaves || (state.waits && group_ != nullptr),
            .leaves = leaves};
    state.what.copy(mine.what, kMaxText);
    if (group_ == nullptr) return absl::OkStatus();
    std::vector<Buffer> all;
    for (Letter& letter : letters_) all.push_back(Buffer::Of(std::span(&letter, 1)));
    ASSIGN_OR_RETURN(transfer_, group_->AllGather(all[group_->rank()], all));
    absl::Status status;
    do {
      status = transfer_->Wait(std::min(kSlice, longest_));
      // The suspect is of the last letters, which grow old where no others come.
      if (absl::IsDeadlineExceeded(status)) heartbeat_.SetSuspect("");
    } while (absl::IsDeadlineExceeded(status) && !given_up_ &&
             SecondsNow() - asked_at_ < absl::ToDoubleSeconds(longest_));
    return status;
  }

  // The error where another rank's threads have all stopped.
  absl::Status ExplainSilence(const absl::Status& status) const {
    if (!absl::IsDeadlineExceeded(status)) return WithExitCode(status, ExitCode::kPeerLost);
    std::vector<std::string> last;
    for (int rank = 0; rank < group_->size(); ++rank) {
      if (rank != group_->rank()) last.push_back(TextOf(rank, seen_[rank].last));
    }
    return Hang(absl::StrCat("rank ", group_->rank(), " hears nothing of another one; last heard: ",
                             absl::StrJoin(last, "; ")),
                longest_);
  }

  // Looks for ranks that were silent for too long when letters were asked for: the time that a slow
  // exchange takes is nobody's silence.
  absl::Status Judge() {
    std::vector<std::string> stopped, silent;
    double stopped_seconds = 0.0, silent_seconds = 0.0;
    for (size_t i = 0; i < letters_.size(); ++i) {
      Seen& seen = seen_[i];
      if (letters_[i].beats != seen.last.beats) seen.beat_at = asked_at_;
      seen.last = letters_[i];
      const double longest = seen.last.longest_seconds;
      if (asked_at_ - seen.beat_at < longest) continue;
      const int rank = group_ != nullptr ? static_cast<int>(i) : heartbeat_.rank();
      silent.push_back(TextOf(rank, seen.last));
      silent_seconds = std::max(silent_seconds, longest);
      if (seen.last.waits) continue;
      stopped.push_back(silent.back());
      stopped_seconds = std::max(stopped_seconds, longest);
    }
    if (!stopped.empty()) return Hang(absl::StrJoin(stopped, "; "), absl::Seconds(stopped_seconds));
    if (silent.size() < letters_.size()) return absl::OkStatus();
    return Hang(absl::StrCat("all ranks wait: ", absl::StrJoin(silent, "; ")),
                absl::Seconds(silent_seconds));
  }

  // The other rank that has not beaten for longest, among those that wait for nobody.
  std::string LongestBusy() const {
    const int own = group_ != nullptr ? group_->rank() : 0;
    int busy = own;
    for (int rank = 0; rank < static_cast<int>(seen_.size()); ++rank) {
      if (rank == own || seen_[rank].last.waits) continue;
      if (busy == own || seen_[rank].beat_at < seen_[busy].beat_at) busy = rank;
    }
    return busy == own ? "" : absl::StrCat("rank ", busy, " (", seen_[busy].last.what, ")");
  }

  Heartbeat& heartbeat_;
  const absl::Duration longest_;
  const OnStuck on_stuck_;
  std::unique_ptr<Communicator> group_;  // null before Join; the thread's own, as are:
  std::vector<Letter> letters_;          // [rank of the group]
  std::vector<Seen> seen_;               // [rank of the group]
  double asked_at_ = 0.0;                // when the last exchange began
  // Kept when it is given up: dropped before the job ends, it would end it with another code.
  std::unique_ptr<Transfer> transfer_;
  absl::Status outcome_;  // to be read when the thread has ended
  Mutex mutex_;
  std::unique_ptr<Communicator> joining_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> ended_{false}, given_up_{false};  // which change while the mutex is held
  CondVar changed_;
  absl::Status begun_;
  std::thread thread_;
};

HeartbeatMonitor::HeartbeatMonitor(Heartbeat& heartbeat, absl::Duration longest, OnStuck on_stuck)
    : impl_(std::make_unique<Impl>(heartbeat, longest, std::move(on_stuck))) {}

const absl::Status& HeartbeatMonitor::status() const { return impl_->status(); }
HeartbeatMonitor::~HeartbeatMonitor() = default;

absl::Status HeartbeatMonitor::Join(Communicator& world) { return impl_->Join(world); }
absl::Status HeartbeatMonitor::Leave() { return impl_->Leave(); }

void EndProcess(const absl::Status& status) {
  std::fprintf(stderr, "error: %s\n", ShownLines(std::string(status.message())).c_str());
  std::fflush(stderr);
  std::_Exit(static_cast<int>(GetExitCode(status)));
}

}  // namespace deepnet

// Liveness: nobody waits for ever for a rank that has stopped, and a rank that takes long but gets
// on, on a slow disk for example, is left alone.
//
//   Heartbeat              a count that moves while a rank gets on, and a note of its work
//   MonitoredCommunicator  calls that beat; waits that state no limit get comm_timeout
//   HeartbeatMonitor       a thread of each rank that tells all ranks of each other's heartbeats
//
// A rank is blamed when it has not beaten for too long and does not wait for another rank. Ranks
// that wait are blamed only where all of them do, for each other. So the limit is one on silence,
// not on how long anything takes that beats meanwhile: every action of a schedule, every call of a
// communicator, every call of the file system.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "parallel/base/mutex.h"
#include "parallel/comm/communicator.h"
#include "proto/plan.pb.h"

namespace deepnet {

// Returns parallel.comm_timeout_seconds, 300 if it is not set: the longest wait for one message or
// collective. The first step of a start has four times as long, and so has everything outside of
// steps: memory is touched for the first time, connections are made, other hosts read their corpus.
absl::Duration CommTimeout(const ParallelSpec& parallel, bool first_step);

// In a step a rank may be silent for this long beyond CommTimeout: whoever waits for it can say
// more than the monitor.
inline constexpr absl::Duration kSilenceGrace = absl::Seconds(15);

// Progress of one rank: a count, and a note of its phase, action and call. Thread-safe.
class Heartbeat {
 public:
  struct State {
    int64_t beats = 0;
    bool waits = false;                                         // for other ranks
    absl::Duration longest_silence = absl::InfiniteDuration();  // in this phase
    std::string what;  // "step 12, action 2F0, Send to ..."
  };

  explicit Heartbeat(int rank = 0) : rank_(rank) {}

  int rank() const { return rank_; }  // of the whole job, as errors name it

  // Counts something that is done. Does not change what the rank is at or whether it waits.
  void Beat() { ++beats_; }
  // Begins a phase of the run, in which the rank may be silent for at most `longest_silence` where
  // that is less than the monitor allows; an action inside it; a call inside that. Beats.
  void Begin(std::string phase, absl::Duration longest_silence = absl::InfiniteDuration());
  void Act(std::string action);
  void Call(std::string call);
  // The rank waits for others in `call`, until GoOn or the next phase, action or call. No beat.
  void Wait(std::string call);
  // The others have come. A beat.
  void GoOn();

  State Read() const;
  std::string PhaseAndAction() const;  // without the call

  // The rank for which the others seem to wait and what it is at; empty where nobody knows.
  void SetSuspect(std::string rank);
  std::string suspect() const;

 private:
  const int rank_;
  std::atomic<int64_t> beats_{0};
  mutable Mutex mutex_;
  std::string phase_ ABSL_GUARDED_BY(mutex_), action_ ABSL_GUARDED_BY(mutex_);
  std::string call_ ABSL_GUARDED_BY(mutex_), suspect_ ABSL_GUARDED_BY(mutex_);
  bool waits_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Duration longest_silence_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteDuration();
};

// A communicator whose calls beat, as do those of the groups that Split makes. A wait beats when it
// ends well.
//
// Waits without a limit, those inside other functions included, fail after a finite `comm_timeout`
// with DeadlineExceeded and ExitCode::kHang, and waits whose peer is gone with Unavailable and
// ExitCode::kPeerLost. Both end the job with an error that names the rank, its phase and action,
// what is late, and the Heartbeat's suspect. Waits that state a limit keep it; dropping such a
// transfer after DeadlineExceeded, instead of waiting again, ends the job with ExitCode::kHang.
class MonitoredCommunicator final : public Communicator {
 public:
  // `inner` and `heartbeat` outlive this and the groups that Split makes.
  MonitoredCommunicator(Communicator& inner, Heartbeat& heartbeat,
                        absl::Duration comm_timeout = absl::InfiniteDuration());

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  TransferOr StartMessages(Direction direction, std::span<const Buffer> buffers, int peer,
                           int tag) override;
  absl::Status Connect(const Connections& connections, absl::Duration limit) override;
  TransferOr AllToAll(std::span<const Buffer> send, std::span<const Buffer> receive) override;
  TransferOr AllGather(Buffer mine, std::span<const Buffer> all) override;
  TransferOr ReduceScatter(Buffer blocks) override;
  absl::StatusOr<std::unique_ptr<Communicator>> Split(int color, int key) override;
  void Abort(int exit_code) override { inner_.Abort(exit_code); }

 private:
  class MonitoredTransfer;

  TransferOr Follow(std::string call, absl::FunctionRef<TransferOr()> start);
  absl::Status EndIfStuck(const absl::Status& status, const std::string& place);
  std::string WithAll(const char* call) const;

  std::unique_ptr<Communicator> owned_;  // of a group that Split made
  Communicator& inner_;
  Heartbeat& heartbeat_;
  const absl::Duration comm_timeout_;
};

// Ranks that watch over each other: a thread of each tells all others, 16 times within `longest`,
// what its rank's Heartbeat says. When a rank that waits for nobody has not beaten for `longest`,
// or for what its phase allows, every rank calls `on_stuck` with the name of that rank and of what
// it is at; likewise when all wait, for each other, and when a rank's thread is not heard of.
// Before Join the rank is watched alone, and is blamed for its waits too.
class HeartbeatMonitor {
 public:
  // Called at most once, from the monitor's thread, with DeadlineExceeded and ExitCode::kHang, or
  // with ExitCode::kPeerLost where the group of the monitors is broken.
  using OnStuck = std::function<void(const absl::Status& status)>;

  // `heartbeat` outlives this.
  HeartbeatMonitor(Heartbeat& heartbeat, absl::Duration longest, OnStuck on_stuck);
  // Without Leave, for an error that not all ranks know of: the others are left to themselves.
  // Waits for an on_stuck that runs.
  ~HeartbeatMonitor();

  HeartbeatMonitor(const HeartbeatMonitor&) = delete;
  HeartbeatMonitor& operator=(const HeartbeatMonitor&) = delete;

  // Not OK (ExitCode::kDoesNotFit) where the system gives no thread to watch in.
  const absl::Status& status() const;

  // Collective over `world`, which agrees on status() first, and of which it splits a group for
  // itself. A rank that does not come within `longest` ends the others too.
  absl::Status Join(Communicator& world);

  // Collective after Join: nobody is watched any more. Where a rank does not come, returns what
  // on_stuck was told, if that returns, or Aborted if another rank was faster.
  absl::Status Leave();

 private:
  class Impl;

  const std::unique_ptr<Impl> impl_;
};

// An OnStuck for programs: prints "error: ..." to stderr and ends the process with the status's
// exit code, without destructors, which might wait for what is stuck.
[[noreturn]] void EndProcess(const absl::Status& status);

}  // namespace deepnet

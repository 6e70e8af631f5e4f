// Ranks that watch over each other for as long as a run lasts: nobody waits for ever for a rank
// that has stopped, and whoever takes long but gets on, on a slow disk for example, is left alone.
//
// A thread of each rank sleeps, and several times within `longest` tells all others what its
// rank's Pulse says. When a rank that waits for nobody has not beaten for `longest`, every rank
// ends with ExitCode::kHang and the name of that rank and of what it is at; likewise when all wait,
// for each other, and when a rank's thread is not heard of. So the limit is one on silence: it says
// nothing about how long anything takes that beats meanwhile.
//
// Example:
//   Pulse pulse;
//   PulseCommunicator world(job, pulse);
//   ASSIGN_OR_RETURN(auto vigil, Vigil::Keep(job, pulse, absl::Seconds(1200), EndProcess));
//   pulse.Begin("step 12");
//   ...
//   return vigil->End();
#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "parallel/comm/communicator.h"
#include "parallel/comm/pulse.h"

namespace deepnet {

class Vigil {
 public:
  // Called once, from the vigil's thread, with DeadlineExceeded and ExitCode::kHang.
  using OnStuck = std::function<void(const absl::Status& status)>;

  // Collective over `world`, of which it splits a group for itself; a rank that does not come to
  // that within `longest` ends the others too. `pulse` outlives the result.
  static absl::StatusOr<std::unique_ptr<Vigil>> Keep(Communicator& world, const Pulse& pulse,
                                                     absl::Duration longest, OnStuck on_stuck);
  // Without End: leaves the others to themselves. For errors that not all ranks know of; whoever
  // has one has ended the job.
  ~Vigil();

  Vigil(const Vigil&) = delete;
  Vigil& operator=(const Vigil&) = delete;

  // Collective: nobody is watched any more. A rank that does not come is one that has stopped; then
  // what on_stuck was told, if that returns, or Aborted if another rank was faster.
  absl::Status End();

 private:
  class Impl;
  explicit Vigil(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace deepnet

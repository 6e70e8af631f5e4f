// A run whose ranks watch over each other from its first call to its last.
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "parallel/base/file_system.h"
#include "parallel/comm/communicator.h"
#include "parallel/comm/pulse.h"
#include "parallel/exec/vigil.h"
#include "proto/plan.pb.h"

namespace deepnet {

// What a run works with; all of it tells the pulse how the run gets on.
struct WatchedSurroundings {
  Communicator& world;
  FileSystem& files;
  Pulse& pulse;  // told by the run itself what it is at
};

// Runs `run` under a Vigil. A rank may be silent for as long as a message of a first step may take
// (MakeTimeLimits): without a message, an action or an ended call of the file system. That is for
// one call of a disk, for reading a corpus, for measuring products; a save, or the check of a
// checkpoint, may take any time. The heartbeat of a run folder's lock says nothing of the run.
//
// Collective over `world`; all arguments outlive the call. A rank alone is not watched. `on_stuck`,
// see vigil.h; empty: the error is printed and world.Abort called. So it is with an error of `run`
// that not all ranks agreed on, before this returns.
absl::Status RunWatched(const ParallelSpec& parallel, Communicator& world, FileSystem& files,
                        Vigil::OnStuck on_stuck,
                        const std::function<absl::Status(WatchedSurroundings)>& run);

// `wait` for a rank that waits for no other rank of its job but, for example, for another run's
// lock: slices of it that beat, none longer than a rank may be silent.
std::function<void(absl::Duration)> BeatingWait(std::function<void(absl::Duration)> wait,
                                                const ParallelSpec& parallel, Pulse& pulse);

// Prints an error that not all ranks agreed on, unless it is another rank's, and calls world.Abort
// with its code; does nothing for a rank alone. To be called before anything is destroyed that may
// have transfers under way: when those are dropped first, the job ends with another code.
void EndJobUnlessAgreed(Communicator& world, const absl::Status& status);

}  // namespace deepnet

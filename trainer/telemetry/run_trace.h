// The trace of some steps of a run (`deepnet train --trace`): what every rank did and when.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "parallel/base/file_system.h"
#include "parallel/base/logging.h"
#include "parallel/comm/communicator.h"
#include "parallel/exec/trace.h"
#include "proto/report.pb.h"

namespace deepnet {

class TracedOps;

// Steps of a run, the first of which is 1. From 0: none.
struct StepRange {
  int64_t from = 0, to = 0;
};

class RunTrace {
 public:
  explicit RunTrace(StepRange steps) : steps_(steps) {}

  // Tells that `step` begins. `ops` is of a run that has a trace; else null.
  void Begin(int64_t step, TracedOps* ops);

  // Returns what the current step's events are added to, until the next Begin; null where it is not
  // traced.
  RankTrace* current() { return step_ >= 0 ? &trace_ : nullptr; }

  // Returns true if nothing is left to be traced but something to be written, now that `step` has
  // ended; with `last`, no step follows it.
  bool Due(int64_t step, bool last = false) const {
    return step_ >= 0 && (last || step >= steps_.to);
  }

  // Adds a save of this rank that has just ended, if the current step is traced.
  void AddSave(const SaveRecord& record);

  // Writes what Take returns into `folder`, where a failure is only a warning. Collective.
  absl::Status Write(Communicator& world, TracedOps& ops, FileSystem& fs, const std::string& folder,
                     Logger& log);

  // Waits for the device, and forgets all events. Returns those of all ranks as a Chrome trace on
  // rank 0, nothing elsewhere. Collective.
  absl::StatusOr<std::string> Take(Communicator& world, TracedOps& ops);

 private:
  void NumberEvents();
  void AddKernels(TracedOps& ops);

  const StepRange steps_;
  int64_t step_ = -1;  // the current one; -1: not traced
  int64_t first_step_ = -1, last_step_ = -1;
  size_t numbered_ = 0;  // events that have their step
  RankTrace trace_;
};

}  // namespace deepnet

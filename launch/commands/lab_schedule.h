// Cells side by side: which start when, on how many cores and bytes, until all have ended.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "launch/commands/lab_cells.h"
#include "parallel/base/file_system.h"
#include "parallel/base/logging.h"
#include "proto/lab.pb.h"

namespace deepnet {

struct LabLimits {
  int jobs = 1;       // cells at once at most
  int64_t bytes = 0;  // memory of all cells that run at once; one alone may have more
  int threads = 1;    // each; 0: left to the program
};

// How many cells run at once, and with how many threads: as many as there are cores, pending cells,
// and room for the largest ones. `jobs` > 0: that many, whatever the cores.
LabLimits MakeLabLimits(const std::vector<const LabJob*>& pending, int cores, int64_t host_bytes,
                        int jobs);

// Where a launcher starts them: what they need is elsewhere, so one at a time, or `jobs`, and
// threads are left to the program.
LabLimits MakeLaunchedLimits(int jobs);

// What RunLabJobs is given beside the cells.
struct LabSchedule {
  const Experiment& experiment;
  const LabSetup& setup;
  LabLimits limits;
  bool keep_models = false;             // run folders stay
  std::atomic<int>* request = nullptr;  // any bit: stop; may be null
  // Called after each cell that has ended, with its result, which is on disk by then.
  std::function<absl::Status(const LabCell& cell)> ended = {};
};

// Runs `train`, then `evaluate` where that succeeded, for each of `pending`, in order; of one that
// has a checkpoint to begin with, only `evaluate`. A cell that ends with exit code 7 has diverged,
// with another one it has failed; the others go on. Shows progress over all cells. Cancelled, after
// all programs have saved and ended, where it was asked to stop: the same call goes on later. Other
// errors are of files.
absl::Status RunLabJobs(FileSystem& fs, const std::vector<const LabJob*>& pending,
                        const LabSchedule& schedule, Logger& log);

}  // namespace deepnet

// The parts of `deepnet rehearse` that tests look at: the plans it runs, and the data it fetches.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "parallel/exec/rehearsal.h"
#include "parallel/plan/inventory.h"
#include "proto/run.pb.h"
#include "trainer/data/corpus.h"
#include "trainer/data/microbatch.h"

namespace deepnet {

struct RehearsalCase {
  std::string name;                   // "interleaved, v=4"
  int microbatches = 1;               // of the first replica in one step, which has most
  std::string microbatches_text;      // of all: "16", "17 or 16"
  double planned_step_seconds = 0.0;  // the plan's own: everything exposed comes after the pipeline
  RehearsalJob job;                   // all in it is the planner's
};

// The plan that `train` would follow, without asking whether it fits into memory. Errors are
// MakePlan's.
absl::StatusOr<RehearsalCase> PlannedCase(const RunSpec& run, const Inventory& inventory);

// Every schedule on as many stages as that plan has: 1F1B, interleaved with 2, 4 and 8 chunks a
// rank, ZB-H1, ZB-V, as far as there are layers for their chunks. Errors are MakePlan's.
absl::StatusOr<std::vector<RehearsalCase>> ComparedCases(const RunSpec& run,
                                                         const Inventory& inventory);

// The data of a rehearsed run: the batches that `train` would get, fetched in the same way, if
// there is a corpus. One per process.
class RehearsalData {
 public:
  // `folder`: run.data().folder() as this process reaches it. Null if no corpus was prepared there.
  // InvalidArgument (ExitCode::kBadConfig) where the corpus has another vocabulary than the model;
  // errors of a corpus that is not whole have ExitCode::kData.
  static absl::StatusOr<std::unique_ptr<RehearsalData>> Open(const RunSpec& run,
                                                             const std::string& folder);

  // Makes the batch of `step` and lets a thread prepare the next one. Thread-safe: ranks that are
  // threads of one process share one batch, because they share its cores, too; all of them have
  // `step` before one asks for another. Returns the number of target positions.
  absl::StatusOr<int64_t> Fetch(int64_t step);

  const std::string& content_hash() const { return corpus_.content_hash(); }

 private:
  explicit RehearsalData(Corpus corpus) : corpus_(std::move(corpus)) {}

  const Corpus corpus_;
  absl::Mutex mutex_;
  std::unique_ptr<BatchSource> batches_ ABSL_PT_GUARDED_BY(mutex_);
  int64_t step_ ABSL_GUARDED_BY(mutex_) = -1;
  int64_t target_tokens_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace deepnet

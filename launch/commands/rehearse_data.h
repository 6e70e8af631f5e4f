// The data of a rehearsed run: the batches that `train` would get, fetched in the same way, if
// there is a corpus.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "proto/run.pb.h"
#include "trainer/data/corpus.h"
#include "trainer/data/microbatch.h"

namespace deepnet {

// Of one process.
class RehearsalData {
 public:
  // `folder`: run.data().folder() as this process reaches it. Null if no corpus was prepared there.
  // InvalidArgument (ExitCode::kBadConfig) where the corpus has another vocabulary than the model;
  // errors of a corpus that is not whole have ExitCode::kData.
  static absl::StatusOr<std::unique_ptr<RehearsalData>> Open(const RunSpec& run,
                                                             const std::string& folder);

  // Makes the batch of `step` and lets a thread prepare the next one. Thread-safe: ranks that are
  // threads of one process share one batch, because they share its cores, too; all of them have
  // `step` before one asks for another.
  absl::Status Fetch(int64_t step);

  // Target positions of the batch that was fetched last.
  int64_t target_tokens() const { return target_tokens_; }
  const std::string& content_hash() const { return corpus_.content_hash(); }

 private:
  explicit RehearsalData(Corpus corpus) : corpus_(std::move(corpus)) {}

  const Corpus corpus_;
  std::unique_ptr<BatchSource> batches_;
  std::mutex mutex_;  // guards batches_ and what follows
  int64_t step_ = -1;
  int64_t target_tokens_ = 0;
};

}  // namespace deepnet

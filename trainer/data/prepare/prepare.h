// Turns raw parallel text into clean pairs, a tokenizer, shards and a corpus report.
//
// Each training file is read twice (once to find duplicates and sample sentences, once to write
// shards), dev and test once. Memory stays below 1 GiB whatever the corpus, tokenizer training
// apart; docs/design/data.md has the account.
#pragma once

#include <string>

#include "absl/status/statusor.h"

#include "proto/data.pb.h"
#include "trainer/data/prepare/options.h"

namespace deepnet {

// Does what `spec` says (its values are checked: launch/validate.h) and makes the corpus `folder`;
// relative paths are under `root`. The folder is complete or does not exist. A corpus of the same
// spec and the same input files that is there already is kept, and its report returned with
// `reused`; a different one is an error unless spec.replace or options.extend. What was finished of
// an interrupted preparation, or is the same in a corpus that is replaced, is taken over.
//
// The corpus is the same for any number of ranks, which must see one file system. Rank 0 returns
// the report and has the progress, the others an empty one; so does rank 0 of a dry run.
//
// Errors carry ExitCode::kData and name files and lines. One that not all ranks know of (IsAgreed)
// must end the job.
absl::StatusOr<CorpusReport> Prepare(const PrepareSpec& spec, const std::string& folder,
                                     const std::string& root, const ProgressFn& progress,
                                     const PrepareOptions& options = {});

}  // namespace deepnet

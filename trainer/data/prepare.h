// Turns raw parallel text into clean pairs, a tokenizer, shards and a corpus report.
//
// Each training file is read twice (once to find duplicates and sample sentences, once to write
// shards), dev and test once. Memory stays below 1 GiB whatever the corpus, tokenizer training
// apart; docs/design/data.md has the account.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

#include "proto/data.pb.h"

namespace deepnet {

// Called with complete lines for a person about the progress.
using ProgressFn = std::function<void(std::string_view)>;

// Does what `spec` says (its values are checked: launch/validate.h) and makes the corpus `folder`;
// relative paths are under `root`. Everything is written to <folder>.tmp and renamed at the end: a
// folder of that name is complete or does not exist. A corpus of the same spec and the same input
// files that is there already is kept, and its report returned with `reused`; a different one
// is an error unless spec.replace.
//
// Errors carry ExitCode::kData and name files and lines.
absl::StatusOr<CorpusReport> Prepare(const PrepareSpec& spec, const std::string& folder,
                                     const std::string& root, const ProgressFn& progress);

}  // namespace deepnet

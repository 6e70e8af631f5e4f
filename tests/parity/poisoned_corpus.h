// A corpus for tests of spikes: made-up text that a tiny model learns in some ten steps, and pairs
// that are spoiled on disk as a broken shard is.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "absl/status/status.h"

#include "proto/data.pb.h"

namespace deepnet::testing {

// Prepares `pairs` made-up pairs of en and xx into root/folder.
absl::Status MakeMadeUpCorpus(const std::filesystem::path& root, const std::string& folder,
                              int pairs);

// Replaces, in the shard of the corpus at `folder`, every piece of both sides of all pairs that a
// run of `data` and `seed` trains on in steps `first` to `last` (the first is 1) by one that no
// text has: a language tag. Lengths, and with them the order of the data, stay, and so do the
// hashes, which are not looked at while training. `data` has defaults filled in and one direction.
absl::Status PoisonSteps(const std::string& folder, DataSpec data, uint64_t seed, int64_t first,
                         int64_t last);

}  // namespace deepnet::testing

// The sentence lengths that the benchmarks run on.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace deepnet {

// {source, target} tokens of each sentence pair in `file`: JSON, [[source, target], ...]. Fails
// with ExitCode::kData, naming the file and the entry.
absl::StatusOr<std::vector<std::pair<int, int>>> ReadBenchLengths(const std::string& file);

}  // namespace deepnet

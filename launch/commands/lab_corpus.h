// What an experiment says of the corpus it learned from.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "proto/lab.pb.h"

namespace deepnet {

// What runs read of a corpus.
struct LabReading {
  std::vector<std::string> directions = {};  // empty: all
  int dev_sentences = 0;                     // the first ones of each direction; 0: all
  int test_sentences = 0;
};

// Of the prepared corpus in `folder` as it can be opened. Word frequencies are those of the target
// sides, </s> included, of at most some hundred thousand training pairs of each direction; a piece
// that does not occur there counts as if it had once. Errors carry ExitCode::kData.
absl::StatusOr<LabData> DescribeLabData(const std::string& folder, const LabReading& reading);

}  // namespace deepnet

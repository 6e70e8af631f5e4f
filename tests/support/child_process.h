// Starts a program as a user would, and measures it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace deepnet::testing {

struct ChildOutcome {
  int code = -1;           // exit code; -1: it could not be started, or a signal ended it
  std::string output;      // stdout and stderr
  double seconds = 0.0;    // from start to end
  int64_t peak_bytes = 0;  // most memory that was ever resident, shared libraries included
};

// Runs `words`, the first of which is a program's path or a name to be looked up, and waits for it.
// peak_bytes is at least the caller's own resident memory at this moment.
ChildOutcome RunChild(const std::vector<std::string>& words);

}  // namespace deepnet::testing

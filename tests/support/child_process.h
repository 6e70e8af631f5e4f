// A program started as a user would, and what it took.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace deepnet::testing {

struct ChildOutcome {
  int code = -1;           // exit code; -1: it could not be started, or a signal ended it
  std::string output;      // of stdout and stderr
  double seconds = 0.0;    // from start to end
  int64_t peak_bytes = 0;  // most memory that was ever resident, shared libraries included
};

// Runs `words`, the first of them a program's path or a name to be looked for, and waits for it.
// The caller's own resident memory at this moment is the least that peak_bytes can say.
ChildOutcome RunChild(const std::vector<std::string>& words);

}  // namespace deepnet::testing

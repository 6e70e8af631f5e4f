// PrepareOptions holds what Prepare() is told besides the spec; its stages see it too.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "parallel/comm/communicator.h"

namespace deepnet {

// Called with complete lines for a person about the progress.
using ProgressFn = std::function<void(std::string_view)>;

struct PrepareOptions {
  // The ranks that share the work; every one calls Prepare. Null: this process alone.
  Communicator* world = nullptr;
  // A corpus of another spec is replaced by one with its tokenizer.
  bool extend = false;
  // Only `progress` is told what is ahead, in size and time; tables are not counted.
  bool dry_run = false;
  bool verify = false;                     // a corpus that is there already is read to its end
  int64_t block_lines = int64_t{1} << 15;  // of the smallest block, a multiple of 64
};

}  // namespace deepnet

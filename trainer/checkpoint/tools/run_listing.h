// What checkpoints a run folder holds, as a person wants to know it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "parallel/base/file_system.h"
#include "proto/checkpoint.pb.h"
#include "trainer/checkpoint/tools/tool_options.h"

namespace deepnet {

enum class CheckpointState {
  kWhole,       // as far as was looked
  kDamaged,     // see `problem`
  kUnfinished,  // a save or a deletion that was cut short: removed by the next save
  kReplaced,    // an earlier save of the same step, about to be deleted; readers may still use it
};

struct ListedCheckpoint {
  std::string folder;  // "run/step-00000010"
  int64_t step = 0;
  CheckpointState state = CheckpointState::kWhole;
  std::vector<std::string> problems = {};  // a sentence each
  int64_t bytes = 0;                       // of all files that are there
  std::vector<std::string> marks = {};     // pointers that name it, sorted: "best-bleu", "latest"
  Manifest manifest = {};                  // without files; empty where it cannot be read
};

struct RunListing {
  std::vector<ListedCheckpoint> checkpoints;  // ascending by step
  std::vector<std::string> notes;             // pointers that name nothing, or cannot be read
};

enum class ListDepth {
  kSizes,     // manifests, and whether their files are there in the right size
  kContents,  // every byte
};

// Error, with ExitCode::kCheckpoint, if there is no such folder. An empty list is none.
absl::StatusOr<RunListing> ListRun(FileSystem& fs, const std::string& run_folder, ListDepth depth,
                                   const ToolOptions& options);

// The checkpoint folder that a person means by `path`: as ResolveCheckpoint() of checkpoint.h has
// it, but contents are not looked at; of a run folder, the newest one with a good manifest. No
// slash at the end.
absl::StatusOr<std::string> ChooseCheckpoint(FileSystem& fs, const std::string& path,
                                             const ToolOptions& options);

}  // namespace deepnet

// Lists what a run folder holds, verifies it, and compares the tensors of two checkpoints.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "parallel/base/file_system.h"
#include "proto/checkpoint.pb.h"
#include "trainer/checkpoint/tools/tensor_reader.h"

namespace deepnet {

// A damaged place.
struct Damage {
  std::string file;                       // its name in the checkpoint's folder
  int64_t block = -1;                     // -1: the file as a whole, missing or of another size
  int64_t begin = 0, end = 0;             // the damaged bytes of the file
  std::string text = {};                  // a sentence, with the file's path
  std::vector<std::string> tensors = {};  // all that have bytes there
};

struct VerifyReport {
  std::string folder;
  int64_t step = 0;
  int64_t files = 0, blocks = 0, bytes = 0;  // as the manifest says
  int64_t tensors = 0;
  std::vector<Damage> damage = {};  // ascending by file and block; empty if all is intact
};

// Compares every byte of a checkpoint with its checksums, and finds all damage, not just the first.
// The ranks of options.world have about equally many blocks each.
// Fails only if the manifest itself cannot be used or `options.memory_bytes` is too little; damage
// to tensors is in the report. Holds the manifest and 1 MiB.
absl::StatusOr<VerifyReport> VerifyCheckpoint(FileSystem& fs, const std::string& checkpoint_folder,
                                              const ToolOptions& options);

enum class CheckpointState {
  kIntact,      // as far as it was read
  kDamaged,     // see `problems`
  kUnfinished,  // a save or a deletion that was cut short: removed by the next save
  kReplaced,    // an earlier save of the same step, about to be deleted; readers may still use it
};

struct ListedCheckpoint {
  std::string folder;  // "run/step-00000010"
  int64_t step = 0;
  CheckpointState state = CheckpointState::kIntact;
  std::vector<std::string> problems = {};  // a sentence each
  int64_t bytes = 0;                       // of all files that are there
  std::vector<std::string> marks = {};     // pointers that name it, sorted: "best-bleu", "latest"
  Manifest manifest = {};                  // without files; empty where it cannot be read
};

struct RunListing {
  std::vector<ListedCheckpoint>
      checkpoints;                 // ascending by step; of one step the finished one last
  std::vector<std::string> notes;  // pointers that name nothing, or cannot be read
};

enum class ListDepth {
  kSizes,     // manifests, and whether their files are there in the right size
  kContents,  // every byte
};

// Lists a run folder, which may be empty. Fails with ExitCode::kCheckpoint if there is none.
absl::StatusOr<RunListing> ListRun(FileSystem& fs, const std::string& run_folder, ListDepth depth,
                                   const ToolOptions& options);

// Returns the checkpoint folder that `path` stands for, without a slash at the end: as
// ResolveCheckpoint() of checkpoint.h, but contents are not read, and a run folder stands for its
// newest checkpoint with a good manifest.
absl::StatusOr<std::string> ChooseCheckpoint(FileSystem& fs, const std::string& path,
                                             const ToolOptions& options);

struct TensorDifference {
  std::string name;
  int64_t num_elements = 0;
  // Elements with other bits: 0.0 and -0.0 differ, one NaN equals itself.
  int64_t num_different = 0;
  // Greatest |a - b|. Infinity where elements with other bits are not both finite.
  double max_absolute = 0.0;
  // max_absolute over the greatest |a| or |b| of the tensor; 0 where max_absolute is 0.
  double max_relative = 0.0;
};

struct ReshapedTensor {
  std::string name;
  std::vector<int64_t> shape_a, shape_b;
};

// How two checkpoints differ in their tensors. How they are stored, counters and hashes are not
// compared: a checkpoint and its resharded copy are identical.
struct CheckpointDiff {
  std::string folder_a, folder_b;
  int64_t step_a = 0, step_b = 0;
  int64_t num_equal = 0;                         // tensors whose bits are equal
  std::vector<TensorDifference> different = {};  // in the order of a
  std::vector<ReshapedTensor> reshaped = {};     // their elements are not compared
  std::vector<std::string> only_a = {}, only_b = {};

  bool Identical() const {
    return different.empty() && reshaped.empty() && only_a.empty() && only_b.empty();
  }
};

// Compares the tensors whose names contain `filter`. Holds at least a block of each checkpoint.
// Damage is an error.
absl::StatusOr<CheckpointDiff> DiffCheckpoints(FileSystem& fs, const std::string& folder_a,
                                               const std::string& folder_b,
                                               const std::string& filter,
                                               const ToolOptions& options);

}  // namespace deepnet

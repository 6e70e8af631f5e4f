// Checkpoints: logical tensors in a folder per step, which exists completely or not at all,
// whatever interrupts a save. On disk: docs/design/checkpoint_format.md.
//
//   run/
//     step-00000010/  tensors-00000-of-00001.bin  manifest.pb
//     step-00000020/  ...
//     latest          "step-00000020"
//     best-bleu       "step-00000010"
//
// Nothing here knows how a run is laid out over ranks: tensors have their parameters' names and
// shapes. Every error carries ExitCode::kCheckpoint and names the file.
//
// Example, saving alone and reading:
//   RETURN_IF_ERROR(BeginCheckpoint(fs, "run", step));
//   ASSIGN_OR_RETURN(*manifest.add_files(), WriteShard(fs, "run", step, {}, tensors));
//   RETURN_IF_ERROR(CommitCheckpoint(fs, "run", manifest));
//   ...
//   ASSIGN_OR_RETURN(const std::optional<FoundCheckpoint> found, FindLatest(fs, "run"));
//   if (found) RETURN_IF_ERROR(ReadTensors(fs, found->folder, found->manifest, into));
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "parallel/base/file_system.h"
#include "proto/checkpoint.pb.h"

namespace deepnet {

// A tensor's name in a checkpoint is one of these and the name of its parameter.
inline constexpr char kWeightPrefix[] = "weight/";
inline constexpr char kMoment1Prefix[] = "moment1/";
inline constexpr char kMoment2Prefix[] = "moment2/";
inline constexpr char kEmaPrefix[] = "ema/";  // with optim.ema_decay

// All of a tensor's row-major elements, or a run of them.
template <typename Element>
struct TensorRun {
  std::string name;            // with its prefix, "weight/encoder.layers.0.fc1.weight"
  std::vector<int64_t> shape;  // of the complete tensor, all > 0
  std::span<Element> data;
  int64_t first_element = 0;  // where `data` begins, in the tensor's own order
};

using NamedTensor = TensorRun<const float>;   // to be written
using MutableNamedTensor = TensorRun<float>;  // to be filled

// One of the writers of a checkpoint.
struct CheckpointWriter {
  int index = 0, count = 1;
  int64_t block_bytes = 0;  // of the manifest; 0: 16 MiB
};

// A checkpoint is saved by several writers, a rank each: one calls BeginCheckpoint; when it has
// returned, each of them calls WriteShard with its own part, in any order, at the same
// time; when all have returned, one calls CommitCheckpoint with their ShardFiles in manifest.files,
// in the order of the writers. The parts must make every tensor exactly once (CommitCheckpoint
// refuses others). A writer holds 1 MiB besides `tensors`. One save at a time in a run.
//
// Between the calls nothing exists but a temporary folder. When CommitCheckpoint returns OK, the
// checkpoint is durable and `latest` points at it; when it fails, or the machine does, every
// earlier checkpoint is as it was. A checkpoint of the same step is replaced.
//
// BeginCheckpoint is RemoveUnfinished and the folder; WriteShard makes the folder where it is
// missing, so that writers who know that nothing unfinished is there need not wait for anybody.
absl::Status BeginCheckpoint(FileSystem& fs, const std::string& run_folder, int64_t step);
absl::StatusOr<ShardFile> WriteShard(FileSystem& fs, const std::string& run_folder, int64_t step,
                                     const CheckpointWriter& writer,
                                     std::span<const NamedTensor> tensors);
absl::Status CommitCheckpoint(FileSystem& fs, const std::string& run_folder, Manifest manifest);

// Deletes the temporary folders that interrupted saves and deletions left; makes the run folder if
// it is missing.
absl::Status RemoveUnfinished(FileSystem& fs, const std::string& run_folder);

// Reads the manifest of a checkpoint and checks its checksum and consistency, but not its files.
absl::StatusOr<Manifest> ReadManifest(FileSystem& fs, const std::string& checkpoint_folder);

// Fills `tensors`, in any order, any subset of those stored, parts of them and several parts of
// one. Only blocks that hold some of them are read, each verified against its checksum. A missing
// tensor or another shape is an error before anything is read; damage names file, block and tensor.
// Holds one block of memory besides `tensors`; their contents are undefined after an error.
absl::Status ReadTensors(FileSystem& fs, const std::string& checkpoint_folder,
                         const Manifest& manifest, std::span<const MutableNamedTensor> tensors);

// Reads all files and compares every size and checksum. Ends early, with OK, soon after `*cancel`
// becomes true.
absl::Status VerifyTensors(FileSystem& fs, const std::string& checkpoint_folder,
                           const Manifest& manifest, const std::atomic<bool>* cancel = nullptr);

// A complete checkpoint.
struct FoundCheckpoint {
  std::string folder;  // "run/step-00000020"
  Manifest manifest;
  std::vector<std::string> notes;  // why each newer one was skipped, a sentence each
};

// Returns the newest complete checkpoint, every byte verified; nullopt if the run has none, not
// even a damaged one (or the folder does not exist). Fails if there are checkpoints and all are
// damaged; the error names each.
absl::StatusOr<std::optional<FoundCheckpoint>> FindLatest(FileSystem& fs,
                                                          const std::string& run_folder);

// Returns `path`, which a user gave, with the run folder as its ParentFolder if a checkpoint or a
// pointer file is meant: without "/" and "/." at the end, and with links and dots followed where
// they lead into a run folder.
std::string CheckpointPath(FileSystem& fs, std::string path);

// Returns the checkpoint folder that CheckpointPath(path) stands for: a checkpoint folder itself;
// what a pointer file ("run/best-bleu") names; or the newest complete checkpoint of a run folder.
absl::StatusOr<std::string> ResolveCheckpoint(FileSystem& fs, const std::string& given);

// "step-00000010". At least eight digits.
std::string CheckpointName(int64_t step);

// Returns the step of "step-00000010"; nullopt for any other name.
std::optional<int64_t> StepOfCheckpointName(std::string_view name);

// Returns the steps of the checkpoints among the names of a run folder, ascending.
std::vector<int64_t> CheckpointSteps(std::span<const std::string> names);

// Returns the ending that says in which state a checkpoint's folder is: kUnfinishedEnd,
// kReplacedEnd or "". StepOfCheckpointFolder returns the step of a name with any of them.
std::string_view StateEnd(std::string_view name);
std::optional<int64_t> StepOfCheckpointFolder(std::string_view name);

// Makes the pointer file `pointer` ("latest", "best-bleu", "best-nll") of a run name a step. Atomic
// and durable.
absl::Status SetPointer(FileSystem& fs, const std::string& run_folder, const std::string& pointer,
                        int64_t step);

// Returns the step that a pointer names; its checkpoint may be gone. kNotFound if there is no such
// pointer.
absl::StatusOr<int64_t> GetPointer(FileSystem& fs, const std::string& run_folder,
                                   const std::string& pointer);

}  // namespace deepnet

// Makes new checkpoints of existing ones: the mean of several, or one over another number of files.
#pragma once

#include <span>
#include <string>

#include "absl/status/statusor.h"

#include "parallel/base/file_system.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/tools/tensor_reader.h"

namespace deepnet {

// Writes `output_run`/step-N, where N is the latest step of `checkpoint_folders`, with the mean of
// their weights: each element is added in double, by ascending step (then by folder), is divided by
// the number of checkpoints and rounded once, so that neither the order of the arguments nor how
// they are stored changes a bit. The checkpoint has no moments: it translates, scores and
// initialises, but no run resumes from it. Its manifest is that of the latest, with the inputs in
// `averaged` and without best scores, which belong to other weights. What else of the run folder
// translating needs is copied; `output_run` is new or empty (ExitCode::kBadConfig otherwise).
// Returns the checkpoint's folder. With `kind` kEmaPrefix it is the mean of the averages that
// training kept (optim.ema_decay); of one checkpoint, that average itself.
//
// Refuses, with ExitCode::kCheckpoint and both values, checkpoints of different models or
// vocabularies, one given twice, and one without tensors of `kind`. Holds at least a block of each
// checkpoint. The ranks of options.world add up runs of elements in turn, and rank 0 writes them.
absl::StatusOr<std::string> AverageCheckpoints(FileSystem& fs,
                                               std::span<const std::string> checkpoint_folders,
                                               const std::string& output_run,
                                               const ToolOptions& options,
                                               const std::string& kind = kWeightPrefix);

// Writes the checkpoint in `checkpoint_folder` as `output_run`/step-N, over `num_files` files whose
// sizes differ by one element at most, and copies what else of the run folder is needed to
// translate. The tensors and all that the manifest says of the run stay as they are, bit by bit.
// Every byte is compared with its checksum on the way: damage is an error, and nothing is left that
// looks like a checkpoint. `output_run` is new or empty (ExitCode::kBadConfig otherwise). Returns
// the copy's folder. The ranks of options.world write about equally many files each.
absl::StatusOr<std::string> ReshardCheckpoint(FileSystem& fs, const std::string& checkpoint_folder,
                                              int num_files, const std::string& output_run,
                                              const ToolOptions& options);

}  // namespace deepnet

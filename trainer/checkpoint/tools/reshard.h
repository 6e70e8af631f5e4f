// The same checkpoint over another number of files, for copying and for other programs; continuing
// a run never needs it.
#pragma once

#include <string>

#include "absl/status/statusor.h"

#include "parallel/base/file_system.h"
#include "trainer/checkpoint/tools/tool_options.h"

namespace deepnet {

// Writes the checkpoint in `checkpoint_folder` as `output_run`/step-N, over `num_files` files whose
// sizes differ by one element at most, and what else of the run folder is needed to translate. The
// tensors and all that the manifest says of the run stay as they are, bit by bit. Every byte is
// compared with its checksum on the way: damage is an error, and nothing is left that looks like a
// checkpoint. `output_run` is new or empty (ExitCode::kBadConfig otherwise).
// Returns the copy's folder.
absl::StatusOr<std::string> ReshardCheckpoint(FileSystem& fs, const std::string& checkpoint_folder,
                                              int num_files, const std::string& output_run,
                                              const ToolOptions& options);

}  // namespace deepnet

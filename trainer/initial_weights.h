// Fine-tuning: a run that begins with the weights of another one, on another corpus and with
// another vocabulary if need be.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

#include "parallel/base/file_system.h"
#include "proto/model.pb.h"
#include "trainer/data/vocabulary.h"
#include "trainer/model/parameters.h"

namespace deepnet {

// Rows of the vocabulary: pieces, specials and tags.
struct InitialRows {
  int64_t taken = 0;  // that the earlier vocabulary has too
  int64_t drawn = 0;  // new ones, which stay as Initialize drew them
};

// Overwrites the weights of `parameters` (drawn; all of a model or a rank's layers) with those of
// the checkpoint that `path` names (a checkpoint folder, a pointer file or a run folder; its run
// folder has the vocabulary). Embeddings go row by row, found by piece in `vocabulary`, which is
// the new run's; rows of other pieces stay as they were drawn, a function of (seed, name, element).
// Every other weight is needed in the same shape: ExitCode::kCheckpoint names one that is not, and
// both architectures where the checkpoint's is not `architecture`. Moments and step are not looked
// at.
absl::StatusOr<InitialRows> TakeWeights(FileSystem& fs, const std::string& path,
                                        const Vocabulary& vocabulary, Architecture architecture,
                                        Parameters& parameters);

}  // namespace deepnet

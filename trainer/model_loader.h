// Loads what a run folder holds: weights, tokenizer, languages.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "parallel/base/file_system.h"
#include "proto/checkpoint.pb.h"
#include "proto/model.pb.h"
#include "proto/run.pb.h"
#include "trainer/data/vocabulary.h"
#include "trainer/decode/scorer.h"
#include "trainer/kernels/ops.h"
#include "trainer/model/parameters.h"
#include "trainer/model/transformer.h"

namespace deepnet {

// Copies the tokenizer of a corpus folder into the run folder, which is created if needed, and
// lists the languages beside it, each file atomically and durably. Fails with ExitCode::kCheckpoint
// naming the file.
absl::Status SaveVocabulary(FileSystem& fs, const std::string& tokenizer_file,
                            const std::vector<std::string>& languages,
                            const std::string& run_folder);

// Returns the FNV-1a hash of the weights of each parameter, in the order of its Inventory.
std::vector<uint64_t> ParameterHashes(const Parameters& parameters);

// Returns the hexadecimal FNV-1a hash of the hashes of all parameters of a model, in its order.
// `train` prints it: equal hashes mean equal bits of every weight.
std::string WeightsHash(std::span<const uint64_t> parameter_hashes);

// Counts rows of a vocabulary: pieces, specials and tags.
struct InitialRows {
  int64_t taken = 0;  // which the earlier vocabulary has too
  int64_t drawn = 0;  // new ones, which stay as Initialize drew them
};

// Fine-tuning: overwrites the weights of `parameters` (already drawn; a whole model or a rank's
// layers) with those of the checkpoint that ResolveCheckpoint finds by `path`, whose vocabulary may
// differ from the new run's `vocabulary`. Embeddings are taken row by row, matched by piece; rows
// of other pieces stay as they were drawn. Every other weight must have the same shape. Moments and
// step are not read. Fails with ExitCode::kCheckpoint naming a weight that does not fit, or both
// architectures if the checkpoint's is not `architecture`.
absl::StatusOr<InitialRows> InitializeFrom(FileSystem& fs, const std::string& path,
                                           const Vocabulary& vocabulary, Architecture architecture,
                                           Parameters& parameters);

struct LoadedModel {
  RunSpec run;         // as stored, but run.compute is what is used here
  std::string folder;  // of the checkpoint; of an ensemble all, separated by commas
  int64_t step = 0;    // of the checkpoint
  std::unique_ptr<Vocabulary> vocabulary;
  std::unique_ptr<Ops> ops;
  std::vector<std::unique_ptr<Transformer>> models;  // several: an ensemble
  std::unique_ptr<Scorer> scorer;
  std::unique_ptr<PairScorer> pair_scorer;
};

// A checkpoint that is not loaded yet. manifest.run().compute() is what is used here.
struct FoundModel {
  std::string folder;
  Manifest manifest;
};

// Finds a model by what ResolveCheckpoint takes. The run's arithmetic is used with `overrides` on
// top; if this host does not have it, or the checkpoint names none (an import), float32 on a CPU
// with the best instructions that it has. Errors carry ExitCode::kCheckpoint.
absl::StatusOr<FoundModel> FindModel(const std::string& run_or_checkpoint,
                                     const ComputeSpec& overrides);

// Loads a model onto the calling thread's device, or several as an ensemble
// (trainer/decode/ensemble_scorer.h); run, step and arithmetic are the first one's. Fails with
// ExitCode::kCheckpoint naming the two checkpoints whose vocabularies, data.tags or architectures
// differ.
absl::StatusOr<std::unique_ptr<LoadedModel>> LoadEnsemble(std::span<const FoundModel> found);

}  // namespace deepnet

// What a run folder holds besides metrics and what a model in use needs of it: weights, the
// tokenizer, the best scores.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "parallel/base/file_system.h"
#include "proto/checkpoint.pb.h"
#include "trainer/data/vocabulary.h"
#include "trainer/model/parameters.h"

namespace deepnet {

// Loads the weights of `parameters`, all of a model or some of its layers, from a checkpoint
// folder.
absl::Status LoadWeights(FileSystem& fs, const std::string& checkpoint_folder,
                         const Manifest& manifest, Parameters& parameters);

// Copies the tokenizer of a corpus folder into the run folder, which is made if need be, and lists
// the languages beside it. Each file is replaced atomically and durably, the list last: whatever
// stops this, a reader finds whole files. Fails with ExitCode::kCheckpoint naming the file.
absl::Status SaveVocabulary(FileSystem& fs, const std::string& tokenizer_file,
                            const std::vector<std::string>& languages,
                            const std::string& run_folder);

// The vocabulary of a run folder.
absl::StatusOr<std::unique_ptr<Vocabulary>> LoadVocabulary(const std::string& run_folder);

// Whether a metric is better when greater or when smaller.
enum class Better { kGreater, kSmaller };

// Notes `value` of `metric` at state.step() if it beats the best so far, or is the first; true if
// so.
bool UpdateBest(Manifest& state, const std::string& metric, double value, Better better);

// FNV-1a of the weights of each parameter, in the order of its Inventory.
std::vector<uint64_t> ParameterHashes(const Parameters& parameters);

// Hexadecimal FNV-1a of the hashes of all parameters of a model, in its order: equal exactly where
// every bit of every weight is.
std::string WeightsHash(std::span<const uint64_t> parameter_hashes);

}  // namespace deepnet

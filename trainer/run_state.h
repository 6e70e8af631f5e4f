// What a run folder holds besides metrics: checkpoints of parameters and moments, and the
// tokenizer, so that the folder alone can translate.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "parallel/base/file_system.h"
#include "proto/checkpoint.pb.h"
#include "trainer/data/vocabulary.h"
#include "trainer/model/parameters.h"

namespace deepnet {

// Saves weights and both moments of `parameters` as the checkpoint of manifest.step().
absl::Status SaveParameters(FileSystem& fs, const std::string& run_folder, const Manifest& manifest,
                            const Parameters& parameters);

// Loads the weights, and with `moments` both moments, from a checkpoint folder.
absl::Status LoadParameters(FileSystem& fs, const std::string& checkpoint_folder,
                            const Manifest& manifest, bool moments, Parameters& parameters);

// Copies the tokenizer of a corpus folder into the run folder, which is made if need be, and lists
// the languages beside it. Each file is replaced atomically and durably, the list last: whatever
// stops this, a reader finds whole files. Fails with ExitCode::kCheckpoint naming the file.
absl::Status SaveVocabulary(FileSystem& fs, const std::string& tokenizer_file,
                            const std::vector<std::string>& languages,
                            const std::string& run_folder);

// The same on the operating system's files.
absl::Status SaveVocabulary(const std::string& tokenizer_file,
                            const std::vector<std::string>& languages,
                            const std::string& run_folder);

// The vocabulary of a run folder.
absl::StatusOr<std::unique_ptr<Vocabulary>> LoadVocabulary(const std::string& run_folder);

// Whether a metric is better when greater or when smaller.
enum class Better { kGreater, kSmaller };

// Notes `value` of `metric` at state.step() if it beats the best so far, or is the first; true if
// so.
bool UpdateBest(Manifest& state, const std::string& metric, double value, Better better);

// Hexadecimal FNV-1a of all weights in order: equal exactly where every bit is.
std::string WeightsHash(const Parameters& parameters);

}  // namespace deepnet

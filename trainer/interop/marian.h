// Converts a model to one that transformers' MarianMTModel and CTranslate2 compute:
// docs/design/interop.md.
//
// These changes leave the outcome the same:
//   - out_proj and fc2 are divided by alpha: LN(alpha x + f(x)) = LN(x + f(x) / alpha), but for the
//     epsilon that is added to the variance, which is alpha^2 times as much there
//     (MarianStatements).
//   - Rows of the embedding: ours, then one of zeros. To the other programs it is <pad>, which
//     transformers feeds a decoder first and CTranslate2 drops; a bias keeps it out of the softmax.
//     Our own <pad>, whose row learns, is called kTrainedPad.
//   - Positions: fairseq's with offset 2 instead of those that Marian would compute, which have
//     other frequencies. The table is stored, and both programs take what is stored.
//   - The first token of a decoder: Marian feeds a zero embedding where </s> is fed here.
//     Row 0 of the decoder's positions, which nothing else uses, has the embedding of </s> added.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"

#include "proto/checkpoint.pb.h"
#include "proto/interop.pb.h"
#include "trainer/interop/safetensors.h"

namespace deepnet {

// Fails with FAILED_PRECONDITION (ExitCode::kCheckpoint), naming all that MarianMTModel cannot
// compute.
absl::Status CheckMarian(const ModelSpec& model);

// [row of the exported embedding]: our id; at last kRowOfZeros.
std::vector<int64_t> MarianIds(int64_t vocabulary_size);

// Returns config.json for MarianMTModel; `ours` is MakeHfConfig()'s.
HfConfig MakeMarianConfig(const HfConfig& ours);

// Returns all tensors, in order. `reader` must outlive them.
absl::StatusOr<std::vector<OutgoingTensor>> MarianTensors(const ModelSpec& model,
                                                          TensorReader& reader);

// Returns sentences that say where the export is exact and where it is not.
std::vector<std::string> MarianStatements(const ModelSpec& model, TagStyle tags, int64_t step);

}  // namespace deepnet

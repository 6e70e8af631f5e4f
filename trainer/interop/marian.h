// A model of ours as transformers' MarianMTModel and CTranslate2 compute it:
// docs/design/exchange.md.
//
// What is changed on the way, and why the outcome is the same:
//   - out_proj and fc2 are divided by alpha: LN(alpha x + f(x)) = LN(x + f(x) / alpha), but for
//   what
//     the normalisation adds to the variance, which is alpha^2 times as much there
//     (MarianStatements).
//   - Rows of the embedding: <pad> is the last one, where CTranslate2 looks for it, and what stood
//     there takes its place. All other ids are ours.
//   - Positions: fairseq's with offset 2 instead of those that Marian would compute, which have
//     other frequencies. The table is stored, and both programs take what is stored.
//   - The first token of a decoder: Marian feeds a zero embedding (<pad>) where </s> is fed here.
//     Row 0 of the decoder's positions, which nothing else uses, has the embedding of </s> added.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"

#include "proto/checkpoint.pb.h"
#include "proto/interop.pb.h"
#include "trainer/checkpoint/tools/tensor_reader.h"
#include "trainer/interop/safetensors_writer.h"

namespace deepnet {

// FAILED_PRECONDITION (ExitCode::kCheckpoint) names all that MarianMTModel cannot compute.
absl::Status CheckMarian(const ModelSpec& model);

// [row of the exported embedding]: our id.
std::vector<int64_t> MarianIds(int64_t vocabulary_size);

// config.json for the same; `ours` is MakeHfConfig()'s.
HfConfig MakeMarianConfig(const HfConfig& ours);

// All tensors, in order. `reader` outlives them.
absl::StatusOr<std::vector<OutgoingTensor>> MarianTensors(const ModelSpec& model,
                                                          TensorReader& reader);

// What the export is and is not exact in, a sentence each.
std::vector<std::string> MarianStatements(const ModelSpec& model, TagStyle tags, int64_t step);

// Features of fairseq's sinusoidal position `position`, offset 2 included, in float32: the twin of
// SinusoidalPositions() (trainer/model/embedding.h) without LibTorch.
void SinusoidalPosition(int64_t position, std::span<float> features);

}  // namespace deepnet

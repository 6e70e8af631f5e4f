// How many sentences are searched together: source tokens on the one hand, and on the other the
// memory of a GPU, where keys and values of all their hypotheses have to lie until they end.
#pragma once

#include <cstdint>
#include <limits>
#include <span>

#include "absl/status/statusor.h"

#include "proto/data.pb.h"
#include "proto/model.pb.h"
#include "proto/run.pb.h"

namespace deepnet {

struct BatchLimits {
  int batch_tokens = 2000;  // source ids decoded together, tags and </s> included; >= 1
  int64_t max_sentences = std::numeric_limits<int64_t>::max();  // >= 1
};

// Rows of the cache, for each hypothesis, that a search makes room for at first; then room doubles.
inline constexpr int64_t kFirstCacheSteps = 16;

// Returns decode.batch_tokens, or where that is open 2,000 on a CPU and 16,000 on a GPU, on which a
// step takes as long for few rows as for many.
int BatchTokens(const DecodeSpec& decode, bool on_gpu);

// Returns the capacity of `model` for decoding: source tokens and hypotheses that are computed in
// one pass. Larger batches are computed in several.
MicrobatchSpec DecodeCapacity(const ModelSpec& model, const DecodeSpec& decode, bool on_gpu);

// Returns the limits with which the keys and values of a batch, were every hypothesis as long as
// decode.max_tokens allows, and its log-probabilities fit into 9 tenths of the `free_bytes` of a
// GPU. `models`: one, or the members of an ensemble; `operand_bytes`: of an element of keys. Fails
// with ExitCode::kDoesNotFit naming decode.batch_tokens, if it is given and does not fit, or what
// makes one sentence too large.
absl::StatusOr<BatchLimits> FitBatches(const DecodeSpec& decode, std::span<const ModelSpec> models,
                                       int64_t operand_bytes, int64_t free_bytes);

}  // namespace deepnet

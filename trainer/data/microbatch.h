// The input of a training step: packed sentences of constant capacity.
//
// Every microbatch of a run has the same three capacities (MicrobatchSpec), so buffers and plans
// never change size. Real positions come first, padding fills the rest. Attention works per
// sentence (offsets); padding has no label and costs nothing in the loss.
//
// Example, 8 source positions, 6 target positions, 3 sentences, one pair "ab" -> "c":
//   source.tokens  __de__ a b </s> pad pad pad pad     target.tokens  </s> c pad pad pad pad
//   source.offsets 0 4 4 4                             target.offsets 0 2 2 2
//   labels         c </s> -1 -1 -1 -1
//
// encoded_pair.h says what the sequences are. A model of one stack reads `target` alone.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace deepnet {

// One side of a microbatch. Sentence i of the pair order is positions [offsets[i], offsets[i+1]).
struct PackedSide {
  std::vector<int32_t> tokens;      // [capacity]; kPad after the real ones
  std::vector<int32_t> offsets;     // [sentences + 1]; empty ones at the end repeat the last
  std::vector<uint32_t> positions;  // [capacity]; index within its sentence, 0 on padding

  int64_t NumTokens() const { return offsets.empty() ? 0 : offsets.back(); }
  friend bool operator==(const PackedSide&, const PackedSide&) = default;
};

struct Microbatch {
  PackedSide source;
  PackedSide target;            // decoder input
  std::vector<int32_t> labels;  // [target capacity]; -1 on padding
  // [capacity]; the pair's ordinal in the step, 0 on padding
  std::vector<uint32_t> source_pairs, target_pairs;
  int num_sentences = 0;          // real ones; never more than the capacity
  int64_t num_source_tokens = 0;  // real positions
  int64_t num_target_tokens = 0;  // those with a label; the loss is their mean

  friend bool operator==(const Microbatch&, const Microbatch&) = default;
};

// All microbatches of one optimizer step, over all replicas, in order of their ordinals.
struct StepBatch {
  std::vector<Microbatch> microbatches;
  int64_t num_source_tokens = 0;  // of all of them
  int64_t num_target_tokens = 0;

  void Add(Microbatch microbatch) {
    num_source_tokens += microbatch.num_source_tokens;
    num_target_tokens += microbatch.num_target_tokens;
    microbatches.push_back(std::move(microbatch));
  }

  friend bool operator==(const StepBatch&, const StepBatch&) = default;
};

// Source of steps. Implementations need not be thread-safe.
class BatchSource {
 public:
  virtual ~BatchSource() = default;

  // Returns the batch of step `step` >= 0: a function of the step alone, whatever was asked before.
  virtual absl::StatusOr<StepBatch> ForStep(int64_t step) = 0;
};

}  // namespace deepnet

// The input of a training step: packed sentences of constant capacity.
//
// Every microbatch of a run has the same three capacities (MicrobatchSpec): S source positions, T
// target positions, B sentences. Real positions come first, padding fills the rest, so buffers and
// plans never change size. Attention works per sentence (offsets); padding has no label and costs
// nothing in the loss.
//
// Example, S = 8, T = 6, B = 3, target tag on the source, one pair "ab" -> "c":
//   source.tokens  __de__ a b </s> pad pad pad pad     target.tokens  </s> c pad pad pad pad
//   source.offsets 0 4 4 4                             target.offsets 0 2 2 2
//   labels         c </s> -1 -1 -1 -1
//
// A model of one stack reads `target` alone (trainer/data/encoded_pair.h); S is 0 then.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

namespace deepnet {

// One side of a microbatch. Sentence i of the pair order is positions [offsets[i], offsets[i+1]).
struct PackedSide {
  std::vector<int32_t> tokens;  // [capacity]; kPad after the real ones
  // [sentence capacity + 1]; empty sentences at the end repeat the last offset
  std::vector<int32_t> offsets;
  std::vector<uint32_t> positions;  // [capacity]; index within its sentence, 0 on padding

  int64_t NumTokens() const { return offsets.empty() ? 0 : offsets.back(); }
  friend bool operator==(const PackedSide&, const PackedSide&) = default;
};

struct Microbatch {
  PackedSide source;  // TARGET_TAG_ON_SOURCE: __tgt__ x_1 .. x_m </s>; M2M: __src__; NO_TAGS: none
  PackedSide target;  // decoder input: </s> y_1 .. y_n (M2M: </s> __tgt__ y_1 .. y_n)
  // [target capacity]; y_1 .. y_n </s> (M2M: __tgt__ y_1 .. y_n </s>), -1 on padding
  std::vector<int32_t> labels;
  // [source capacity]; the pair's ordinal in the step, 0 on padding
  std::vector<uint32_t> source_pairs;
  std::vector<uint32_t> target_pairs;  // [target capacity]; likewise
  int num_sentences = 0;               // real ones; never more than the capacity
  int64_t num_source_tokens = 0;       // real positions
  int64_t num_target_tokens = 0;       // those with a label; the loss is their mean

  friend bool operator==(const Microbatch&, const Microbatch&) = default;
};

// All microbatches of one optimizer step, over all replicas, in order of their ordinals.
struct StepBatch {
  std::vector<Microbatch> microbatches;
  int64_t num_source_tokens = 0;  // of all of them
  int64_t num_target_tokens = 0;

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

// From pieces to packed microbatches: for training, for validation and scoring, for benchmarks.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

#include "proto/data.pb.h"
#include "trainer/data/microbatch.h"
#include "trainer/data/packing.h"

namespace deepnet {

// What the model reads and what it should say, tags and </s> in place.
struct EncodedPair {
  std::vector<int32_t> source;  // __tgt__ x </s>; M2M: __src__ x </s>
  std::vector<int32_t> labels;  // y </s>; M2M: __tgt__ y </s>. -1: nothing to say there
  // What the rows with labels read; empty: </s> and all labels but the last, as a decoder that
  // translates does. Others: trainer/data/one_sided.h.
  std::vector<int32_t> input = {};
};

// Tags of one direction, as Vocabulary::TagId gives them.
struct DirectionTags {
  TagStyle style = TARGET_TAG_ON_SOURCE;
  int32_t source = 0;  // id of __src__
  int32_t target = 0;  // id of __tgt__
};

// The two sequences of a pair of pieces.
EncodedPair EncodePair(const DirectionTags& tags, std::span<const int32_t> source_pieces,
                       std::span<const int32_t> target_pieces);

// Packs pairs one after the other into one microbatch.
class MicrobatchBuilder {
 public:
  explicit MicrobatchBuilder(const Capacity& capacity);

  bool HasRoom(const EncodedPair& pair) const;

  // `ordinal` is the pair's number in the step. Requires HasRoom(pair).
  void Add(uint32_t ordinal, const EncodedPair& pair);

  // The microbatch, padded to capacity. The builder is used up.
  Microbatch Build() &&;

 private:
  const Capacity capacity_;
  Microbatch batch_;
};

// All of `pairs` in order, each microbatch as full as the order allows; ordinals count from 0
// through all of them. For validation and scoring. Fails if a pair is larger than the capacity.
absl::StatusOr<std::vector<Microbatch>> PackInOrder(std::span<const EncodedPair> pairs,
                                                    const Capacity& capacity);

// Made-up sentences of real lengths for benchmarks: as few balanced microbatches as hold one pair
// of each (source, target) length in positions, ids drawn from [kFirstPiece, vocabulary_size) by
// `seed`. Ordinals count from 0 through all of them. Lengths must be within capacity.
std::vector<Microbatch> MakeBenchMicrobatches(std::span<const std::pair<int, int>> lengths,
                                              const Capacity& capacity, int32_t vocabulary_size,
                                              uint64_t seed);

}  // namespace deepnet

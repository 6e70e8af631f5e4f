// What a model of one stack reads and learns of a pair of sentences: one of its sides, as the
// target of a microbatch whose source is empty.
//
//   DECODER_ONLY, the target side, each token from those before it:
//                         TARGET_TAG_ON_SOURCE          M2M
//     reads               __tgt__ y_1 .. y_n            </s> __tgt__ y_1 .. y_n
//     labels              y_1 .. y_n </s>               __tgt__ y_1 .. y_n </s>
//
//   ENCODER_ONLY, the source side, hidden tokens from those around them (BERT: Devlin et al., 2019,
//   section 3.1):
//     reads               __src__ x_1 .. x_m </s>, where some x_i are replaced
//     labels              x_i where it was chosen, else none (-1)
//
// A piece is chosen with probability `share`; of the chosen ones 80 % read <unk>, which stands in
// for BERT's [MASK], 10 % read any piece and 10 % themselves. Tags and </s> are never chosen; a
// sentence of which nothing was chosen gets one, drawn among all. Random numbers are a function of
// HiddenKey and of the position alone, so they depend on no layout, no order and no earlier step
// (docs/design/random.md).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "proto/data.pb.h"
#include "trainer/data/batcher.h"

namespace deepnet {

// How much is hidden, and what may stand in its place.
struct HidingRule {
  double share = 0.15;    // of the pieces of a sentence
  int32_t end_piece = 0;  // pieces are ids [kFirstPiece, end_piece)
};

// Which sentence, and which time: another step hides other pieces of it.
struct HiddenKey {
  uint64_t seed = 0;
  std::string_view direction;  // "de-en"
  int64_t pair = 0;            // of the direction
  int64_t step = 0;            // below 2^32
};

// DECODER_ONLY.
EncodedPair EncodeTargetSide(const DirectionTags& tags, std::span<const int32_t> target_pieces);

// ENCODER_ONLY.
EncodedPair EncodeSourceSide(const DirectionTags& tags, std::span<const int32_t> source_pieces,
                             const HidingRule& rule, const HiddenKey& key);

}  // namespace deepnet

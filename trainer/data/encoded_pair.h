// The sequences that a model reads and predicts for a pair of sentences, tags and </s> in place.
//
//   ENCODER_DECODER:      TARGET_TAG_ON_SOURCE          M2M
//     source              __tgt__ x_1 .. x_m </s>       __src__ x_1 .. x_m </s>
//     labels              y_1 .. y_n </s>               __tgt__ y_1 .. y_n </s>
//
// With NO_TAGS the tags of the first column are left out; an input begins with </s> then.
//
// A model of one stack gets one side, as the target of a microbatch whose source is empty:
//
//   DECODER_ONLY, the target side, each token predicted from those before it:
//                         TARGET_TAG_ON_SOURCE          M2M
//     input               __tgt__ y_1 .. y_n            </s> __tgt__ y_1 .. y_n
//     labels              y_1 .. y_n </s>               __tgt__ y_1 .. y_n </s>
//
//   ENCODER_ONLY, the source side, masked tokens predicted from those around them (BERT: Devlin et
//   al., 2019, section 3.1):
//     input               __src__ x_1 .. x_m </s>, where some x_i are replaced
//     labels              x_i where it was chosen, else none (-1)
//
// A piece is chosen with probability `share`; of the chosen ones 80 % become <unk>, which stands in
// for BERT's [MASK], 10 % become any piece and 10 % stay. Tags and </s> are never chosen; where
// nothing was chosen in a sentence, one piece is drawn among all. Random numbers are a function of
// MaskingKey and of the position alone (docs/design/random.md).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "proto/data.pb.h"

namespace deepnet {

// One pair as a microbatch takes it.
struct EncodedPair {
  std::vector<int32_t> source;  // input of the encoder; empty for a model of one stack
  std::vector<int32_t> labels;  // tokens to predict; -1: none at this position
  // Input of the positions with labels; empty: </s> and all labels but the last.
  std::vector<int32_t> input = {};

  friend bool operator==(const EncodedPair&, const EncodedPair&) = default;
};

// Tags of one direction, as Vocabulary::TagId gives them.
struct DirectionTags {
  TagStyle style = TARGET_TAG_ON_SOURCE;
  int32_t source = 0;  // id of __src__
  int32_t target = 0;  // id of __tgt__
};

// The tags of a direction, on the sides where its TagStyle puts them.
struct TagFrame {
  std::vector<int32_t> source;  // before the source's pieces
  std::vector<int32_t> target;  // before the target's pieces: forced, never searched

  friend bool operator==(const TagFrame&, const TagFrame&) = default;
};

TagFrame MakeTagFrame(const DirectionTags& tags);

// Returns the tags, `pieces` and </s>. With `max_ids` > 0 the last pieces are cut off, so that the
// result has at most max_ids ids.
std::vector<int32_t> FrameIds(std::span<const int32_t> tags, std::span<const int32_t> pieces,
                              int max_ids = 0);

// Encodes a pair for ENCODER_DECODER.
EncodedPair EncodePair(const DirectionTags& tags, std::span<const int32_t> source_pieces,
                       std::span<const int32_t> target_pieces);

// How many pieces are masked, and what may replace them.
struct MaskingRule {
  double share = 0.15;    // probability that a piece is masked
  int32_t end_piece = 0;  // pieces are ids [kFirstPiece, end_piece)
};

// Identifies a sentence and a time: another step masks other pieces of it.
struct MaskingKey {
  uint64_t seed = 0;
  std::string_view direction;  // "de-en"
  int64_t pair = 0;            // of the direction
  int64_t step = 0;            // below 2^32
};

// Encodes the target side for DECODER_ONLY.
EncodedPair EncodeTargetSide(const DirectionTags& tags, std::span<const int32_t> target_pieces);

// Encodes the source side, partly masked, for ENCODER_ONLY.
EncodedPair EncodeSourceSide(const DirectionTags& tags, std::span<const int32_t> source_pieces,
                             const MaskingRule& rule, const MaskingKey& key);

}  // namespace deepnet

// Text to the ids that a model was trained on, and back, for one direction of translation. The
// vocabulary comes in as two functions: a search knows no tokenizer.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "proto/data.pb.h"
#include "trainer/data/vocabulary.h"

namespace deepnet {

struct TextCodec {
  std::function<std::vector<int32_t>(std::string_view text)> encode;  // no tag, no </s>
  std::function<std::string(std::span<const int32_t> ids)> decode;    // of such ids
};

// The tags of a direction, on the sides where its TagStyle puts them.
struct TagFrame {
  std::vector<int32_t> source;  // before the source's pieces
  std::vector<int32_t> target;  // before the target's pieces: forced, never searched

  friend bool operator==(const TagFrame&, const TagFrame&) = default;
};

TagFrame MakeTagFrame(TagStyle style, int32_t source_tag, int32_t target_tag);

// Returns the tags, `pieces` and </s>. With `max_ids` > 0 the last pieces are cut off, so that the
// result has at most max_ids ids.
std::vector<int32_t> FrameIds(std::span<const int32_t> tags, std::span<const int32_t> pieces,
                              int max_ids);

// Encode and Decode of `vocabulary`, which must outlive the codec. A blank text (utf8.h) has no
// ids.
TextCodec MakeTextCodec(const Vocabulary& vocabulary);

}  // namespace deepnet

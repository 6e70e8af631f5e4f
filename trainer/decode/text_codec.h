// How text becomes the ids that a model was trained on, and back, for one direction of translation.
// The vocabulary is handed in as two functions: decoding knows no tokenizer.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "proto/data.pb.h"

namespace deepnet {

struct TextCodec {
  std::function<std::vector<int32_t>(std::string_view text)> encode;  // no tag, no </s>
  std::function<std::string(std::span<const int32_t> ids)> decode;    // of such ids
};

// The tags of a direction, where its TagStyle puts them.
struct TagFrame {
  std::vector<int32_t> source;  // before the source's pieces
  std::vector<int32_t> target;  // before the target's pieces: forced, never searched

  friend bool operator==(const TagFrame&, const TagFrame&) = default;
};

TagFrame MakeTagFrame(TagStyle style, int32_t source_tag, int32_t target_tag);

// tags, then `pieces`, then </s>. `max_ids` > 0: only so many of the pieces that the whole has at
// most max_ids ids.
std::vector<int32_t> FrameIds(std::span<const int32_t> tags, std::span<const int32_t> pieces,
                              int max_ids);

}  // namespace deepnet

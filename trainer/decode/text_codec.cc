#include "trainer/decode/text_codec.h"

#include <algorithm>

#include "parallel/base/check.h"
#include "parallel/base/utf8.h"
#include "trainer/decode/scorer.h"

namespace deepnet {

TagFrame MakeTagFrame(TagStyle style, int32_t source_tag, int32_t target_tag) {
  if (style == NO_TAGS) return {};
  if (style == M2M) return {.source = {source_tag}, .target = {target_tag}};
  DEEPNET_CHECK_EQ(style, TARGET_TAG_ON_SOURCE);
  return {.source = {target_tag}, .target = {}};
}

std::vector<int32_t> FrameIds(std::span<const int32_t> tags, std::span<const int32_t> pieces,
                              int max_ids) {
  const size_t frame = tags.size() + 1;
  DEEPNET_CHECK(max_ids <= 0 || frame < static_cast<size_t>(max_ids)) << "max_ids = " << max_ids;
  size_t num_pieces = pieces.size();
  if (max_ids > 0) num_pieces = std::min(num_pieces, static_cast<size_t>(max_ids) - frame);
  std::vector<int32_t> ids(tags.begin(), tags.end());
  ids.insert(ids.end(), pieces.begin(), pieces.begin() + static_cast<std::ptrdiff_t>(num_pieces));
  ids.push_back(SpecialId::kEnd);
  return ids;
}

TextCodec MakeTextCodec(const Vocabulary& vocabulary) {
  return {.encode =
              [&vocabulary](std::string_view text) {
                return IsBlank(text) ? std::vector<int32_t>() : vocabulary.Encode(text);
              },
          .decode = [&vocabulary](std::span<const int32_t> ids) { return vocabulary.Decode(ids); }};
}

}  // namespace deepnet

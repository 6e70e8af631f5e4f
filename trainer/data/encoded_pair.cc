#include "trainer/data/encoded_pair.h"

#include "parallel/base/check.h"
#include "parallel/base/philox.h"
#include "trainer/data/vocabulary.h"

namespace deepnet {
namespace {

constexpr int32_t kNoLabel = -1;
constexpr uint32_t kAnyPosition = UINT32_MAX;  // draws the piece where none was chosen
constexpr double kTwoTo32 = 4294967296.0;

int32_t Replacement(int32_t piece, const MaskingRule& rule, const PhiloxBlock& words) {
  const double place = words[1] / kTwoTo32;
  if (place < 0.8) return kUnk;
  if (place >= 0.9) return piece;
  const auto pieces = static_cast<uint32_t>(rule.end_piece - kFirstPiece);
  return kFirstPiece + static_cast<int32_t>(words[2] % pieces);
}

}  // namespace

TagFrame MakeTagFrame(const DirectionTags& tags) {
  if (tags.style == NO_TAGS) return {};
  if (tags.style == M2M) return {.source = {tags.source}, .target = {tags.target}};
  DEEPNET_CHECK_EQ(tags.style, TARGET_TAG_ON_SOURCE);
  return {.source = {tags.target}, .target = {}};
}

std::vector<int32_t> FrameIds(std::span<const int32_t> tags, std::span<const int32_t> pieces,
                              int max_ids) {
  const size_t frame = tags.size() + 1;
  DEEPNET_CHECK(max_ids <= 0 || frame < static_cast<size_t>(max_ids)) << "max_ids = " << max_ids;
  if (max_ids > 0 && frame + pieces.size() > static_cast<size_t>(max_ids)) {
    pieces = pieces.first(static_cast<size_t>(max_ids) - frame);
  }
  std::vector<int32_t> ids;
  ids.reserve(frame + pieces.size());
  ids.insert(ids.end(), tags.begin(), tags.end());
  ids.insert(ids.end(), pieces.begin(), pieces.end());
  ids.push_back(kEos);
  return ids;
}

EncodedPair EncodePair(const DirectionTags& tags, std::span<const int32_t> source_pieces,
                       std::span<const int32_t> target_pieces) {
  const TagFrame frame = MakeTagFrame(tags);
  return {.source = FrameIds(frame.source, source_pieces),
          .labels = FrameIds(frame.target, target_pieces)};
}

EncodedPair EncodeTargetSide(const DirectionTags& tags, std::span<const int32_t> target_pieces) {
  EncodedPair pair = EncodePair(tags, {}, target_pieces);
  pair.source.clear();
  pair.input.push_back(tags.style == TARGET_TAG_ON_SOURCE ? tags.target : kEos);
  pair.input.insert(pair.input.end(), pair.labels.begin(), pair.labels.end() - 1);
  return pair;
}

EncodedPair EncodeSourceSide(const DirectionTags& tags, std::span<const int32_t> source_pieces,
                             const MaskingRule& rule, const MaskingKey& key) {
  DEEPNET_CHECK_LT(kFirstPiece, rule.end_piece);
  DEEPNET_CHECK(key.step >= 0 && key.step < int64_t{1} << 32) << "step " << key.step;
  const PhiloxKey philox = MakeKey(key.seed, RandomPurpose::kHiddenPieces);
  const auto pair_number = static_cast<uint64_t>(key.pair);
  const uint32_t direction =
      static_cast<uint32_t>(HashName(key.direction)) ^ static_cast<uint32_t>(pair_number >> 32);
  // The random words of a position: 0 decides if its piece is masked, 1 by what kind of
  // replacement, 2 by which piece.
  const auto numbers = [&](uint32_t position) {
    return Philox(philox, {position, static_cast<uint32_t>(pair_number), direction,
                           static_cast<uint32_t>(key.step)});
  };
  const auto count = static_cast<uint32_t>(source_pieces.size());
  EncodedPair pair;
  if (tags.style != NO_TAGS) pair.input.push_back(tags.source);
  const size_t first = pair.input.size();
  pair.input.insert(pair.input.end(), source_pieces.begin(), source_pieces.end());
  pair.input.push_back(kEos);
  pair.labels.assign(pair.input.size(), kNoLabel);
  bool any = false;
  const auto mask = [&](uint32_t i, const PhiloxBlock& words) {
    pair.labels[first + i] = source_pieces[i];
    pair.input[first + i] = Replacement(source_pieces[i], rule, words);
    any = true;
  };
  for (uint32_t i = 0; i < count; ++i) {
    const PhiloxBlock words = numbers(i);
    if (words[0] / kTwoTo32 < rule.share) mask(i, words);
  }
  if (any || count == 0) return pair;
  const uint32_t drawn = numbers(kAnyPosition)[0] % count;
  mask(drawn, numbers(drawn));
  return pair;
}

}  // namespace deepnet

#include "trainer/data/cleaning.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "parallel/base/check.h"
#include "trainer/data/content_hash.h"
#include "trainer/data/utf8.h"

namespace deepnet {
namespace {

// Below this many pieces on the longer side a ratio says nothing.
constexpr int64_t kRatioFromPieces = 10;

// A NUL is UTF-8, but in no text.
bool IsText(std::string_view side) {
  return IsUtf8(side) && side.find('\0') == std::string_view::npos;
}

}  // namespace

std::string_view Name(DropReason reason) {
  switch (reason) {
    case DropReason::kNone:
      return "kept";
    case DropReason::kMalformed:
      return "malformed";
    case DropReason::kBadUtf8:
      return "bad UTF-8";
    case DropReason::kEmptySide:
      return "empty side";
    case DropReason::kTagInText:
      return "tag in text";
    case DropReason::kEqualSides:
      return "equal sides";
    case DropReason::kBelowScore:
      return "below score";
    case DropReason::kHeldOut:
      return "in dev or test";
    case DropReason::kDuplicate:
      return "duplicate";
    case DropReason::kTooLong:
      return "too long";
    case DropReason::kLengthRatio:
      return "length ratio";
  }
  DEEPNET_CHECK(false) << "reason " << static_cast<int>(reason);
  return "";
}

CleaningSpec WithDefaults(CleaningSpec spec) {
  if (spec.max_tokens() == 0) spec.set_max_tokens(250);
  if (spec.max_length_ratio() == 0.0) spec.set_max_length_ratio(3.0);
  return spec;
}

uint64_t HeldOutSentences::LanguageHash(std::string_view language) { return HashBytes(language); }

void HeldOutSentences::Add(std::string_view language, std::string_view sentence) {
  hashes_.push_back(HashBytes(sentence, LanguageHash(language)));
}

void HeldOutSentences::Seal() {
  std::sort(hashes_.begin(), hashes_.end());
  hashes_.erase(std::unique(hashes_.begin(), hashes_.end()), hashes_.end());
}

bool HeldOutSentences::Contains(uint64_t language_hash, std::string_view sentence) const {
  return std::binary_search(hashes_.begin(), hashes_.end(), HashBytes(sentence, language_hash));
}

TextFilter::TextFilter(const CleaningSpec& spec, std::vector<std::string> languages,
                       const HeldOutSentences* held_out)
    : spec_(WithDefaults(spec)), languages_(std::move(languages)), held_out_(held_out) {
  DEEPNET_CHECK(std::is_sorted(languages_.begin(), languages_.end())) << "languages";
}

bool TextFilter::HasTag(std::string_view text) const {
  for (size_t open = text.find("__"); open != std::string_view::npos;
       open = text.find("__", open + 1)) {
    const size_t close = text.find("__", open + 2);
    if (close == std::string_view::npos) return false;
    const std::string_view name = text.substr(open + 2, close - open - 2);
    if (std::binary_search(languages_.begin(), languages_.end(), name)) return true;
  }
  return false;
}

DropReason TextFilter::Judge(const LanguagePair& languages, RawPair* pair) const {
  if (pair->malformed) return DropReason::kMalformed;
  if (pair->cut) return DropReason::kTooLong;
  if (!IsText(pair->first) || !IsText(pair->second)) return DropReason::kBadUtf8;
  pair->first = Trim(pair->first);
  pair->second = Trim(pair->second);
  if (pair->first.empty() || pair->second.empty()) return DropReason::kEmptySide;
  if (HasTag(pair->first) || HasTag(pair->second)) return DropReason::kTagInText;
  if (!languages.is_training) return DropReason::kNone;
  if (!spec_.keep_equal_sides() && pair->first == pair->second) return DropReason::kEqualSides;
  if (pair->score.has_value() && !(*pair->score >= languages.score_threshold)) {
    return DropReason::kBelowScore;
  }
  if (held_out_->Contains(languages.first_hash, pair->first) ||
      held_out_->Contains(languages.second_hash, pair->second)) {
    return DropReason::kHeldOut;
  }
  return DropReason::kNone;
}

DropReason JudgeLengths(const CleaningSpec& spec, int64_t first_pieces, int64_t second_pieces) {
  const auto [shorter, longer] = std::minmax(first_pieces, second_pieces);
  if (longer > spec.max_tokens()) return DropReason::kTooLong;
  if (shorter == 0) return DropReason::kEmptySide;
  if (longer >= kRatioFromPieces &&
      static_cast<double>(longer) > spec.max_length_ratio() * static_cast<double>(shorter)) {
    return DropReason::kLengthRatio;
  }
  return DropReason::kNone;
}

int64_t DropCounts::Total() const {
  return std::accumulate(lines.begin(), lines.end(), int64_t{0});
}

}  // namespace deepnet

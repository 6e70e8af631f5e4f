#include "trainer/data/vocabulary.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

#include "parallel/base/check.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/json.h"
#include "parallel/base/status_macros.h"
#include "trainer/data/content_hash.h"
#include "trainer/data/pair_index.h"

namespace deepnet {
namespace {

constexpr int64_t kMaxLanguagesBytes = int64_t{1} << 20;

// The fixed id of a piece of the model that is one of our specials; -1 for every other piece.
int32_t SpecialId(const SentencePieces& pieces, int id) {
  if (pieces.IsUnknown(id)) return kUnk;
  if (!pieces.IsControl(id)) return -1;
  for (const int32_t special : {kBos, kPad, kEos}) {
    if (pieces.Piece(id) == kSpecialPieces[special]) return special;
  }
  return -1;
}

std::string Tag(std::string_view language) {
  return absl::StrCat("__", std::string(language), "__");
}

absl::Status CheckTags(const std::vector<std::string>& languages) {
  if (languages.size() > kMaxLanguages) {
    return InvalidArgument(languages.size(), " languages; at most ", kMaxLanguages, " are allowed");
  }
  const auto wrong = std::ranges::find_if_not(languages, IsLanguageTag);
  if (wrong == languages.end()) return absl::OkStatus();
  return InvalidArgument("language ", JsonQuoted(*wrong),
                         ": a tag has letters, digits and '_' only");
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ReadLanguages(FileSystem& fs, const std::string& path) {
  ASSIGN_OR_RETURN(const std::string list, ReadWholeFile(fs, path, kMaxLanguagesBytes));
  std::vector<std::string> languages = absl::StrSplit(list, '\n', absl::SkipEmpty());
  RETURN_IF_ERROR(WithPrefix(path, CheckTags(languages)));
  return languages;
}

absl::StatusOr<Vocabulary> Vocabulary::Open(const std::string& model_file,
                                            std::vector<std::string> languages) {
  ASSIGN_OR_RETURN(
      const std::string bytes,
      WithPrefix("the tokenizer model",
                 ReadWholeFile(*MakePosixFileSystem(), model_file, kMaxTokenizerBytes)));
  return WithPrefix(model_file, FromBytes(bytes, std::move(languages)));
}

absl::StatusOr<Vocabulary> Vocabulary::FromBytes(std::string_view model_bytes,
                                                 std::vector<std::string> languages) {
  Vocabulary vocabulary;
  std::string error;
  vocabulary.pieces_ = SentencePieces::Load(model_bytes, &error);
  if (vocabulary.pieces_ == nullptr) {
    return InvalidArgument("no SentencePiece model: ", error);
  }
  RETURN_IF_ERROR(CheckTags(languages));
  std::sort(languages.begin(), languages.end());
  languages.erase(std::unique(languages.begin(), languages.end()), languages.end());

  std::set<std::string> tags;
  for (const std::string& language : languages) tags.insert(Tag(language));

  const SentencePieces& pieces = *vocabulary.pieces_;
  vocabulary.to_model_.assign(kFirstPiece, -1);
  vocabulary.from_model_.resize(pieces.size());
  uint64_t hash = HashBytes(model_bytes);
  for (int id = 0; id < pieces.size(); ++id) {
    const int32_t special = SpecialId(pieces, id);
    if (special >= 0) {
      vocabulary.from_model_[id] = special;
      vocabulary.to_model_[special] = id;
    } else {
      vocabulary.from_model_[id] = static_cast<int32_t>(vocabulary.to_model_.size());
      vocabulary.to_model_.push_back(id);
    }
    const std::string piece = pieces.Piece(id);
    if (tags.contains(piece)) {
      return InvalidArgument("piece ", id, " is already the language tag ", piece);
    }
  }
  for (const std::string& language : languages) {
    vocabulary.to_model_.push_back(-1);
    hash = HashBytes(language, hash);
  }
  vocabulary.languages_ = std::move(languages);
  vocabulary.hash_ = absl::StrFormat("%016x", hash);
  return vocabulary;
}

std::vector<int32_t> Vocabulary::Encode(std::string_view text) const {
  std::vector<int32_t> ids = pieces_->Encode(text);
  for (int32_t& id : ids) id = from_model_[id];
  return ids;
}

std::vector<Segmentation> Vocabulary::NBest(std::string_view text, int count) const {
  std::vector<Segmentation> segmentations = pieces_->NBest(text, count);
  for (Segmentation& segmentation : segmentations) {
    for (int& id : segmentation.ids) id = from_model_[id];
  }
  return segmentations;
}

std::string Vocabulary::Decode(std::span<const int32_t> ids) const {
  std::vector<int> model_ids;
  model_ids.reserve(ids.size());
  for (const int32_t id : ids) {
    DEEPNET_CHECK(0 <= id && id < size()) << "token " << id << " of " << size();
    if (id >= kUnk && to_model_[id] >= 0) model_ids.push_back(to_model_[id]);
  }
  return pieces_->Decode(model_ids);
}

std::optional<int32_t> Vocabulary::TagId(std::string_view language) const {
  const auto found = std::lower_bound(languages_.begin(), languages_.end(), language);
  if (found == languages_.end() || *found != language) return std::nullopt;
  return first_tag() + static_cast<int32_t>(found - languages_.begin());
}

std::vector<int32_t> Vocabulary::TagIds() const {
  std::vector<int32_t> ids(languages_.size());
  std::iota(ids.begin(), ids.end(), first_tag());
  return ids;
}

std::string Vocabulary::Piece(int32_t id) const {
  DEEPNET_CHECK(0 <= id && id < size()) << "token " << id << " of " << size();
  if (id >= first_tag()) return Tag(languages_[id - first_tag()]);
  if (id < kFirstPiece) return kSpecialPieces[id];
  return pieces_->Piece(to_model_[id]);
}

}  // namespace deepnet

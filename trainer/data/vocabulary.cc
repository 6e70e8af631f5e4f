#include "trainer/data/vocabulary.h"

#include <algorithm>
#include <fstream>
#include <numeric>
#include <sstream>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "parallel/base/check.h"
#include "trainer/data/content_hash.h"

namespace deepnet {
namespace {

// The fixed id of a piece of the model that is one of our specials; -1 for every other piece.
int32_t SpecialId(const SentencePieces& pieces, int id) {
  if (pieces.IsUnknown(id)) return kUnk;
  if (!pieces.IsControl(id)) return -1;
  const std::string piece = pieces.Piece(id);
  if (piece == "<s>") return kBos;
  if (piece == "<pad>") return kPad;
  if (piece == "</s>") return kEos;
  return -1;
}

std::string Tag(std::string_view language) {
  return absl::StrCat("__", std::string(language), "__");
}

}  // namespace

absl::StatusOr<Vocabulary> Vocabulary::Open(const std::string& model_file,
                                            std::vector<std::string> languages) {
  std::ifstream file(model_file, std::ios::binary);
  std::ostringstream bytes;
  if (!file || !(bytes << file.rdbuf())) {
    return absl::NotFoundError(absl::StrCat("cannot read the tokenizer model ", model_file));
  }
  absl::StatusOr<Vocabulary> vocabulary = FromBytes(bytes.str(), std::move(languages));
  if (vocabulary.ok()) return vocabulary;
  return absl::Status(vocabulary.status().code(),
                      absl::StrCat(model_file, ": ", vocabulary.status().message()));
}

absl::StatusOr<Vocabulary> Vocabulary::FromBytes(std::string_view model_bytes,
                                                 std::vector<std::string> languages) {
  Vocabulary vocabulary;
  std::string error;
  vocabulary.pieces_ = SentencePieces::Load(model_bytes, &error);
  if (vocabulary.pieces_ == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("no SentencePiece model: ", error));
  }
  std::sort(languages.begin(), languages.end());
  languages.erase(std::unique(languages.begin(), languages.end()), languages.end());

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
    for (const std::string& language : languages) {
      if (piece == Tag(language)) {
        return absl::InvalidArgumentError(
            absl::StrCat("piece ", id, " is already the language tag ", piece));
      }
    }
  }
  for (const std::string& language : languages) {
    vocabulary.to_model_.push_back(-1);
    hash = HashBytes(language, hash);
  }
  vocabulary.size_ = static_cast<int32_t>(vocabulary.to_model_.size());
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
    DEEPNET_CHECK(0 <= id && id < size_) << "token " << id << " of " << size_;
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
  DEEPNET_CHECK(0 <= id && id < size_) << "token " << id << " of " << size_;
  if (id >= first_tag()) return Tag(languages_[id - first_tag()]);
  static constexpr const char* kSpecials[] = {"<s>", "<pad>", "</s>", "<unk>"};
  if (id < kFirstPiece) return kSpecials[id];
  return pieces_->Piece(to_model_[id]);
}

}  // namespace deepnet

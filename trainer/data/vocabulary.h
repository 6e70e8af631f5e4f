// Text <-> token ids: a SentencePiece model, this project's fixed special ids, language tags.
//
// Ids: <s> 0, <pad> 1, </s> 2, <unk> 3, then the model's other pieces in the model's order, then
// the tags __xx__ in sorted order. Whatever ids the model itself gives its specials are mapped.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "parallel/base/file_system.h"
#include "trainer/data/sentence_pieces.h"

namespace deepnet {

inline constexpr int32_t kBos = 0;  // never fed, never emitted
inline constexpr int32_t kPad = 1;  // likewise
inline constexpr int32_t kEos = 2;  // ends a sentence; the first token a decoder is fed
inline constexpr int32_t kUnk = 3;
inline constexpr int32_t kFirstPiece = 4;
inline constexpr const char* kSpecialPieces[] = {"<s>", "<pad>", "</s>", "<unk>"};

// Returns the languages that a run's languages.txt lists, a line each. Fails naming the file, also
// where a line is no tag (IsLanguageTag).
absl::StatusOr<std::vector<std::string>> ReadLanguages(FileSystem& fs, const std::string& path);

// Immutable; all methods are safe from several threads. Cheap to move, not copyable.
class Vocabulary {
 public:
  // Reads a SentencePiece model file. `languages` ("de", not "__de__") in any order, repeats are
  // one. Fails naming a file that is no model, a language that is no tag, a piece that is one.
  static absl::StatusOr<Vocabulary> Open(const std::string& model_file,
                                         std::vector<std::string> languages);

  // The same from the bytes of a model file.
  static absl::StatusOr<Vocabulary> FromBytes(std::string_view model_bytes,
                                              std::vector<std::string> languages);

  // Returns the ids of `text`, no tag, no </s>. Never produces a tag: text that spells one is split
  // into pieces.
  std::vector<int32_t> Encode(std::string_view text) const;

  // See SentencePieces::NBest.
  std::vector<Segmentation> NBest(std::string_view text, int count) const;

  // Returns the text of `ids` without specials and tags; <unk> becomes the model's surface for it.
  std::string Decode(std::span<const int32_t> ids) const;

  // Returns the id of __language__; nothing where the vocabulary has no such tag.
  std::optional<int32_t> TagId(std::string_view language) const;

  // Returns the ids of all tags, in order: a search never emits them.
  std::vector<int32_t> TagIds() const;

  // Returns an id in print: "<pad>", "▁the", "__de__".
  std::string Piece(int32_t id) const;

  int32_t size() const { return static_cast<int32_t>(to_model_.size()); }  // with specials, tags
  int32_t first_tag() const { return size() - static_cast<int32_t>(languages_.size()); }
  const std::vector<std::string>& languages() const { return languages_; }  // sorted
  // Hexadecimal hash of the model's bytes and the tags.
  const std::string& hash() const { return hash_; }

 private:
  Vocabulary() = default;

  std::unique_ptr<SentencePieces> pieces_;
  std::vector<std::string> languages_;
  std::vector<int32_t> to_model_;    // our id -> the model's; -1 for specials it lacks and for tags
  std::vector<int32_t> from_model_;  // the model's id -> ours
  std::string hash_;
};

}  // namespace deepnet

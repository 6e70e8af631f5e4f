// A prepared corpus folder, opened for training, validation and translation.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "proto/data.pb.h"
#include "trainer/data/corpus_manifest.h"
#include "trainer/data/corpus_shard.h"
#include "trainer/data/pair_index.h"
#include "trainer/data/vocabulary.h"

namespace deepnet {

// Line n of one side translates line n of the other.
struct ParallelSentences {
  std::vector<std::string> source, target;
};

// Tokens of one training pair.
struct PairTokens {
  std::vector<int32_t> source, target;
};

// Immutable; safe from several threads. Shards are mapped, so memory is what is touched.
class Corpus : public PairIndex {
 public:
  // Checks manifest, sizes, headers, sums of lengths and the tokenizer; reads no text. Fails naming
  // the file.
  static absl::StatusOr<Corpus> Open(const std::string& folder);

  const std::string& folder() const { return folder_; }
  const CorpusManifest& manifest() const { return manifest_; }
  const std::string& content_hash() const { return manifest_.report().content_hash(); }
  const Vocabulary& vocabulary() const { return vocabulary_; }

  // Shard::Intact of all shards. Ask before what Lengths(), Moments() and Tokens() returned is
  // used.
  absl::Status Intact() const;

  // Reads the files of the folder and compares them with their checksums: all of them, or share
  // number `part` of `num_parts`, or the texts of one split. Fails naming file and place.
  absl::Status CheckContent(int part = 0, int num_parts = 1) const;
  absl::Status CheckTexts(std::string_view split) const;  // "dev", "test"

  // Returns the hash of what the training pairs are checked by: equal where they are equal.
  std::string ChecksumsHash() const;

  const std::vector<Direction>& directions() const override { return directions_; }
  PairLengths Lengths(int direction, int64_t pair) const override;
  LengthMoments Moments(int direction, int32_t max_tokens) const override;

  PairTokens Tokens(int direction, int64_t pair) const;

  // Returns the directions that `split` ("dev", "test") has text of, both ways, in order of name.
  std::vector<Direction> TextDirections(std::string_view split) const;

  // Returns the sentences of one direction of dev or test. Where the two languages have no text
  // together they are joined over a third (English first) whose sentences coincide, the first of
  // equal ones counting. NotFound if there is no way; DataLoss naming a damaged file.
  absl::StatusOr<ParallelSentences> Sentences(std::string_view split, std::string_view source,
                                              std::string_view target) const;

 private:
  struct DirectionPlace {
    int shard = 0;
    bool swapped = false;  // the source is the shard's second language
  };

  Corpus(std::string folder, CorpusManifest manifest, Vocabulary vocabulary);
  absl::Status OpenShards();
  bool HasText(std::string_view split, std::string_view a, std::string_view b) const;
  absl::StatusOr<ParallelSentences> ReadSentences(std::string_view split, std::string_view source,
                                                  std::string_view target) const;
  absl::StatusOr<std::vector<std::string>> ReadLines(const std::string& name) const;

  std::string folder_;
  CorpusManifest manifest_;
  Vocabulary vocabulary_;
  std::vector<Shard> shards_;
  std::vector<Direction> directions_;
  std::vector<DirectionPlace> places_;  // of directions_
};

}  // namespace deepnet

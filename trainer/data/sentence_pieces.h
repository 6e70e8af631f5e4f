// SentencePiece models: the sample of sentences that one learns from, training, use. The only door
// to the SentencePiece library: its headers define a namespace absl of their own, so the code
// behind this header sees no abseil (nor has protobuf up to 21 any), and errors are strings here.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace deepnet {

struct SentenceSampleSpec {
  int64_t max_sentences = 1000000;         // of all languages together
  int64_t max_bytes = int64_t{128} << 20;  // of their text
  double temperature = 5.0;                // T >= 1
  uint64_t seed = 0;
};

// A bounded sample of the sentences a tokenizer learns from, drawn while all of them pass by.
//
// Every distinct sentence has a priority, a hash of (seed, language, text); a language keeps those
// below its threshold. When memory is full, each language's threshold falls so far that its share
// is lines^(1/T): with T = 5 the language that is in every pair (English) does not drown the rest.
// A sentence that comes again has the same priority and is taken once.
class SentenceSample {
 public:
  explicit SentenceSample(const SentenceSampleSpec& spec) : spec_(spec) {}

  // Returns true if the sentence was taken.
  bool Add(std::string_view language, std::string_view sentence);

  // Counts sentences of a language whose priorities are not below its threshold.
  void Skip(std::string_view language, int64_t num_sentences);

  uint64_t Priority(std::string_view language, std::string_view sentence) const;
  uint64_t Threshold(std::string_view language) const;  // falls with time

  // Returns the sample, languages one after the other, in order of priority. Once.
  std::vector<std::string> Take();

 private:
  struct Item {
    uint64_t priority;
    std::string text;

    auto operator<=>(const Item&) const = default;
  };
  struct Language {
    uint64_t hash = 0;
    int64_t num_lines = 0;            // seen
    uint64_t threshold = UINT64_MAX;  // items below are kept
    std::vector<Item> items;
  };

  // Lowers thresholds until at most `max_sentences` and `max_bytes` are left.
  void Shrink(int64_t max_sentences, int64_t max_bytes);
  void CutTo(int64_t max_sentences);
  void Count();  // sets num_items_ and num_bytes_
  Language& Entry(std::string_view language);

  const SentenceSampleSpec spec_;
  std::map<std::string, Language, std::less<>> languages_;
  int64_t num_items_ = 0;
  int64_t num_bytes_ = 0;
};

// One way to cut a text into pieces.
struct Segmentation {
  std::vector<int> ids;
  float score = 0.0f;  // logarithm of its probability
};

inline constexpr int64_t kMaxTokenizerBytes = int64_t{64} << 20;  // of a model file

// A loaded model, with the ids of its file. Immutable, safe from several threads.
class SentencePieces {
 public:
  // Returns null if `model_bytes` is no model; *error then says why.
  static std::unique_ptr<SentencePieces> Load(std::string_view model_bytes, std::string* error);

  virtual ~SentencePieces() = default;
  virtual int size() const = 0;
  virtual std::string Piece(int id) const = 0;
  virtual bool IsUnknown(int id) const = 0;  // the piece for characters the model does not know
  virtual bool IsControl(int id) const = 0;  // never produced by text
  virtual std::vector<int> Encode(std::string_view text) const = 0;

  // Returns the up to `count` most probable ways to cut `text`, the best one first; none where the
  // model is not a unigram model.
  virtual std::vector<Segmentation> NBest(std::string_view text, int count) const = 0;

  // Pieces of `text` as the text has them, "▁" for a space; unknown characters as they are.
  virtual std::vector<std::string> EncodeAsPieces(std::string_view text) const = 0;
  virtual std::string Decode(const std::vector<int>& ids) const = 0;
};

struct PieceTraining {
  int pieces = 8000;                // specials included
  double character_coverage = 1.0;  // 0 to 1
  std::string type = "unigram";     // or "bpe"
  std::string normalization;        // as in TokenizerSpec; a file's path as it can be opened
  int threads = 2;                  // > 0
};

// Returns true if `normalization` is one that SentencePiece has, or the default.
bool IsNormalizationName(std::string_view normalization);

// Learns a model from `sentences`; its specials have this project's ids. Fewer pieces than asked
// for come out where the text holds no more. Returns an error text, empty if all went well.
std::string TrainSentencePieces(const PieceTraining& training,
                                const std::vector<std::string>& sentences,
                                std::string* model_bytes);

}  // namespace deepnet

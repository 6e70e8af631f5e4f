// Texts in, translations out, in the same order: encode, sort by length, search batch by batch,
// decode.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "trainer/data/encoded_pair.h"
#include "trainer/data/vocabulary.h"
#include "trainer/decode/batch_limits.h"
#include "trainer/decode/scorer.h"
#include "trainer/decode/search.h"

namespace deepnet {

// Text to ids and back: a search knows no tokenizer.
struct TextCodec {
  std::function<std::vector<int32_t>(std::string_view text)> encode;  // no tag, no </s>
  std::function<std::string(std::span<const int32_t> ids)> decode;    // of such ids
};

// Encode and Decode of `vocabulary`, which must outlive the codec. A blank text has no ids.
TextCodec MakeTextCodec(const Vocabulary& vocabulary);

// Several translators, each with a model of its own, share the batches of every call in turn.
struct BatchShare {
  int part = 0;  // of num_parts
  int num_parts = 1;
};

struct TranslatorOptions {
  SearchOptions search;
  BatchLimits limits;
  int max_positions = 0;  // ids of a side that the model takes, tags and </s> included; 0: any
  int64_t max_log_probs = int64_t{1} << 26;  // rows * vocabulary of a batch; bounds memory
  BatchShare share;                          // default: this translator alone
};

struct TranslatedText {
  std::string text;    // one line: tabs and line breaks are blanks
  int num_tokens = 0;  // </s> and prefix counted, tags not; 0: not searched
  double score = 0.0;  // as Hypothesis::score
};

struct Translation {
  std::vector<TranslatedText> best;  // as Search returns them, at least one
  bool source_cut = false;           // the source had more than max_positions ids
};

// Returns which sentences are decoded together: indices by descending length (equal ones in order),
// cut where the sum of `lengths` would exceed `batch_tokens` or the count `max_sentences`. A longer
// sentence is a batch by itself.
std::vector<std::vector<int>> PlanBatches(std::span<const int> lengths, int batch_tokens,
                                          int64_t max_sentences);

// Tells of a model whose weights have broken.
inline constexpr char kNotFinite[] = "the model gives no finite log-probability";

class Translator {
 public:
  // `scorer` must outlive the translator. With max_positions, search.max_tokens is lowered so that
  // no output is longer.
  Translator(Scorer& scorer, TextCodec codec, TagFrame tags, TranslatorOptions options);

  // result[i] is the translation of texts[i]. An empty or blank text becomes one empty text. With
  // several parts, all of them make the same calls; a text of another part has no `best`, and blank
  // texts are the first part's. Batches, and so translations, are those of one translator alone.
  // Samples depend on first_ordinal + i. The translation of texts[i] begins with the pieces of
  // prefixes[i] (one a text, or none at all); that of a blank text does not. Fails with
  // ExitCode::kData naming the line, first_ordinal + i + 1, of a prefix that is longer than a
  // translation may be. Fails with OutOfRange (kNotFinite), ExitCode::kCheckpoint, if the model
  // gives a sentence no finite log-probability.
  absl::StatusOr<std::vector<Translation>> Translate(std::span<const std::string> texts,
                                                     int64_t first_ordinal = 0,
                                                     std::span<const std::string> prefixes = {});

  const TranslatorOptions& options() const { return options_; }

 private:
  // A text that is searched.
  struct Sentence {
    size_t index = 0;  // of the text
    std::vector<int32_t> source, prefix;
  };

  absl::StatusOr<std::vector<Sentence>> Encode(std::span<const std::string> texts,
                                               int64_t first_ordinal,
                                               std::span<const std::string> prefixes,
                                               std::vector<Translation>& translations) const;
  int64_t MaxSentences() const;
  std::vector<TranslatedText> Decode(std::span<const Hypothesis> hypotheses) const;

  Scorer& scorer_;
  const TextCodec codec_;
  const TagFrame tags_;
  TranslatorOptions options_;
  int64_t num_batches_ = 0;  // of all parts, so far
};

}  // namespace deepnet

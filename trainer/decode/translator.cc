#include "trainer/decode/translator.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "parallel/base/check.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "parallel/base/utf8.h"

namespace deepnet {

TextCodec MakeTextCodec(const Vocabulary& vocabulary) {
  return {.encode =
              [&vocabulary](std::string_view text) {
                return IsBlank(text) ? std::vector<int32_t>() : vocabulary.Encode(text);
              },
          .decode = [&vocabulary](std::span<const int32_t> ids) { return vocabulary.Decode(ids); }};
}

std::vector<std::vector<int>> PlanBatches(std::span<const int> lengths, int batch_tokens,
                                          int64_t max_sentences) {
  std::vector<int> order(lengths.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater<>(), [&](int i) { return lengths[i]; });
  std::vector<std::vector<int>> batches;
  int64_t num_tokens = 0;  // of the last batch
  for (const int index : order) {
    if (batches.empty() || num_tokens + lengths[index] > batch_tokens ||
        std::ssize(batches.back()) >= max_sentences) {
      batches.emplace_back();
      num_tokens = 0;
    }
    batches.back().push_back(index);
    num_tokens += lengths[index];
  }
  return batches;
}

Translator::Translator(Scorer& scorer, TextCodec codec, TagFrame tags, TranslatorOptions options)
    : scorer_(scorer),
      codec_(std::move(codec)),
      tags_(std::move(tags)),
      options_(std::move(options)) {
  DEEPNET_CHECK_LE(1, options_.limits.batch_tokens);
  if (options_.max_positions > 0) {
    SearchOptions& search = options_.search;
    const int limit = options_.max_positions - static_cast<int>(tags_.target.size()) - 1;
    search.max_tokens = std::min(search.max_tokens, limit);
  }
}

absl::StatusOr<std::vector<Translation>> Translator::Translate(
    std::span<const std::string> texts, int64_t first_ordinal,
    std::span<const std::string> prefixes) {
  std::vector<Translation> translations(texts.size());
  ASSIGN_OR_RETURN(std::vector<Sentence> sentences,
                   Encode(texts, first_ordinal, prefixes, translations));
  std::vector<int> lengths;
  for (const Sentence& sentence : sentences) lengths.push_back(std::ssize(sentence.source));
  for (const std::vector<int>& indices :
       PlanBatches(lengths, options_.limits.batch_tokens, MaxSentences())) {
    if (num_batches_++ % options_.share.num_parts != options_.share.part) continue;
    SearchBatch batch;
    for (const int index : indices) {
      Sentence& sentence = sentences[index];
      batch.sources.push_back(std::move(sentence.source));
      batch.tags.push_back(tags_.target);
      batch.prefixes.push_back(std::move(sentence.prefix));
      batch.ordinals.push_back(first_ordinal + sentence.index);
    }
    const std::vector<std::vector<Hypothesis>> results = Search(scorer_, batch, options_.search);
    for (size_t b = 0; b < results.size(); ++b) {
      const size_t text = sentences[indices[b]].index;
      if (results[b].empty()) {
        return WithExitCode(absl::OutOfRangeError(absl::StrCat(
                                "sentence ", first_ordinal + text + 1, ": ", kNotFinite)),
                            ExitCode::kCheckpoint);
      }
      translations[text].best = Decode(results[b]);
    }
  }
  return translations;
}

// Fills in what is known of `translations` before the search.
absl::StatusOr<std::vector<Translator::Sentence>> Translator::Encode(
    std::span<const std::string> texts, int64_t first_ordinal,
    std::span<const std::string> prefixes, std::vector<Translation>& translations) const {
  DEEPNET_CHECK(prefixes.empty() || prefixes.size() == texts.size());
  std::vector<Sentence> sentences;
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::vector<int32_t> pieces = codec_.encode(texts[i]);
    if (pieces.empty()) {
      if (options_.share.part == 0) translations[i].best.emplace_back();
      continue;
    }
    Sentence& sentence = sentences.emplace_back();
    sentence.index = i;
    sentence.source = FrameIds(tags_.source, pieces, options_.max_positions);
    translations[i].source_cut = sentence.source.size() < tags_.source.size() + pieces.size() + 1;
    if (prefixes.empty()) continue;
    sentence.prefix = codec_.encode(prefixes[i]);
    if (std::ssize(sentence.prefix) > options_.search.max_tokens) {
      return DataError("line ", first_ordinal + i + 1, " of the prefixes: ", sentence.prefix.size(),
                       " tokens, but a translation has at most ", options_.search.max_tokens);
    }
  }
  return sentences;
}

int64_t Translator::MaxSentences() const {
  const SearchOptions& search = options_.search;
  const int rows_per_sentence = search.sampling_temperature > 0.0 ? search.nbest : search.beam_size;
  const int64_t by_log_probs =
      options_.max_log_probs / (rows_per_sentence * scorer_.vocabulary_size());
  return std::max<int64_t>(1, std::min(by_log_probs, options_.limits.max_sentences));
}

std::vector<TranslatedText> Translator::Decode(std::span<const Hypothesis> hypotheses) const {
  std::vector<TranslatedText> texts;
  for (const Hypothesis& hypothesis : hypotheses) {
    texts.push_back({.text = OneLine(codec_.decode(hypothesis.tokens)),
                     .num_tokens = static_cast<int>(hypothesis.tokens.size()) + 1,
                     .score = hypothesis.score});
  }
  return texts;
}

}  // namespace deepnet

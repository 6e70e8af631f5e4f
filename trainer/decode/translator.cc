#include "trainer/decode/translator.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "parallel/base/check.h"
#include "parallel/base/exit_code.h"

namespace deepnet {
namespace {

bool IsBlank(const std::string& text) {
  return text.find_first_not_of(" \t\v\f\r\n") == std::string::npos;
}

// A translation is one line and one column of the output, whatever its pieces decode to.
std::string OneLine(std::string text) {
  for (char& c : text) {
    if (c == '\n' || c == '\r' || c == '\t') c = ' ';
  }
  return text;
}

}  // namespace

std::vector<std::vector<int>> PlanBatches(std::span<const int> lengths, int batch_tokens,
                                          int64_t max_sentences) {
  std::vector<int> order(lengths.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return lengths[static_cast<size_t>(a)] > lengths[static_cast<size_t>(b)];
  });
  std::vector<std::vector<int>> batches;
  int64_t num_tokens = 0;  // of the last batch
  for (const int index : order) {
    const int length = lengths[static_cast<size_t>(index)];
    if (batches.empty() || num_tokens + length > batch_tokens ||
        static_cast<int64_t>(batches.back().size()) >= max_sentences) {
      batches.emplace_back();
      num_tokens = 0;
    }
    batches.back().push_back(index);
    num_tokens += length;
  }
  return batches;
}

Translator::Translator(Scorer& scorer, TextCodec codec, TagFrame tags, TranslatorOptions options)
    : scorer_(scorer),
      codec_(std::move(codec)),
      tags_(std::move(tags)),
      options_(std::move(options)) {
  DEEPNET_CHECK(options_.batch_tokens >= 1) << "batch_tokens = " << options_.batch_tokens;
  if (options_.max_positions > 0) {
    SearchOptions& search = options_.search;
    const int limit = options_.max_positions - static_cast<int>(tags_.target.size()) - 1;
    search.max_tokens = std::min(search.max_tokens, limit);
    search.min_tokens = std::min(search.min_tokens, search.max_tokens);
  }
}

absl::StatusOr<std::vector<Translation>> Translator::Translate(std::span<const std::string> texts,
                                                               int64_t first_ordinal) {
  std::vector<Translation> translations(texts.size());
  std::vector<size_t> searched;  // indices of texts that are not blank
  std::vector<std::vector<int32_t>> sources;
  std::vector<int> lengths;
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::vector<int32_t> pieces =
        IsBlank(texts[i]) ? std::vector<int32_t>() : codec_.encode(texts[i]);
    if (pieces.empty()) {
      if (options_.share.part == 0) translations[i].best.emplace_back();
      continue;
    }
    searched.push_back(i);
    sources.push_back(FrameIds(tags_.source, pieces, options_.max_positions));
    lengths.push_back(static_cast<int>(sources.back().size()));
    translations[i].source_cut = sources.back().size() < tags_.source.size() + pieces.size() + 1;
  }

  const SearchOptions& search = options_.search;
  const int rows_per_sentence = search.sampling_temperature > 0.0 ? search.nbest : search.beam_size;
  const int64_t max_sentences = std::max<int64_t>(
      1, options_.max_log_probs / (rows_per_sentence * scorer_.vocabulary_size()));
  for (const std::vector<int>& indices :
       PlanBatches(lengths, options_.batch_tokens, max_sentences)) {
    if (num_batches_++ % options_.share.num_parts != options_.share.part) continue;
    SearchBatch batch;
    for (const int index : indices) {
      const size_t i = static_cast<size_t>(index);
      batch.sources.push_back(std::move(sources[i]));
      batch.prefixes.push_back(tags_.target);
      batch.ordinals.push_back(first_ordinal + static_cast<int64_t>(searched[i]));
    }
    const std::vector<std::vector<Hypothesis>> results = Search(scorer_, batch, search);
    for (size_t b = 0; b < results.size(); ++b) {
      const size_t text = searched[static_cast<size_t>(indices[b])];
      if (results[b].empty()) {
        return WithExitCode(
            absl::InternalError(absl::StrCat("sentence ", first_ordinal + text + 1,
                                             ": the model gives no finite log-probability")),
            ExitCode::kCheckpoint);
      }
      translations[text].best = Decode(results[b]);
    }
  }
  return translations;
}

std::vector<TranslatedText> Translator::Decode(std::span<const Hypothesis> hypotheses) const {
  std::vector<TranslatedText> texts;
  for (const Hypothesis& hypothesis : hypotheses) {
    texts.push_back({.text = OneLine(codec_.decode(hypothesis.tokens)),
                     .num_tokens = static_cast<int>(hypothesis.tokens.size()) + 1,
                     .log_prob = hypothesis.log_prob,
                     .score = hypothesis.score});
  }
  return texts;
}

}  // namespace deepnet

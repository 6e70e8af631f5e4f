// Many SentenceSearch side by side. The live rows of all sentences, sentence after sentence, are
// the rows of one DecoderState: one Step serves them all, then each sentence says which of its rows
// go on with which token, and one Reorder puts them together again. A sentence that is done has no
// rows any more, so the batch shrinks as it goes.
#include "trainer/decode/search.h"

#include <cmath>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "parallel/base/check.h"
#include "parallel/base/exit_code.h"
#include "trainer/decode/sentence_search.h"

namespace deepnet {
namespace {

// Rows of the next Step: what they continue, and what they are fed.
struct NextRows {
  std::vector<int32_t> parents;
  std::vector<int32_t> tokens;

  void Clear() {
    parents.clear();
    tokens.clear();
  }

  bool SameRowsAs(size_t num_rows) const {
    if (parents.size() != num_rows) return false;
    for (size_t row = 0; row < num_rows; ++row) {
      if (parents[row] != static_cast<int32_t>(row)) return false;
    }
    return true;
  }
};

std::vector<SentenceSearch> MakeSentences(const SearchBatch& batch, const SearchRules& rules) {
  const size_t count = batch.sources.size();
  DEEPNET_CHECK(batch.prefixes.empty() || batch.prefixes.size() == count);
  DEEPNET_CHECK(batch.ordinals.empty() || batch.ordinals.size() == count);
  std::vector<SentenceSearch> sentences;
  sentences.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    sentences.emplace_back(rules, batch.sources[i].size(),
                           batch.prefixes.empty() ? std::vector<int32_t>() : batch.prefixes[i],
                           batch.ordinals.empty() ? static_cast<int64_t>(i) : batch.ordinals[i]);
  }
  return sentences;
}

// Advances every sentence that has live rows by its part of `log_probs`, and lists the rows after.
void AdvanceAll(std::vector<SentenceSearch>& sentences, const float* log_probs,
                size_t vocabulary_size, NextRows& next) {
  next.Clear();
  size_t first_row = 0;  // of the sentence, before
  for (SentenceSearch& sentence : sentences) {
    const size_t num_rows = sentence.live().size();
    if (num_rows == 0) continue;
    sentence.Advance({log_probs + first_row * vocabulary_size, num_rows * vocabulary_size});
    for (const SentenceSearch::Live& live : sentence.live()) {
      next.parents.push_back(static_cast<int32_t>(first_row) + live.parent);
      next.tokens.push_back(live.token);
    }
    first_row += num_rows;
  }
}

void CheckOptions(const SearchOptions& options) {
  DEEPNET_CHECK(options.beam_size >= 1 && options.nbest >= 1 && options.min_tokens >= 0);
  DEEPNET_CHECK(options.max_tokens >= 1 && options.max_tokens >= options.min_tokens);
  DEEPNET_CHECK(options.nbest <= options.beam_size || options.sampling_temperature > 0.0);
}

}  // namespace

absl::StatusOr<SearchOptions> MakeSearchOptions(const DecodeSpec& spec,
                                                std::span<const int32_t> forbidden) {
  std::vector<std::string> mistakes;
  const auto require = [&](bool holds, const char* field, double value, const char* what) {
    if (!holds) mistakes.push_back(absl::StrCat("decode.", field, ": ", value, ": ", what));
  };
  const bool sampling = spec.sampling_temperature() > 0.0;
  require(spec.beam_size() >= 1, "beam_size", spec.beam_size(), "must be at least 1");
  require(std::isfinite(spec.length_penalty()), "length_penalty", spec.length_penalty(),
          "must be finite");
  require(spec.max_tokens() >= 1, "max_tokens", spec.max_tokens(), "must be at least 1");
  require(std::isfinite(spec.max_ratio()) && spec.max_ratio() >= 0.0, "max_ratio", spec.max_ratio(),
          "must be 0 or above");
  require(spec.nbest() >= 1, "nbest", spec.nbest(), "must be at least 1");
  require(sampling || spec.nbest() <= spec.beam_size(), "nbest", spec.nbest(),
          "must not exceed decode.beam_size");
  require(std::isfinite(spec.sampling_temperature()) && spec.sampling_temperature() >= 0.0,
          "sampling_temperature", spec.sampling_temperature(), "must be 0 or above");
  if (!mistakes.empty()) {
    return WithExitCode(absl::InvalidArgumentError(absl::StrJoin(mistakes, "\n")),
                        ExitCode::kBadConfig);
  }
  return SearchOptions{.beam_size = spec.beam_size(),
                       .length_penalty = spec.length_penalty(),
                       .max_tokens = spec.max_tokens(),
                       .max_ratio = spec.max_ratio(),
                       .nbest = spec.nbest(),
                       .sampling_temperature = spec.sampling_temperature(),
                       .seed = spec.sampling_seed(),
                       .forbidden = {forbidden.begin(), forbidden.end()}};
}

std::vector<std::vector<Hypothesis>> Search(Scorer& scorer, const SearchBatch& batch,
                                            const SearchOptions& options) {
  CheckOptions(options);
  if (batch.sources.empty()) return {};
  const size_t vocabulary_size = static_cast<size_t>(scorer.vocabulary_size());
  const SearchRules rules = MakeSearchRules(options, scorer.vocabulary_size());
  std::vector<SentenceSearch> sentences = MakeSentences(batch, rules);

  // Not a vector: pages that a small search never reaches are never touched.
  const bool sampling = options.sampling_temperature > 0.0;
  const size_t rows_per_sentence =
      static_cast<size_t>(sampling ? options.nbest : options.beam_size);
  const auto log_probs = std::make_unique_for_overwrite<float[]>(
      sentences.size() * rows_per_sentence * vocabulary_size);

  const std::unique_ptr<DecoderState> state = scorer.Start(batch.sources);
  NextRows rows{.parents = {}, .tokens = std::vector<int32_t>(sentences.size(), SpecialId::kEnd)};
  while (!rows.tokens.empty()) {
    const size_t num_rows = rows.tokens.size();
    scorer.Step(*state, rows.tokens, log_probs.get());
    AdvanceAll(sentences, log_probs.get(), vocabulary_size, rows);
    if (!rows.tokens.empty() && !rows.SameRowsAs(num_rows)) scorer.Reorder(*state, rows.parents);
  }

  std::vector<std::vector<Hypothesis>> results;
  for (SentenceSearch& sentence : sentences) results.push_back(sentence.TakeResult());
  return results;
}

}  // namespace deepnet

// Search runs many SentenceSearch side by side. The live rows of all sentences, sentence after
// sentence, are the rows of one DecoderState: one Step serves them all, then each sentence says
// which of its rows continue with which token, and one Reorder puts them together again. A sentence
// that is done has no rows any more, so the batch shrinks as it proceeds.
//
// Before a Step each sentence says which tokens it wants chosen from its rows; Advance makes
// candidates of them (live row, token, log-probability so far) and takes some. A beam collects its
// 2 * beam_size best: if all live rows wanted to end, beam_size others could still continue. Ends
// among the first beam_size of them are finished; the first beam_size that do not end live on.
// Samples collect one token per live row. While a prefix is forced there is one live row, whose
// next token is the only candidate. At the greatest length </s> is the only candidate of each row.
// A row's own 2 * beam_size best are enough: no other can be among the best of all rows.
#include "trainer/decode/search.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <tuple>
#include <utility>

#include "absl/strings/str_join.h"

#include "parallel/base/check.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/messages.h"
#include "parallel/base/philox.h"

namespace deepnet {
namespace {

constexpr int kExtraTokens = 10;  // allowed by max_ratio for the shortest sources

// Returns a number uniform in [0, 1) with 53 bits, a function of its arguments.
double SampleUniform(uint64_t seed, int64_t ordinal, int position, int sample) {
  const uint64_t id = static_cast<uint64_t>(ordinal);
  const PhiloxBlock block =
      Philox(MakeKey(seed, RandomPurpose::kSampling),
             {static_cast<uint32_t>(id), static_cast<uint32_t>(id >> 32),
              static_cast<uint32_t>(position), static_cast<uint32_t>(sample)});
  const uint64_t bits = (static_cast<uint64_t>(block[1]) << 32) | block[0];
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

int MaxTokens(const SearchOptions& options, size_t source_size) {
  if (options.max_ratio <= 0.0) return options.max_tokens;
  const double by_source = options.max_ratio * static_cast<double>(source_size) + kExtraTokens;
  const double limit = std::min<double>(options.max_tokens, by_source);
  return std::max(options.min_tokens, static_cast<int>(limit));
}

// Options and tables that all sentences of a search share.
struct SearchRules {
  SearchOptions options;
  std::vector<uint8_t> kinds;  // [vocabulary_size] of TokenKind

  bool samples() const { return options.sampling_temperature > 0.0; }
  // Tokens chosen from a row at a time.
  int k() const {
    const size_t wanted = 2 * static_cast<size_t>(options.beam_size);
    return samples() ? 1 : static_cast<int>(std::min(wanted, kinds.size()));
  }
};

// The search of one sentence, one token at a time, from the distributions of its live rows. Live
// hypotheses are rows 0 to live().size() - 1; before the first Advance there is one, to which </s>
// is fed.
class SentenceSearch {
 public:
  // `rules` must outlive this; `source_size` bounds the length (max_ratio), but not that of
  // `prefix`.
  SentenceSearch(const SearchRules& rules, size_t source_size, std::vector<int32_t> tags,
                 std::vector<int32_t> prefix, int64_t ordinal)
      : rules_(rules),
        tags_(std::move(tags)),
        prefix_(std::move(prefix)),
        ordinal_(ordinal),
        max_tokens_(MaxTokens(rules.options, source_size)),
        live_(1) {}

  // A hypothesis that continues: the token to feed, and the row that it extends.
  struct Live {
    int parent = 0;  // row before the last Advance
    int32_t token = kEos;
    int node = -1;  // of `nodes_`; -1: nothing decoded yet, or a candidate
    double log_prob = 0.0;
    int sample = 0;  // number of the sample; 0 in a beam
  };

  // Best first in a beam, by number when sampling; empty: the sentence is done.
  std::span<const Live> live() const { return live_; }

  // Appends the choices wanted from the distributions after the tokens fed to the live rows, the
  // first of which is row `first_row` of the step. None while tags are fed.
  void AddChoices(size_t first_row, std::vector<native::TokenChoice>& choices) const {
    if (tags_used_ < tags_.size()) return;
    const SearchOptions& options = rules_.options;
    const size_t count = draws_first() ? static_cast<size_t>(options.nbest) : live_.size();
    for (size_t i = 0; i < count; ++i) {
      native::TokenChoice& choice = choices.emplace_back();
      choice.row = static_cast<int32_t>(first_row + (draws_first() ? 0 : i));
      choice.forbidden = forbidden_now();
      if (is_forced()) choice.given = prefix_[num_tokens_];
      if (!rules_.samples()) continue;
      const int sample = draws_first() ? static_cast<int>(i) : live_[i].sample;
      choice.uniform = SampleUniform(options.seed, ordinal_, num_tokens_, sample);
    }
  }

  // `chosen` is [choices, rules.k()], what was chosen for AddChoices.
  void Advance(std::span<const native::TokenScore> chosen) {
    if (tags_used_ < tags_.size()) {
      // All hypotheses share the tags, so they can neither change their order nor their length.
      live_.front() = {.parent = 0, .token = tags_[tags_used_++]};
      return;
    }
    candidates_.clear();
    next_.clear();
    Collect(chosen);
    ++num_tokens_;
    rules_.samples() ? ExtendSamples() : SelectBeam();
    std::swap(live_, next_);
  }

  // Returns the nbest, when done.
  std::vector<Hypothesis> TakeResult() {
    std::stable_sort(finished_.begin(), finished_.end(), [&](const Finished& a, const Finished& b) {
      return rules_.samples() ? a.sample < b.sample : a.hypothesis.score > b.hypothesis.score;
    });
    const size_t count = std::min(finished_.size(), static_cast<size_t>(rules_.options.nbest));
    std::vector<Hypothesis> result;
    for (size_t i = 0; i < count; ++i) result.push_back(std::move(finished_[i].hypothesis));
    return result;
  }

 private:
  struct Node {  // one decided token; hypotheses are paths to the root
    int32_t token;
    int parent;  // -1: the first
  };
  struct Finished {
    Hypothesis hypothesis;
    int sample;
  };

  void Collect(std::span<const native::TokenScore> chosen) {
    for (int i = 0; i < std::ssize(chosen); ++i) {
      if (chosen[i].token < 0) continue;
      const int row = draws_first() ? 0 : i / rules_.k();
      candidates_.push_back({.parent = row,
                             .token = chosen[i].token,
                             .log_prob = live_[row].log_prob + chosen[i].log_prob,
                             .sample = draws_first() ? i : live_[row].sample});
    }
  }

  void SelectBeam() {
    const size_t beam_size = static_cast<size_t>(rules_.options.beam_size);
    const size_t num_kept = std::min(2 * beam_size, candidates_.size());
    std::ranges::partial_sort(candidates_, candidates_.begin() + num_kept, {}, [](const Live& c) {
      return std::tuple(-c.log_prob, c.parent, c.token);
    });
    for (size_t rank = 0; rank < num_kept; ++rank) {
      const Live& candidate = candidates_[rank];
      if (candidate.token != kEos) {
        if (next_.size() < beam_size) next_.push_back(Extend(candidate));
      } else if (rank < beam_size && finished_.size() < beam_size) {
        Finish(candidate);
      }
    }
    if (finished_.size() >= beam_size || CannotImprove()) next_.clear();
  }

  void ExtendSamples() {
    for (const Live& candidate : candidates_) {
      if (candidate.token == kEos) {
        Finish(candidate);
      } else {
        next_.push_back(Extend(candidate));
      }
    }
  }

  Live Extend(Live candidate) {
    nodes_.push_back({.token = candidate.token, .parent = live_[candidate.parent].node});
    candidate.node = static_cast<int>(nodes_.size()) - 1;
    return candidate;
  }

  void Finish(const Live& candidate) {
    Hypothesis hypothesis{.tokens = {},
                          .log_prob = candidate.log_prob,
                          .score = Score(candidate.log_prob, num_tokens_)};
    for (int node = live_[candidate.parent].node; node >= 0; node = nodes_[node].parent) {
      hypothesis.tokens.push_back(nodes_[node].token);
    }
    std::reverse(hypothesis.tokens.begin(), hypothesis.tokens.end());
    finished_.push_back({std::move(hypothesis), candidate.sample});
  }

  // Returns true if even the best live hypothesis, ending at once or at the greatest length without
  // losing any probability, stays below the worst of the nbest so far. With a positive length
  // penalty the greatest length is the better of the two, with a negative one the end at once.
  bool CannotImprove() const {
    const int nbest = rules_.options.nbest;
    if (next_.empty() || std::ssize(finished_) < nbest) return false;
    std::vector<double> scores;
    for (const Finished& finished : finished_) scores.push_back(finished.hypothesis.score);
    std::ranges::nth_element(scores, scores.begin() + nbest - 1, std::greater<>());
    const double log_prob = next_.front().log_prob;
    const double bound =
        std::max(Score(log_prob, num_tokens_ + 1), Score(log_prob, max_tokens_ + 1));
    return bound < scores[nbest - 1];
  }

  double Score(double log_prob, int length) const {
    return log_prob / std::pow(length, rules_.options.length_penalty);
  }

  uint32_t forbidden_now() const {
    if (num_tokens_ >= max_tokens_) return TokenKind::kNever | TokenKind::kOther;
    if (num_tokens_ < rules_.options.min_tokens) return TokenKind::kNever | TokenKind::kEnd;
    return TokenKind::kNever;
  }

  bool is_forced() const { return num_tokens_ < std::ssize(prefix_); }
  // All samples start from the one live row.
  bool draws_first() const { return rules_.samples() && num_tokens_ == std::ssize(prefix_); }

  const SearchRules& rules_;
  const std::vector<int32_t> tags_, prefix_;
  const int64_t ordinal_;
  int max_tokens_;
  size_t tags_used_ = 0;
  int num_tokens_ = 0;  // of each live hypothesis, tags not counted
  std::vector<Node> nodes_;
  std::vector<Live> live_;
  std::vector<Finished> finished_;
  std::vector<Live> candidates_;  // of this Advance; kept for its memory, like the next one
  std::vector<Live> next_;
};

SearchRules MakeSearchRules(const SearchOptions& options, int64_t vocabulary_size) {
  SearchRules rules{.options = options, .kinds = {}};
  rules.kinds.assign(vocabulary_size, TokenKind::kOther);
  rules.kinds[kBos] = TokenKind::kNever;
  rules.kinds[kPad] = TokenKind::kNever;
  rules.kinds[kEos] = TokenKind::kEnd;
  for (const int32_t id : options.forbidden) {
    DEEPNET_CHECK(id >= 0 && id < vocabulary_size && id != kEos)
        << "forbidden id " << id << " of " << vocabulary_size;
    rules.kinds[id] = TokenKind::kNever;
  }
  return rules;
}

// The next Step: what its rows continue, what they are fed, and what is chosen after that.
struct NextRows {
  std::vector<int32_t> parents = {};
  std::vector<int32_t> tokens = {};
  std::vector<native::TokenChoice> choices = {};
  std::vector<size_t> num_choices = {};  // of each sentence

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
  DEEPNET_CHECK(batch.tags.empty() || batch.tags.size() == count);
  DEEPNET_CHECK(batch.prefixes.empty() || batch.prefixes.size() == count);
  DEEPNET_CHECK(batch.ordinals.empty() || batch.ordinals.size() == count);
  std::vector<SentenceSearch> sentences;
  sentences.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    sentences.emplace_back(rules, batch.sources[i].size(),
                           batch.tags.empty() ? std::vector<int32_t>() : batch.tags[i],
                           batch.prefixes.empty() ? std::vector<int32_t>() : batch.prefixes[i],
                           batch.ordinals.empty() ? static_cast<int64_t>(i) : batch.ordinals[i]);
  }
  return sentences;
}

// Lists the choices that all sentences want.
void AddAllChoices(const std::vector<SentenceSearch>& sentences, NextRows& next) {
  size_t first_row = 0;
  for (const SentenceSearch& sentence : sentences) {
    const size_t before = next.choices.size();
    if (!sentence.live().empty()) sentence.AddChoices(first_row, next.choices);
    next.num_choices.push_back(next.choices.size() - before);
    first_row += sentence.live().size();
  }
}

// Advances every sentence that has live rows by its part of `chosen`, k a choice, and lists the
// rows after.
void AdvanceAll(std::vector<SentenceSearch>& sentences, std::span<const native::TokenScore> chosen,
                size_t k, NextRows& next) {
  const std::vector<size_t> num_choices = next.num_choices;
  next = {};
  size_t first_row = 0;  // of the sentence, before
  for (size_t s = 0; s < sentences.size(); ++s) {
    SentenceSearch& sentence = sentences[s];
    const size_t num_rows = sentence.live().size();
    if (num_rows == 0) continue;
    sentence.Advance(chosen.first(num_choices[s] * k));
    chosen = chosen.subspan(num_choices[s] * k);
    for (const SentenceSearch::Live& live : sentence.live()) {
      next.parents.push_back(static_cast<int32_t>(first_row) + live.parent);
      next.tokens.push_back(live.token);
    }
    first_row += num_rows;
  }
}

}  // namespace

absl::StatusOr<SearchOptions> MakeSearchOptions(const DecodeSpec& spec,
                                                std::span<const int32_t> forbidden) {
  Mistakes mistakes;
  const Fields fields(spec, "decode.", &mistakes);
  constexpr double kMax = std::numeric_limits<double>::max();
  const bool sampling = spec.sampling_temperature() > 0.0;
  fields.AtLeast(1, "beam_size");
  fields.AtMost(kMaxHypotheses, "beam_size");
  fields.Require(std::isfinite(spec.length_penalty()), "length_penalty", "must be finite");
  fields.AtLeast(1, "max_tokens");
  fields.Within(0, kMax, "max_ratio", "must be 0 or above");
  fields.AtLeast(1, "nbest");
  fields.AtMost(kMaxHypotheses, "nbest");
  fields.Require(sampling || spec.nbest() <= spec.beam_size(), "nbest",
                 "must not exceed decode.beam_size");
  fields.Within(0, kMax, "sampling_temperature", "must be 0 or above");
  fields.AtLeast(0, "sampling_top_k", "must be at least 1, or 0: all");
  fields.Within(0, 1, "sampling_top_p", "must be above 0 and at most 1, or 0: all");
  fields.Require(spec.sampling_epsilon() >= 0.0 && spec.sampling_epsilon() < 1.0,
                 "sampling_epsilon", "must be above 0 and below 1, or 0: all");
  if (!mistakes.empty()) return ConfigError(absl::StrJoin(mistakes, "\n"));
  return SearchOptions{.beam_size = spec.beam_size(),
                       .length_penalty = spec.length_penalty(),
                       .max_tokens = spec.max_tokens(),
                       .max_ratio = spec.max_ratio(),
                       .nbest = spec.nbest(),
                       .sampling_temperature = spec.sampling_temperature(),
                       .sampling_cuts = {.top_k = spec.sampling_top_k(),
                                         .top_p = spec.sampling_top_p(),
                                         .epsilon = spec.sampling_epsilon()},
                       .seed = spec.sampling_seed(),
                       .forbidden = {forbidden.begin(), forbidden.end()}};
}

std::vector<std::vector<Hypothesis>> Search(Scorer& scorer, const SearchBatch& batch,
                                            const SearchOptions& options) {
  DEEPNET_CHECK(options.beam_size >= 1 && options.nbest >= 1 && options.min_tokens >= 0);
  DEEPNET_CHECK(options.max_tokens >= 1 && options.max_tokens >= options.min_tokens);
  DEEPNET_CHECK(options.nbest <= options.beam_size || options.sampling_temperature > 0.0);
  if (batch.sources.empty()) return {};
  const SearchRules rules = MakeSearchRules(options, scorer.vocabulary_size());
  std::vector<SentenceSearch> sentences = MakeSentences(batch, rules);
  const size_t k = static_cast<size_t>(rules.k());
  std::vector<native::TokenScore> chosen;

  const std::unique_ptr<DecoderState> state = scorer.Start(batch.sources);
  NextRows rows{.tokens = std::vector<int32_t>(sentences.size(), kEos)};
  while (!rows.tokens.empty()) {
    const size_t num_rows = rows.tokens.size();
    AddAllChoices(sentences, rows);
    chosen.resize(rows.choices.size() * k);
    scorer.Step(*state, rows.tokens,
                {.count = static_cast<int64_t>(rows.choices.size()),
                 .choices = rows.choices.data(),
                 .kinds = rules.kinds.data(),
                 .k = rules.k(),
                 .temperature = options.sampling_temperature,
                 .cuts = options.sampling_cuts,
                 .chosen = chosen.data()});
    AdvanceAll(sentences, chosen, k, rows);
    if (!rows.tokens.empty() && !rows.SameRowsAs(num_rows)) scorer.Reorder(*state, rows.parents);
  }

  std::vector<std::vector<Hypothesis>> results;
  for (SentenceSearch& sentence : sentences) results.push_back(sentence.TakeResult());
  return results;
}

}  // namespace deepnet

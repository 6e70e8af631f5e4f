// Each Advance collects candidates (live row, token, log-probability so far) and takes some of
// them.
//
// A beam collects its 2 * beam_size best: if all live rows wanted to end, beam_size others would
// still be there to go on. Ends among the first beam_size of them are finished; the first beam_size
// that do not end live on. Samples collect one token per live row. At the greatest length </s> is
// the only candidate of each row. A row's own 2 * beam_size best are enough: no other token of it
// can be among the best of all rows.
#include "trainer/decode/sentence_search.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <tuple>
#include <utility>

#include "parallel/base/check.h"
#include "parallel/base/philox.h"

namespace deepnet {
namespace {

constexpr int kExtraTokens = 10;  // what max_ratio leaves to the shortest sources

// Uniform in [0, 1) with 53 bits, a function of what it is for.
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

}  // namespace

SearchRules MakeSearchRules(const SearchOptions& options, int64_t vocabulary_size) {
  SearchRules rules{.options = options, .forbidden = {}, .forbidden_or_end = {}};
  rules.forbidden.assign(static_cast<size_t>(vocabulary_size), 0);
  rules.forbidden[SpecialId::kBegin] = 1;
  rules.forbidden[SpecialId::kPadding] = 1;
  for (const int32_t id : options.forbidden) {
    DEEPNET_CHECK(id >= 0 && id < vocabulary_size && id != SpecialId::kEnd)
        << "forbidden id " << id << " of " << vocabulary_size;
    rules.forbidden[static_cast<size_t>(id)] = 1;
  }
  rules.forbidden_or_end = rules.forbidden;
  rules.forbidden_or_end[SpecialId::kEnd] = 1;
  return rules;
}

SentenceSearch::SentenceSearch(const SearchRules& rules, size_t source_size,
                               std::vector<int32_t> prefix, int64_t ordinal)
    : rules_(rules),
      prefix_(std::move(prefix)),
      ordinal_(ordinal),
      max_tokens_(MaxTokens(rules.options, source_size)),
      live_(1) {}

void SentenceSearch::Advance(std::span<const float> log_probs) {
  DEEPNET_CHECK_EQ(log_probs.size(), live_.size() * rules_.forbidden.size());
  if (prefix_used_ < prefix_.size()) return Force(prefix_[prefix_used_++]);

  const bool sampling = rules_.options.sampling_temperature > 0.0;
  candidates_.clear();
  next_.clear();
  if (num_tokens_ >= max_tokens_) {
    CollectEnds(log_probs);
  } else if (sampling) {
    CollectSamples(log_probs);
  } else {
    CollectBest(log_probs);
  }
  ++num_tokens_;
  sampling ? TakeSamples() : TakeBeam();
  std::swap(live_, next_);
}

// All hypotheses share the prefix, so it can neither change their order nor their length.
void SentenceSearch::Force(int32_t token) { live_.front() = {.parent = 0, .token = token}; }

void SentenceSearch::CollectEnds(std::span<const float> log_probs) {
  const size_t vocabulary = rules_.forbidden.size();
  for (size_t row = 0; row < live_.size(); ++row) {
    const float log_prob = log_probs[row * vocabulary + SpecialId::kEnd];
    if (!(log_prob > -std::numeric_limits<float>::infinity())) continue;
    candidates_.push_back({.log_prob = live_[row].log_prob + log_prob,
                           .parent = static_cast<int>(row),
                           .token = SpecialId::kEnd,
                           .sample = live_[row].sample});
  }
}

void SentenceSearch::CollectBest(std::span<const float> log_probs) {
  const size_t vocabulary = rules_.forbidden.size();
  const size_t wanted = 2 * static_cast<size_t>(rules_.options.beam_size);
  for (size_t row = 0; row < live_.size(); ++row) {
    best_.clear();
    AppendTopK(log_probs.subspan(row * vocabulary, vocabulary), forbidden_now(),
               static_cast<int>(std::min(wanted, vocabulary)), best_);
    for (const TokenScore& token : best_) {
      candidates_.push_back({.log_prob = live_[row].log_prob + token.log_prob,
                             .parent = static_cast<int>(row),
                             .token = token.token,
                             .sample = 0});
    }
  }
}

void SentenceSearch::CollectSamples(std::span<const float> log_probs) {
  const SearchOptions& options = rules_.options;
  const size_t vocabulary = rules_.forbidden.size();
  const auto draw = [&](size_t row, int sample) {
    const std::span<const float> row_log_probs = log_probs.subspan(row * vocabulary, vocabulary);
    const int32_t token = DrawToken(row_log_probs, forbidden_now(), options.sampling_temperature,
                                    SampleUniform(options.seed, ordinal_, num_tokens_, sample));
    if (token < 0) return;
    candidates_.push_back(
        {.log_prob = live_[row].log_prob + row_log_probs[static_cast<size_t>(token)],
         .parent = static_cast<int>(row),
         .token = token,
         .sample = sample});
  };
  if (num_tokens_ == 0) {  // all samples start from the one live row
    for (int sample = 0; sample < options.nbest; ++sample) draw(0, sample);
  } else {
    for (size_t row = 0; row < live_.size(); ++row) draw(row, live_[row].sample);
  }
}

void SentenceSearch::TakeBeam() {
  const size_t beam_size = static_cast<size_t>(rules_.options.beam_size);
  const size_t num_kept = std::min(2 * beam_size, candidates_.size());
  std::partial_sort(candidates_.begin(),
                    candidates_.begin() + static_cast<std::ptrdiff_t>(num_kept), candidates_.end(),
                    [](const Candidate& a, const Candidate& b) {
                      return std::tuple(-a.log_prob, a.parent, a.token) <
                             std::tuple(-b.log_prob, b.parent, b.token);
                    });
  for (size_t rank = 0; rank < num_kept; ++rank) {
    const Candidate& candidate = candidates_[rank];
    if (candidate.token != SpecialId::kEnd) {
      if (next_.size() < beam_size) next_.push_back(Extend(candidate));
    } else if (rank < beam_size && finished_.size() < beam_size) {
      Finish(candidate);
    }
  }
  if (finished_.size() >= beam_size || CannotImprove()) next_.clear();
}

void SentenceSearch::TakeSamples() {
  for (const Candidate& candidate : candidates_) {
    if (candidate.token == SpecialId::kEnd) {
      Finish(candidate);
    } else {
      next_.push_back(Extend(candidate));
    }
  }
}

SentenceSearch::Live SentenceSearch::Extend(const Candidate& candidate) {
  const int parent_node = live_[static_cast<size_t>(candidate.parent)].node;
  nodes_.push_back({.token = candidate.token, .parent = parent_node});
  return {.parent = candidate.parent,
          .token = candidate.token,
          .node = static_cast<int>(nodes_.size()) - 1,
          .log_prob = candidate.log_prob,
          .sample = candidate.sample};
}

void SentenceSearch::Finish(const Candidate& candidate) {
  Hypothesis hypothesis{.tokens = {},
                        .log_prob = candidate.log_prob,
                        .score = Score(candidate.log_prob, num_tokens_)};
  for (int node = live_[static_cast<size_t>(candidate.parent)].node; node >= 0;
       node = nodes_[static_cast<size_t>(node)].parent) {
    hypothesis.tokens.push_back(nodes_[static_cast<size_t>(node)].token);
  }
  std::reverse(hypothesis.tokens.begin(), hypothesis.tokens.end());
  finished_.push_back({std::move(hypothesis), candidate.sample});
}

// Whether even the best live hypothesis, ending at once or at the greatest length without losing
// any probability, stays below what is already the worst of the nbest.
bool SentenceSearch::CannotImprove() const {
  const size_t nbest = static_cast<size_t>(rules_.options.nbest);
  if (next_.empty() || finished_.size() < nbest) return false;
  std::vector<double> scores;
  for (const Finished& finished : finished_) scores.push_back(finished.hypothesis.score);
  std::nth_element(scores.begin(), scores.begin() + static_cast<std::ptrdiff_t>(nbest) - 1,
                   scores.end(), std::greater<>());
  const double log_prob = next_.front().log_prob;
  const double bound = std::max(Score(log_prob, num_tokens_ + 1), Score(log_prob, max_tokens_ + 1));
  return bound < scores[nbest - 1];
}

std::vector<Hypothesis> SentenceSearch::TakeResult() {
  const bool sampling = rules_.options.sampling_temperature > 0.0;
  std::stable_sort(finished_.begin(), finished_.end(), [&](const Finished& a, const Finished& b) {
    return sampling ? a.sample < b.sample : a.hypothesis.score > b.hypothesis.score;
  });
  const size_t count = std::min(finished_.size(), static_cast<size_t>(rules_.options.nbest));
  std::vector<Hypothesis> result;
  for (size_t i = 0; i < count; ++i) result.push_back(std::move(finished_[i].hypothesis));
  return result;
}

double SentenceSearch::Score(double log_prob, int length) const {
  return log_prob / std::pow(static_cast<double>(length), rules_.options.length_penalty);
}

std::span<const uint8_t> SentenceSearch::forbidden_now() const {
  return num_tokens_ < rules_.options.min_tokens ? rules_.forbidden_or_end : rules_.forbidden;
}

}  // namespace deepnet

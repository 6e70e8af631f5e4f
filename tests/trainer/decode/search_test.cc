// Searches against their slow, obvious twins over random tables: vocabulary of 4 tokens that can be
// emitted (</s>, <unk> and two pieces), a tag that cannot, outputs of at most 4 tokens.
#include "trainer/decode/search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel/base/exit_code.h"
#include "tests/support/exhaustive_search.h"
#include "tests/support/stepped_pair_scorer.h"
#include "tests/support/table_scorer.h"

namespace deepnet {
namespace {

using ::deepnet::testing::EnumerateOutputs;
using ::deepnet::testing::ObviousBeamSearch;
using ::deepnet::testing::TableScorer;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int32_t kTag = 6;
constexpr int kNumOutputs = 1 + 3 + 9 + 27 + 81;  // of at most 4 tokens, the empty one included

SearchOptions SmallOptions() { return {.beam_size = 5, .max_tokens = 4, .forbidden = {kTag}}; }

TableScorer MakeScorer(uint64_t seed, double sharpness = 1.5) {
  return TableScorer({.vocabulary_size = 7, .seed = seed, .sharpness = sharpness});
}

// Sources that differ, so that each has its own table.
std::vector<std::vector<int32_t>> Sources(int count) {
  std::vector<std::vector<int32_t>> sources;
  for (int i = 0; i < count; ++i) {
    std::vector<int32_t>& source = sources.emplace_back(1, kTag);
    source.insert(source.end(), static_cast<size_t>(i % 5 + 1), 4);
    source.push_back(100 + i);
    source.push_back(kEos);
  }
  return sources;
}

std::vector<Hypothesis> SearchOne(TableScorer& scorer, const std::vector<int32_t>& source,
                                  const SearchOptions& options) {
  return Search(scorer, {.sources = {source}}, options).front();
}

TEST(BeamSearch, WideEnoughReturnsEveryOutputInTheEnumerationsOrder) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    for (const double length_penalty : {0.0, 0.5, 1.0, 2.0}) {
      for (const int min_tokens : {0, 1, 2}) {
        TableScorer scorer = MakeScorer(seed);
        SearchOptions options = SmallOptions();
        options.beam_size = options.nbest = kNumOutputs;
        options.length_penalty = length_penalty;
        options.min_tokens = min_tokens;
        const std::vector<int32_t> source = Sources(1).front();
        ASSERT_EQ(SearchOne(scorer, source, options), EnumerateOutputs(scorer, source, options))
            << seed << " " << length_penalty << " " << min_tokens;
      }
    }
  }
}

TEST(BeamSearch, WideEnoughFindsTheOptimumWhenOnlyTheBestIsAskedFor) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    for (const double length_penalty : {-1.0, 0.0, 1.0, 2.0}) {
      TableScorer scorer = MakeScorer(seed);
      SearchOptions options = SmallOptions();
      options.beam_size = kNumOutputs;
      options.length_penalty = length_penalty;
      const std::vector<int32_t> source = Sources(1).front();
      ASSERT_EQ(SearchOne(scorer, source, options).front(),
                EnumerateOutputs(scorer, source, options).front())
          << seed << " " << length_penalty;
    }
  }
}

TEST(BeamSearch, NarrowEqualsTheObviousTwin) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    for (int beam_size = 1; beam_size <= 6; ++beam_size) {
      for (int nbest = 1; nbest <= beam_size; nbest += 2) {
        TableScorer scorer = MakeScorer(seed);
        SearchOptions options = SmallOptions();
        options.beam_size = beam_size;
        options.nbest = nbest;
        options.max_tokens = 7;
        options.length_penalty = 0.25 * static_cast<double>(seed % 9);
        const std::vector<int32_t> source = Sources(1).front();
        ASSERT_EQ(SearchOne(scorer, source, options), ObviousBeamSearch(scorer, source, options))
            << seed << " " << beam_size << " " << nbest;
      }
    }
  }
}

TEST(BeamSearch, OfOneTakesTheMostProbableTokenAtEachStep) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    TableScorer scorer = MakeScorer(seed);
    SearchOptions options = SmallOptions();
    options.beam_size = 1;
    const std::vector<int32_t> source = Sources(1).front();
    const std::vector<int32_t> found = SearchOne(scorer, source, options).front().tokens;

    std::vector<int32_t> history = {kEos};
    std::vector<int32_t> expected;
    while (expected.size() < 4) {
      const std::vector<float> log_probs = scorer.LogProbs(source, history);
      int32_t best = kUnk;
      for (const int32_t token : {4, 5, kEos}) {
        const bool allowed = token != kEos || !expected.empty();
        if (allowed && log_probs[static_cast<size_t>(token)] > log_probs[static_cast<size_t>(best)])
          best = token;
      }
      if (best == kEos) break;
      expected.push_back(best);
      history.push_back(best);
    }
    ASSERT_EQ(found, expected) << seed;
  }
}

TEST(BeamSearch, GivesEachSentenceTheSameBitsAloneAndInABatch) {
  const std::vector<std::vector<int32_t>> sources = Sources(60);
  for (const int beam_size : {1, 4}) {
    TableScorer scorer = MakeScorer(3);
    SearchOptions options = SmallOptions();
    options.beam_size = options.nbest = beam_size;
    options.max_tokens = 12;
    const auto together = Search(scorer, {.sources = sources}, options);
    for (size_t i = 0; i < sources.size(); ++i) {
      ASSERT_EQ(together[i], SearchOne(scorer, sources[i], options)) << i;
    }
  }
}

TEST(BeamSearch, FinishedSentencesLeaveTheBatch) {
  TableScorer scorer = MakeScorer(3);
  SearchOptions options = SmallOptions();
  options.beam_size = 1;
  options.max_tokens = 12;
  Search(scorer, {.sources = Sources(60)}, options);
  const std::vector<int>& rows = scorer.rows_per_step();
  EXPECT_EQ(rows.front(), 60);
  EXPECT_LT(rows.back(), 10);
  EXPECT_TRUE(std::is_sorted(rows.rbegin(), rows.rend()));
}

TEST(BeamSearch, NeverEmitsForbiddenTokensHoweverLikely) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    TableScorer scorer({.vocabulary_size = 8, .seed = seed, .likely = {kBos, kPad, kTag, 7}});
    for (const double temperature : {0.0, 1.0}) {
      SearchOptions options = SmallOptions();
      options.nbest = 5;
      options.forbidden = {kTag, 7};
      options.sampling_temperature = temperature;
      for (const Hypothesis& hypothesis : SearchOne(scorer, Sources(1).front(), options)) {
        for (const int32_t token : hypothesis.tokens) {
          EXPECT_TRUE(token >= kUnk && token < kTag) << token;
        }
      }
    }
  }
}

TEST(BeamSearch, ScoresAreLogProbabilitiesOverLengthWithTheEnd) {
  TableScorer scorer = MakeScorer(11);
  SearchOptions options = SmallOptions();
  options.nbest = 5;
  options.length_penalty = 0.7;
  const std::vector<int32_t> source = Sources(1).front();
  for (const Hypothesis& hypothesis : SearchOne(scorer, source, options)) {
    std::vector<int32_t> history = {kEos};
    double log_prob = 0.0;
    std::vector<int32_t> tokens = hypothesis.tokens;
    tokens.push_back(kEos);
    for (const int32_t token : tokens) {
      log_prob += scorer.LogProbs(source, history)[static_cast<size_t>(token)];
      history.push_back(token);
    }
    EXPECT_DOUBLE_EQ(hypothesis.log_prob, log_prob);
    EXPECT_DOUBLE_EQ(hypothesis.score, log_prob / std::pow(tokens.size(), 0.7));
  }
}

TEST(BeamSearch, TagsAreFedButNeitherReturnedNorScored) {
  TableScorer scorer = MakeScorer(5);
  SearchOptions options = SmallOptions();
  const std::vector<int32_t> source = Sources(1).front();
  const std::vector<int32_t> tags = {kTag, 5};
  const Hypothesis found =
      Search(scorer, {.sources = {source}, .tags = {tags}}, options).front().front();

  std::vector<int32_t> history = {kEos, kTag, 5};
  double log_prob = 0.0;
  std::vector<int32_t> tokens = found.tokens;
  tokens.push_back(kEos);
  for (const int32_t token : tokens) {
    log_prob += scorer.LogProbs(source, history)[static_cast<size_t>(token)];
    history.push_back(token);
  }
  EXPECT_DOUBLE_EQ(found.log_prob, log_prob);
}

TEST(BeamSearch, WideEnoughReturnsEveryOutputThatBeginsWithThePrefix) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    for (const std::vector<int32_t>& prefix :
         std::vector<std::vector<int32_t>>{{}, {5}, {kUnk, 4}, {4, 4, 4, 4}}) {
      TableScorer scorer = MakeScorer(seed);
      SearchOptions options = SmallOptions();
      options.beam_size = options.nbest = kNumOutputs;
      const std::vector<int32_t> source = Sources(1).front();
      std::vector<Hypothesis> expected = EnumerateOutputs(scorer, source, options);
      std::erase_if(expected, [&](const Hypothesis& hypothesis) {
        const auto& tokens = hypothesis.tokens;
        return tokens.size() < prefix.size() ||
               !std::equal(prefix.begin(), prefix.end(), tokens.begin());
      });
      const SearchBatch batch{.sources = {source}, .prefixes = {prefix}};
      ASSERT_EQ(Search(scorer, batch, options).front(), expected) << seed << " " << prefix.size();
    }
  }
}

TEST(BeamSearch, ScoresAnOutputWithItsPrefixAsAPairScorerDoes) {
  TableScorer scorer = MakeScorer(5);
  SearchOptions options = SmallOptions();
  options.nbest = 5;
  options.max_ratio = 0.001;  // at most 10 tokens
  options.max_tokens = 20;
  const std::vector<int32_t> source = Sources(1).front(), prefix(12, 4);
  for (const double temperature : {0.0, 1.0}) {
    options.sampling_temperature = temperature;
    const SearchBatch batch{.sources = {source}, .tags = {{kTag}}, .prefixes = {prefix}};
    const std::vector<Hypothesis> outputs = Search(scorer, batch, options).front();
    ASSERT_EQ(outputs.size(), temperature > 0.0 ? 5u : 1u);
    for (const Hypothesis& found : outputs) {
      EXPECT_EQ(found.tokens, prefix);  // it is the longest that is allowed
      EncodedPair pair{.source = source, .labels = {kTag}};
      pair.labels.insert(pair.labels.end(), found.tokens.begin(), found.tokens.end());
      pair.labels.push_back(kEos);
      testing::SteppedPairScorer pairs(scorer);
      const std::vector<int32_t> start = {kEos};
      const double of_tag = scorer.LogProbs(source, start)[kTag];
      EXPECT_NEAR(found.log_prob, pairs.LogProbabilities({&pair, 1}).front() - of_tag, 1e-12);
    }
  }
}

// What may follow a prefix does not depend on who wrote it.
TEST(Sampling, GoesOnBehindAPrefixOfItsOwnAsBefore) {
  TableScorer scorer = MakeScorer(5);
  SearchOptions options{.max_tokens = 30, .nbest = 4, .sampling_temperature = 1.0, .seed = 3};
  const std::vector<int32_t> source = Sources(1).front();
  const std::vector<Hypothesis> samples = SearchOne(scorer, source, options);
  for (size_t i = 0; i < samples.size(); ++i) {
    for (size_t size = 0; size <= samples[i].tokens.size(); ++size) {
      const std::vector<int32_t> prefix(samples[i].tokens.begin(),
                                        samples[i].tokens.begin() + static_cast<int>(size));
      const SearchBatch batch{.sources = {source}, .prefixes = {prefix}};
      EXPECT_EQ(Search(scorer, batch, options).front()[i], samples[i]) << i << " " << size;
    }
  }
}

TEST(BeamSearch, SentencesOfOneBatchMayHaveTagsAndPrefixesOfDifferentLengths) {
  TableScorer scorer = MakeScorer(5);
  const std::vector<std::vector<int32_t>> sources = Sources(3);
  const std::vector<std::vector<int32_t>> tags = {{kTag}, {}, {kTag, 4, 4}},
                                          prefixes = {{4, 5}, {5}, {}};
  const auto together =
      Search(scorer, {.sources = sources, .tags = tags, .prefixes = prefixes}, SmallOptions());
  for (size_t i = 0; i < sources.size(); ++i) {
    const auto alone =
        Search(scorer, {.sources = {sources[i]}, .tags = {tags[i]}, .prefixes = {prefixes[i]}},
               SmallOptions());
    EXPECT_EQ(together[i], alone.front()) << i;
  }
}

TEST(BeamSearch, OutputIsNoLongerThanRatioOfTheSourcePlusTen) {
  TableScorer scorer({.vocabulary_size = 7, .seed = 2, .sharpness = 0.1, .likely = {4, 5}});
  SearchOptions options = SmallOptions();
  options.beam_size = 1;
  options.max_tokens = 100;
  options.max_ratio = 0.5;
  const std::vector<int32_t> source(8, 4);
  EXPECT_EQ(SearchOne(scorer, source, options).front().tokens.size(), 14u);
  options.max_tokens = 9;
  EXPECT_EQ(SearchOne(scorer, source, options).front().tokens.size(), 9u);
}

// All distributions uniform: every order is decided by ties.
TEST(BeamSearch, BreaksTiesByTheSmallerId) {
  TableScorer scorer = MakeScorer(1, /*sharpness=*/0.0);
  SearchOptions options = SmallOptions();
  options.beam_size = 2;
  options.nbest = 2;
  options.min_tokens = 2;
  const std::vector<Hypothesis> found = SearchOne(scorer, Sources(1).front(), options);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_THAT(found[0].tokens, ElementsAre(3, 3));
  EXPECT_EQ(found, ObviousBeamSearch(scorer, Sources(1).front(), options));
}

TEST(BeamSearch, StopsAsSoonAsNothingAliveCanEnterTheNBest) {
  SearchOptions options = SmallOptions();
  options.beam_size = 5;
  options.length_penalty = 0.0;  // a live hypothesis can only lose
  options.max_tokens = 100;
  TableScorer scorer({.vocabulary_size = 7, .seed = 4, .likely = {kEos}});
  SearchOne(scorer, Sources(1).front(), options);
  const size_t steps_for_one = scorer.rows_per_step().size();
  options.nbest = 5;
  SearchOne(scorer, Sources(1).front(), options);
  EXPECT_LT(steps_for_one, scorer.rows_per_step().size() - steps_for_one);
}

// Log-probabilities that depend on the number of tokens fed alone: of </s>, and of a piece.
class ScriptedScorer : public testing::HostScorer {
 public:
  static constexpr int32_t kPiece = 4;
  struct Line {
    float end, piece;
  };

  explicit ScriptedScorer(std::vector<Line> script) : script_(std::move(script)) {}

  int64_t vocabulary_size() const override { return 7; }
  std::unique_ptr<DecoderState> Start(std::span<const std::vector<int32_t>> sources) override {
    return std::make_unique<State>(static_cast<int>(sources.size()));
  }
  void Reorder(DecoderState& state, std::span<const int32_t> parents) override {
    static_cast<State&>(state).rows = static_cast<int>(parents.size());
  }
  void StepRows(DecoderState& state, std::span<const int32_t>, float* log_probs) override {
    std::fill_n(log_probs, state.num_rows() * 7, -std::numeric_limits<float>::infinity());
    for (int row = 0; row < state.num_rows(); ++row) {
      log_probs[row * 7 + kEos] = script_.at(num_steps_).end;
      log_probs[row * 7 + kPiece] = script_.at(num_steps_).piece;
    }
    ++num_steps_;
  }

  size_t num_steps() const { return num_steps_; }

 private:
  struct State : public DecoderState {
    explicit State(int rows) : rows(rows) {}
    int num_rows() const override { return rows; }
    int rows;
  };

  const std::vector<Line> script_;
  size_t num_steps_ = 0;
};

constexpr float kNever = -std::numeric_limits<float>::infinity();

// The stop's bound is the better of two: the live hypothesis ends at once, or at the greatest
// length. With a positive length penalty the latter counts, with a negative one the former.
TEST(BeamSearch, GoesOnWhileTheGreatestLengthCouldStillWin) {
  const SearchOptions options{
      .beam_size = 2, .length_penalty = 1.0, .min_tokens = 0, .max_tokens = 4};
  // </s> at once scores -0.45. The piece ending next would score -2 / 2, after four -2 / 5.
  ScriptedScorer wins(
      {{-0.45f, -2.0f}, {kNever, 0.0f}, {kNever, 0.0f}, {kNever, 0.0f}, {0.0f, 0.0f}});
  const Hypothesis best = Search(wins, {.sources = {{5}}}, options).front().front();
  EXPECT_EQ(best.tokens, std::vector<int32_t>(4, ScriptedScorer::kPiece));
  EXPECT_DOUBLE_EQ(best.score, -2.0 / 5);

  ScriptedScorer loses({{-0.7f, -4.0f}});  // -4 / 5 at best: no second step
  EXPECT_TRUE(Search(loses, {.sources = {{5}}}, options).front().front().tokens.empty());
  EXPECT_EQ(loses.num_steps(), 1u);
}

TEST(BeamSearch, GoesOnWhileEndingAtOnceCouldStillWin) {
  const SearchOptions options{
      .beam_size = 2, .length_penalty = -1.0, .min_tokens = 0, .max_tokens = 4};
  // </s> at once scores -0.6. The piece ending next scores -0.25 * 2, after two -0.25 * 3.
  ScriptedScorer wins({{-0.6f, -0.25f}, {0.0f, kNever}});
  const Hypothesis best = Search(wins, {.sources = {{5}}}, options).front().front();
  EXPECT_EQ(best.tokens, std::vector<int32_t>{ScriptedScorer::kPiece});
  EXPECT_DOUBLE_EQ(best.score, -0.25 * 2);

  ScriptedScorer loses({{-1.0f, -0.75f}});  // -0.75 * 2 at best: no second step
  EXPECT_TRUE(Search(loses, {.sources = {{5}}}, options).front().front().tokens.empty());
  EXPECT_EQ(loses.num_steps(), 1u);
}

// Every log-probability is not a number, as after a diverged training.
class NanScorer : public TableScorer {
 public:
  NanScorer() : TableScorer({.vocabulary_size = 7}) {}
  void StepRows(DecoderState& state, std::span<const int32_t> tokens, float* log_probs) override {
    TableScorer::StepRows(state, tokens, log_probs);
    std::fill_n(log_probs, tokens.size() * 7, std::numeric_limits<float>::quiet_NaN());
  }
};

TEST(BeamSearch, ReturnsNothingWhereTheModelSaysNothing) {
  NanScorer scorer;
  for (const double temperature : {0.0, 1.0}) {
    SearchOptions options = SmallOptions();
    options.sampling_temperature = temperature;
    EXPECT_TRUE(SearchOne(scorer, Sources(1).front(), options).empty());
  }
}

TEST(BeamSearch, OfNothingIsNothing) {
  TableScorer scorer = MakeScorer(1);
  EXPECT_TRUE(Search(scorer, {}, SmallOptions()).empty());
}

TEST(MakeSearchOptions, ListsEveryFieldOutOfRange) {
  DecodeSpec spec;
  spec.set_beam_size(0);
  spec.set_nbest(3);
  spec.set_max_tokens(200);
  spec.set_max_ratio(-1.0);
  spec.set_sampling_top_k(-1);
  spec.set_sampling_top_p(1.5);
  spec.set_sampling_epsilon(1.0);
  const absl::Status status = MakeSearchOptions(spec, {}).status();
  EXPECT_EQ(GetExitCode(status), ExitCode::kBadConfig);
  const std::string message(status.message());
  EXPECT_THAT(message, HasSubstr("decode.beam_size: 0"));
  EXPECT_THAT(message, HasSubstr("decode.nbest: 3"));
  EXPECT_THAT(message, HasSubstr("decode.max_ratio: -1"));
  EXPECT_THAT(message, HasSubstr("decode.sampling_top_k: -1"));
  EXPECT_THAT(message, HasSubstr("decode.sampling_top_p: 1.5"));
  EXPECT_THAT(message, HasSubstr("decode.sampling_epsilon: 1"));
}

TEST(MakeSearchOptions, TakesFieldsAsTheyAre) {
  DecodeSpec spec;
  spec.set_beam_size(4);
  spec.set_nbest(2);
  spec.set_max_tokens(50);
  spec.set_max_ratio(1.5);
  spec.set_length_penalty(0.6);
  spec.set_sampling_temperature(0.7);
  spec.set_sampling_seed(9);
  spec.set_sampling_top_k(40);
  spec.set_sampling_top_p(0.9);
  spec.set_sampling_epsilon(0.01);
  const std::vector<int32_t> tags = {kTag};
  const auto options = MakeSearchOptions(spec, tags);
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(*options, (SearchOptions{.beam_size = 4,
                                     .length_penalty = 0.6,
                                     .max_tokens = 50,
                                     .max_ratio = 1.5,
                                     .nbest = 2,
                                     .sampling_temperature = 0.7,
                                     .sampling_cuts = {40, 0.9, 0.01},
                                     .seed = 9,
                                     .forbidden = tags}));
}

}  // namespace
}  // namespace deepnet

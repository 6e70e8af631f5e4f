#include "trainer/eval/evaluator.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace deepnet {
namespace {

TEST(EvaluateShare, RangesFollowEachOtherAndDifferByAtMostOne) {
  for (const int parts : {1, 2, 3, 7}) {
    for (const size_t sentences : {0u, 1u, 2u, 6u, 200u}) {
      size_t end = 0;
      for (int part = 0; part < parts; ++part) {
        const SentenceRange range = RangeOf({.part = part, .num_parts = parts}, sentences);
        EXPECT_EQ(range.first, end);
        EXPECT_LE(range.end - range.first, sentences / parts + 1);
        EXPECT_GE(range.end - range.first, sentences / parts);
        end = range.end;
      }
      EXPECT_EQ(end, sentences);
    }
  }
}

SentenceScores Scores(const std::vector<std::string>& hypotheses,
                      const std::vector<double>& log_probabilities, int64_t num_tokens) {
  SentenceScores scores;
  scores.mutable_hypotheses()->Assign(hypotheses.begin(), hypotheses.end());
  scores.mutable_log_probabilities()->Assign(log_probabilities.begin(), log_probabilities.end());
  scores.set_num_tokens(num_tokens);
  return scores;
}

// Gathers in the calls of three parts, one after the other: what each sends, then what all get.
TEST(EvaluateShare, PartsComeTogetherInOrderEmptyOnesAndEmptyLinesIncluded) {
  const std::vector<SentenceScores> parts = {
      Scores({"", "a b"}, {-1.5, 0.1}, 5), {}, Scores({"c\xff", ""}, {-1e-300}, 2)};
  std::vector<std::string> sent;
  for (const SentenceScores& part : parts) {
    const EvaluateShare sends{
        .num_parts = 3, .gather = [&](const absl::StatusOr<std::string>& mine) {
          sent.push_back(*mine);
          return absl::StatusOr<std::vector<std::string>>(std::vector<std::string>{*mine});
        }};
    EXPECT_EQ(Gather(sends, part)->SerializeAsString(), part.SerializeAsString());
  }
  const EvaluateShare gets{.num_parts = 3, .gather = [&](const absl::StatusOr<std::string>&) {
                             return absl::StatusOr<std::vector<std::string>>(sent);
                           }};
  EXPECT_EQ(Gather(gets, parts[0])->SerializeAsString(),
            Scores({"", "a b", "c\xff", ""}, {-1.5, 0.1, -1e-300}, 7).SerializeAsString());
}

TEST(SampleSentences, AreSpreadOverDirectionsAndOverTheSentencesOfEach) {
  for (const int samples : {0, 1, 2, 3, 5, 12}) {
    for (const size_t directions : {1u, 2u, 4u, 5u, 100u}) {
      size_t total = 0;
      for (size_t i = 0; i < directions; ++i) {
        const std::vector<size_t> lines = SampleSentences(samples, i, directions, 50);
        EXPECT_LE(lines.size(), samples / directions + 1);
        EXPECT_GE(lines.size(), samples / directions);
        total += lines.size();
      }
      EXPECT_EQ(total, static_cast<size_t>(samples));
    }
  }
  EXPECT_EQ(SampleSentences(4, 0, 1, 200), (std::vector<size_t>{0, 50, 100, 150}));
  EXPECT_EQ(SampleSentences(4, 0, 1, 2), (std::vector<size_t>{0, 1}));  // no more than there are
  EXPECT_EQ(SampleSentences(3, 34, 100, 0), std::vector<size_t>{});
}

TEST(EvaluateShare, AloneNothingIsGathered) {
  const SentenceScores mine = Scores({"x"}, {-2}, 1);
  EXPECT_EQ(Gather({}, mine)->SerializeAsString(), mine.SerializeAsString());
}

}  // namespace
}  // namespace deepnet

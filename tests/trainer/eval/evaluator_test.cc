#include "trainer/eval/evaluator.h"

#include <functional>
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

// Gathers in the calls of three parts, one after the other: what each sends, then what all get.
TEST(EvaluateShare, PartsComeTogetherInOrderEmptyOnesAndEmptyLinesIncluded) {
  const std::vector<SentenceScores> parts = {
      {.hypotheses = {"", "a b"}, .log_probabilities = {-1.5, 0.1}, .num_tokens = 5},
      {},
      {.hypotheses = {"c", ""}, .log_probabilities = {-1e-300}, .num_tokens = 2}};
  std::vector<std::string> sent;
  for (const SentenceScores& part : parts) {
    const EvaluateShare sends{
        .num_parts = 3, .gather = [&](const absl::StatusOr<std::string>& mine) {
          sent.push_back(*mine);
          return absl::StatusOr<std::vector<std::string>>(std::vector<std::string>{*mine});
        }};
    EXPECT_EQ(*Gather(sends, part), part);
  }
  const EvaluateShare gets{.num_parts = 3, .gather = [&](const absl::StatusOr<std::string>&) {
                             return absl::StatusOr<std::vector<std::string>>(sent);
                           }};
  EXPECT_EQ(*Gather(gets, parts[0]), (SentenceScores{.hypotheses = {"", "a b", "c", ""},
                                                     .log_probabilities = {-1.5, 0.1, -1e-300},
                                                     .num_tokens = 7}));
}

TEST(EvaluateShare, AloneNothingIsGathered) {
  const SentenceScores mine{.hypotheses = {"x"}, .log_probabilities = {-2}, .num_tokens = 1};
  EXPECT_EQ(*Gather({}, mine), mine);
}

}  // namespace
}  // namespace deepnet

#include "trainer/data/data_order.h"

#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include "tests/trainer/data/synthetic_index.h"

namespace deepnet {
namespace {

using ::testing::HasSubstr;
using testing::SyntheticIndex;

DataSpec SpecOf(const std::string& text) {
  DataSpec spec;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &spec));
  return spec;
}

DataOrder MakeOrder(const std::string& text, const PairIndex& index, uint64_t seed = 1) {
  absl::StatusOr<DataOrder> order = DataOrder::Make(SpecOf(text), seed, &index);
  EXPECT_TRUE(order.ok()) << order.status();
  return *std::move(order);
}

absl::Status Mistake(const std::string& text, const PairIndex& index) {
  DataSpec spec = SpecOf(text);
  return ResolveDataSpec(index, &spec);
}

using PairKey = std::pair<int, int64_t>;  // direction, pair

// Counts how often each pair is shown in windows [begin, end).
std::map<PairKey, int> TimesShown(const DataOrder& order, int64_t begin, int64_t end) {
  std::map<PairKey, int> times;
  for (int64_t w = begin; w < end; ++w) {
    for (const auto& microbatch : order.MakeWindow(w)) {
      for (const PairRef& pair : microbatch) ++times[{pair.direction, pair.pair}];
    }
  }
  return times;
}

// Share of real positions, {source, target}.
std::pair<double, double> Fill(const DataOrder& order, int64_t num_windows) {
  double source = 0, target = 0, count = 0;
  for (int64_t w = 0; w < num_windows; ++w) {
    for (const auto& microbatch : order.MakeWindow(w)) {
      count += 1;
      for (const PairRef& pair : microbatch) {
        source += pair.size.source;
        target += pair.size.target;
      }
    }
  }
  return {source / count / order.capacity().source, target / count / order.capacity().target};
}

TEST(DataOrder, ShowsEachPairExactlyOncePerEpochAtTemperatureOne) {
  const SyntheticIndex index({50'000, 3'000, 200, 1});
  const DataOrder order = MakeOrder("microbatch { max_target_tokens: 1000 }", index);
  // All windows that touch the first two epochs of some direction, and those before.
  int64_t windows = 0;
  const auto epochs_done = [&](int64_t w, int64_t epochs) {
    for (int i = 0; i < 8; ++i) {
      if (order.NumDrawn(i, w) < epochs * index.directions()[i].num_pairs) return false;
    }
    return true;
  };
  while (!epochs_done(windows, 2)) ++windows;
  std::map<PairKey, int> expected;
  for (int i = 0; i < 8; ++i) {
    const int64_t n = index.directions()[i].num_pairs;
    const int64_t drawn = order.NumDrawn(i, windows);
    EXPECT_NEAR(static_cast<double>(drawn) / static_cast<double>(n), 2.0, 0.25 + 2.0 / n);
    for (int64_t pair = 0; pair < n; ++pair) expected[{i, pair}] = static_cast<int>(drawn / n);
  }
  int64_t beyond = 0;  // of the epoch that has just begun
  for (const auto& [pair, times] : TimesShown(order, 0, windows)) {
    ASSERT_GE(times, expected[pair]) << pair.first << " " << pair.second;
    beyond += times - expected[pair];
    expected.erase(pair);
  }
  EXPECT_TRUE(expected.empty()) << expected.size() << " pairs were never shown";
  EXPECT_LT(beyond, order.pairs_per_window());
}

TEST(DataOrder, IsAFunctionOfSeedAndWindow) {
  const SyntheticIndex index({5'000, 300});
  const std::string spec = "microbatch { max_target_tokens: 600 } temperature { temperature: 5 }";
  const DataOrder order = MakeOrder(spec, index);
  const DataOrder again = MakeOrder(spec, index);
  const DataOrder other = MakeOrder(spec, index, /*seed=*/2);
  const auto late = order.MakeWindow(7);  // asked out of order
  for (int64_t w = 0; w < 7; ++w) {
    EXPECT_EQ(order.MakeWindow(w), again.MakeWindow(w));
  }
  EXPECT_EQ(again.MakeWindow(7), late);
  EXPECT_NE(other.MakeWindow(7), late);
}

TEST(DataOrder, FillsAtLeast95PercentOfThePositionsOnBothSides) {
  const SyntheticIndex index({100'000'000, 1'000'000, 10'000, 300});
  for (const char* spec :
       {"microbatch { max_target_tokens: 500 }",
        "microbatch { max_target_tokens: 2000 } temperature { temperature: 5 }",
        "microbatch { max_target_tokens: 4096 } global_microbatches: 16 tags: M2M",
        "microbatch { max_target_tokens: 600 } directions: 'en-ab'"}) {
    const DataOrder order = MakeOrder(spec, index);
    const auto [source, target] = Fill(order, 10);
    EXPECT_GE(source, 0.95) << spec;
    EXPECT_GE(target, 0.95) << spec;
  }
}

TEST(DataOrder, WithoutTagsAllDirectionsHaveOneTarget) {
  const SyntheticIndex index({1000, 1000});
  DataSpec spec;
  spec.mutable_microbatch()->set_max_target_tokens(500);
  spec.set_tags(NO_TAGS);
  EXPECT_THAT(ResolveDataSpec(index, &spec).message(), HasSubstr("data.tags: NO_TAGS"));
  DataSpec of_encoder = spec;
  EXPECT_TRUE(ResolveDataSpec(index, &of_encoder, ENCODER_ONLY).ok());
  spec.add_directions(index.directions()[0].Name());
  EXPECT_TRUE(ResolveDataSpec(index, &spec).ok());
  EXPECT_EQ(SizeOf({5, 7}, NO_TAGS).source, 6);
  EXPECT_EQ(SizeOf({5, 7}, NO_TAGS).target, 8);
}

TEST(DataOrder, CarriesLeftoversToTheNextWindowAndLosesNone) {
  const SyntheticIndex index({1'000'000});
  for (const char* spec :
       {"microbatch { max_target_tokens: 260 }", "microbatch { max_target_tokens: 2000 }"}) {
    const DataOrder order = MakeOrder(spec, index);
    const int64_t windows = 12;
    std::map<PairKey, int> shown;  // draws, by direction
    for (int64_t w = 0; w <= windows; ++w) {
      for (const auto& microbatch : order.MakeWindow(w)) {
        for (const PairRef& pair : microbatch) ++shown[{pair.direction, pair.draw}];
      }
    }
    for (const int direction : {0, 1}) {
      const int64_t drawn = order.NumDrawn(direction, windows);
      for (int64_t n = 0; n < drawn; ++n) ASSERT_EQ(shown[std::pair(direction, n)], 1) << n;
    }
  }
}

TEST(DataOrder, KeepsItsCapacityAndItsNumberOfMicrobatches) {
  const SyntheticIndex index({70'000, 9'000});
  const DataOrder order = MakeOrder(
      "microbatch { max_target_tokens: 900 max_source_tokens: 800 max_sentences: 20 } "
      "global_microbatches: 3",
      index);
  for (int64_t w = 0; w < 5; ++w) {
    const DataOrder::Window window = order.MakeWindow(w);
    ASSERT_EQ(static_cast<int64_t>(window.size()), order.steps_per_window() * 3);
    for (const auto& microbatch : window) {
      int source = 0, target = 0;
      for (const PairRef& pair : microbatch) {
        source += pair.size.source;
        target += pair.size.target;
      }
      EXPECT_LE(source, 800);
      EXPECT_LE(target, 900);
      EXPECT_LE(microbatch.size(), 20u);
      EXPECT_GE(microbatch.size(), 1u);
    }
  }
}

TEST(DataOrder, LeavesLongPairsOut) {
  const SyntheticIndex index({20'000});
  const DataOrder order =
      MakeOrder("microbatch { max_target_tokens: 500 } max_sentence_tokens: 40", index);
  std::map<PairKey, int> shown;  // draws, by direction
  for (int64_t w = 0; w < 3; ++w) {
    for (const auto& microbatch : order.MakeWindow(w)) {
      for (const PairRef& pair : microbatch) {
        EXPECT_LE(pair.size.source, 42);
        EXPECT_LE(pair.size.target, 41);
        EXPECT_EQ(++shown[std::pair(pair.direction, pair.draw)], 1);
      }
    }
  }
  int64_t skipped = 0;  // of what the third window has shown at the latest
  for (int64_t n = 0; n < order.NumDrawn(0, 2); ++n) skipped += 1 - shown[std::pair(0, n)];
  EXPECT_GT(skipped, 0);
  const auto [source, target] = Fill(order, 3);
  EXPECT_GE(source, 0.95);
  EXPECT_GE(target, 0.95);
}

TEST(DataOrder, FollowsTheTemperature) {
  const SyntheticIndex index({90'000, 10'000});
  const auto share_of_small = [&](const std::string& temperature, int64_t window) {
    const DataOrder order =
        MakeOrder("microbatch { max_target_tokens: 600 } " + temperature, index);
    double small = 0, all = 0;
    for (const auto& microbatch : order.MakeWindow(window)) {
      for (const PairRef& pair : microbatch) {
        const Direction& direction = index.directions()[pair.direction];
        small += direction.num_pairs == 10'000 ? 1 : 0;
        all += 1;
      }
    }
    return small / all;
  };
  EXPECT_NEAR(share_of_small("", 3), 0.1, 0.002);
  EXPECT_NEAR(share_of_small("temperature { temperature: 1000000 }", 3), 0.5, 0.002);
  const std::string rising =
      "temperature { temperature: 1 } temperature { from_step: 2000 temperature: 1000000 }";
  EXPECT_NEAR(share_of_small(rising, 0), 0.1, 0.002);
  EXPECT_NEAR(share_of_small(rising, 50), 0.5, 0.002);
}

TEST(DataOrder, FollowsTheWeightsOfDirections) {
  const SyntheticIndex index({30'000, 10'000});  // aa-en, ab-en, en-aa, en-ab
  const auto shares = [&](const std::string& weights) {
    const DataOrder order = MakeOrder("microbatch { max_target_tokens: 600 } " + weights, index);
    std::vector<double> of_direction(4, 0.0);
    double all = 0;
    for (const auto& microbatch : order.MakeWindow(3)) {
      for (const PairRef& pair : microbatch) ++of_direction[pair.direction], ++all;
    }
    for (double& share : of_direction) share /= all;
    return of_direction;
  };
  const auto near = [](const std::vector<double>& expected) {
    return ::testing::Pointwise(::testing::DoubleNear(0.002), expected);
  };
  EXPECT_THAT(shares(""), near({0.375, 0.125, 0.375, 0.125}));
  EXPECT_THAT(shares("weights { direction: 'en-*' weight: 3 }"),
              near({3.0 / 16, 1.0 / 16, 9.0 / 16, 3.0 / 16}));
  EXPECT_THAT(shares("weights { direction: '*-*' weight: 3 } "
                     "weights { direction: 'ab-en' weight: 6 }"),
              near({0.375 / 1.125, 0.25 / 1.125, 0.375 / 1.125, 0.125 / 1.125}));
  EXPECT_THAT(shares("directions: '*-en' weights { direction: 'aa-en' weight: 0.5 }"),
              near({0.6, 0.4, 0, 0}));
}

TEST(Direction, MatchesItsNameAndStarsForLanguages) {
  const Direction real = {"de", "en"}, synthetic = {"de", "en", 0, "bt"};
  for (const char* pattern : {"de-en", "*-en", "de-*", "*-*"}) {
    EXPECT_TRUE(real.Matches(pattern)) << pattern;
    EXPECT_FALSE(synthetic.Matches(pattern)) << pattern;
    EXPECT_TRUE(synthetic.Matches(std::string(pattern) + ".bt")) << pattern;
  }
  for (const char* pattern : {"en-de", "*-de", "d*-en", "*", "", "de-en.bt"}) {
    EXPECT_FALSE(real.Matches(pattern)) << pattern;
  }
}

TEST(ResolveDataSpec, FillsInWhatWasLeftOpen) {
  const SyntheticIndex index({90'000});
  DataSpec spec = SpecOf("microbatch { max_target_tokens: 1000 }");
  ASSERT_TRUE(ResolveDataSpec(index, &spec).ok());
  EXPECT_EQ(spec.max_sentence_tokens(), 250);
  EXPECT_EQ(spec.global_microbatches(), 1);
  EXPECT_EQ(spec.microbatch().max_sentences(), 250);
  EXPECT_NEAR(spec.microbatch().max_source_tokens(), 1030, 30);
  DataSpec again = spec;
  ASSERT_TRUE(ResolveDataSpec(index, &again).ok());
  EXPECT_EQ(again.DebugString(), spec.DebugString());
}

// English is the shorter side. A direction that is hardly drawn does not count.
TEST(ResolveDataSpec, TheSourceIsAsLongAsThatOfTheDirectionsThatAreDrawn) {
  const SyntheticIndex index({90'000});
  const auto source_tokens = [&](const std::string& text) {
    DataSpec spec = SpecOf("microbatch { max_target_tokens: 1000 } " + text);
    EXPECT_TRUE(ResolveDataSpec(index, &spec).ok());
    return spec.microbatch().max_source_tokens();
  };
  for (const std::string drawn : {"aa-en", "en-aa"}) {
    const std::string other = drawn == "aa-en" ? "en-aa" : "aa-en";
    EXPECT_EQ(source_tokens("weights { direction: '" + other + "' weight: 1e-9 }"),
              source_tokens("directions: '" + drawn + "'"));
  }
  EXPECT_GT(source_tokens("directions: 'aa-en'"), source_tokens("directions: 'en-aa'") + 50);
}

TEST(ResolveDataSpec, NamesTheFieldOfAMistake) {
  const SyntheticIndex index({900, 0});
  const auto message = [&](const std::string& text) {
    return std::string(Mistake(text, index).message());
  };
  EXPECT_THAT(message("microbatch { max_target_tokens: 200 }"),
              HasSubstr("data.microbatch.max_target_tokens: 200"));
  EXPECT_THAT(message("microbatch { max_target_tokens: 300 max_source_tokens: 100 }"),
              HasSubstr("data.microbatch.max_source_tokens: 100"));
  EXPECT_THAT(message("microbatch { max_target_tokens: 300 } directions: 'de-en'"),
              HasSubstr("data.directions: no training pairs of \"de-en\"; the corpus has aa-en"));
  EXPECT_THAT(message("microbatch { max_target_tokens: 300 } directions: 'ab-en'"),
              HasSubstr("data.directions"));
  const SyntheticIndex many(std::vector<int64_t>(30, 5));
  EXPECT_THAT(std::string(Mistake("directions: 'zz-en'", many).message()),
              HasSubstr(" and 20 more directions"));
  EXPECT_THAT(message("microbatch { max_target_tokens: 300 } "
                      "weights { direction: '*-en.bt' weight: 2 }"),
              HasSubstr("data.weights: no training pairs of \"*-en.bt\""));
  EXPECT_THAT(message("microbatch { max_target_tokens: 300 } temperature { from_step: 5 "
                      "temperature: 2 }"),
              HasSubstr("data.temperature[0].from_step"));
  EXPECT_THAT(message("microbatch { max_target_tokens: 300 } temperature { temperature: 0.5 }"),
              HasSubstr("data.temperature[0].temperature"));
}

}  // namespace
}  // namespace deepnet

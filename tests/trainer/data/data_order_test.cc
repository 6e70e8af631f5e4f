#include "trainer/data/data_order.h"

#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include "parallel/base/philox.h"
#include "tests/trainer/data/synthetic_index.h"
#include "trainer/data/content_hash.h"
#include "trainer/data/sampling.h"

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

// Runs on disk depend on these values: they must never change.
TEST(DataOrder, IsFrozen) {
  const SyntheticIndex index({200'000, 9'000, 300, 0, 40});
  const auto facts = [&](const std::string& text, Architecture architecture = ENCODER_DECODER) {
    const auto order = DataOrder::Make(SpecOf(text), 7, &index, architecture);
    EXPECT_TRUE(order.ok()) << order.status();
    uint64_t hash = 0;
    for (const int64_t w : {0, 1, 9}) {
      std::string pairs;
      for (const auto& microbatch : order->MakeWindow(w)) {
        for (const PairRef& it : microbatch) {
          absl::StrAppend(&pairs, it.direction, " ", it.pair, " ", it.size.source, " ",
                          it.size.target, " ", it.draw, ",");
        }
        absl::StrAppend(&pairs, ";");
      }
      hash = HashBytes(pairs, hash);
    }
    return absl::StrCat(order->steps_per_window(), " ", order->pairs_per_window(), " ",
                        order->capacity().source, " ", order->capacity().target, " ",
                        order->capacity().sentences, " ", order->steps_per_epoch(), " ",
                        absl::Hex(hash));
  };
  EXPECT_EQ(facts("microbatch { max_target_tokens: 1000 }"),
            "256 9089 1040 1000 250 11792.5 1d15f0c859537810");
  EXPECT_EQ(facts("microbatch { max_target_tokens: 500 } global_microbatches: 3 tags: M2M "
                  "temperature { temperature: 2 } temperature { from_step: 900 temperature: 5 } "
                  "temperature { from_step: 901 temperature: 9 } "
                  "weights { direction: 'en-*' weight: 3 }"),
            "256 13062 496 500 125 8205.64 cbe9cccb692667e6");
  EXPECT_EQ(facts("microbatch { max_target_tokens: 1000 max_source_tokens: 600 } "
                  "directions: '*-en' max_sentence_tokens: 40"),
            "256 8671 600 1000 250 6180.49 f26303d46127033");
  EXPECT_EQ(facts("microbatch { max_target_tokens: 1000 max_sentences: 8 } subword_alpha: 0.1 "
                  "subword_nbest: 64"),
            "2048 16220 252 1000 8 52864.2 85c90b8841ffb9e9");
  EXPECT_EQ(facts("microbatch { max_target_tokens: 800 }", DECODER_ONLY),
            "512 14618 0 800 200 14664.4 c3dca417ec9d79f9");
  EXPECT_EQ(facts("microbatch { max_target_tokens: 800 } mlm_probability: 0.15", ENCODER_ONLY),
            "512 14105 0 800 200 15197.7 1d299732e079aed8");
  EXPECT_EQ(facts("microbatch { max_target_tokens: 1000000 }"),
            "1 35943 1036304 1000000 250000 11.6484 6a75f8233128d1e7");
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
  EXPECT_EQ(ResolveDataSpec(index, &spec).message(),
            "data.tags: NO_TAGS, but the directions are into en and aa: nothing would tell the "
            "model which");
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

// Its lengths are said to spread less than they do, so that every few windows one overflows.
class SpreadlessIndex : public SyntheticIndex {
 public:
  using SyntheticIndex::SyntheticIndex;
  LengthMoments Moments(int direction, int32_t max_tokens) const override {
    LengthMoments moments = SyntheticIndex::Moments(direction, max_tokens);
    moments.source.variance = moments.target.variance = 0.0;
    return moments;
  }
};

TEST(DataOrder, AWindowShowsWhatHadNoRoomInTheOneBeforeAsFarAsItHasRoom) {
  const SpreadlessIndex index({1'000'000});
  const DataOrder order = MakeOrder("microbatch { max_target_tokens: 2000 }", index, /*seed=*/1);
  std::map<PairKey, int> shown;  // draws, by direction
  int64_t carried = 0;
  for (int64_t w = 0; w < 20; ++w) {
    std::vector<PairSize> uses;
    for (const auto& microbatch : order.MakeWindow(w)) {
      PairSize& use = uses.emplace_back();
      for (const PairRef& pair : microbatch) {
        use = {use.source + pair.size.source, use.target + pair.size.target};
        EXPECT_EQ(++shown[std::pair(pair.direction, pair.draw)], 1);
        EXPECT_LT(pair.draw, order.NumDrawn(pair.direction, w + 1));
        carried += pair.draw < order.NumDrawn(pair.direction, w) ? 1 : 0;
      }
      EXPECT_LE(use.source, order.capacity().source);
      EXPECT_LE(use.target, order.capacity().target);
    }
    for (const int direction : {0, 1}) {
      const PermutationKey key = {MakeKey(1, RandomPurpose::kDataOrder),
                                  HashName(index.directions()[direction].Name()), 0};
      for (int64_t n = w == 0 ? 0 : order.NumDrawn(direction, w - 1);
           n < order.NumDrawn(direction, w); ++n) {
        if (shown.contains(std::pair(direction, n))) continue;
        const PairSize lost = order.Reserved(index.Lengths(direction, Permute(key, 1'000'000, n)));
        for (const PairSize& use : uses) {
          EXPECT_TRUE(use.source + lost.source > order.capacity().source ||
                      use.target + lost.target > order.capacity().target)
              << w << ": " << n;
        }
      }
    }
  }
  EXPECT_GT(carried, 10);
}

// No pair of the second direction is short enough.
TEST(DataOrder, NamesTheDirectionsThatHaveLongPairsAlone) {
  class Index : public SyntheticIndex {
   public:
    using SyntheticIndex::SyntheticIndex;
    LengthMoments Moments(int direction, int32_t max_tokens) const override {
      return {direction == 1 && max_tokens < 100 ? 0 : 5, {1.0, 0.0}, {1.0, 0.0}};
    }
  };
  const Index index({50});
  EXPECT_EQ(DirectionsOfLongPairs(index, SpecOf("max_sentence_tokens: 99")),
            std::vector<std::string>{"en-aa"});
  EXPECT_TRUE(DirectionsOfLongPairs(index, SpecOf("max_sentence_tokens: 100")).empty());
  EXPECT_TRUE(
      DirectionsOfLongPairs(index, SpecOf("max_sentence_tokens: 99 directions: 'aa-en'")).empty());
}

TEST(DataOrder, WithoutAPairThatIsShortEnoughThereIsNone) {
  class Index : public SyntheticIndex {
   public:
    using SyntheticIndex::SyntheticIndex;
    LengthMoments Moments(int, int32_t) const override { return {}; }
  };
  const Index index({50});
  EXPECT_EQ(DataOrder::Make(SpecOf("microbatch { max_target_tokens: 500 max_source_tokens: 500 }"),
                            1, &index)
                .status()
                .message(),
            "data.max_sentence_tokens: every pair has a side of more than 250 pieces");
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
  EXPECT_EQ(message("microbatch { max_target_tokens: 251 }"), "");
  EXPECT_EQ(message("microbatch { max_target_tokens: 300 max_source_tokens: 252 }"), "");
  EXPECT_EQ(message("microbatch { max_target_tokens: 300 max_sentences: 1 } "
                    "global_microbatches: 1 max_sentence_tokens: 1"),
            "");
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
}

}  // namespace
}  // namespace deepnet

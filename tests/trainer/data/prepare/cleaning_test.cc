#include "trainer/data/prepare/cleaning.h"

#include <filesystem>
#include <limits>
#include <random>
#include <string>
#include <unordered_set>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/trainer/data/temp_folder.h"
#include "trainer/data/content_hash.h"

namespace deepnet {
namespace {

using testing::TempFolder;

class Cleaning : public ::testing::Test {
 protected:
  Cleaning() {
    held_out_.Add("en", "A held out sentence.");
    held_out_.Seal();
  }

  DropReason Judge(std::string_view first, std::string_view second,
                   const CleaningSpec& spec = CleaningSpec()) {
    RawPair pair;
    pair.first = first;
    pair.second = second;
    return Judge(pair, spec);
  }
  DropReason Judge(RawPair pair, const CleaningSpec& spec = CleaningSpec()) {
    const TextFilter filter(spec, {"de", "en"}, &held_out_);
    TextFilter::LanguagePair languages;
    languages.first_hash = HashBytes("de");
    languages.second_hash = HashBytes("en");
    languages.score_threshold = 1.0;
    return filter.Judge(languages, &pair);
  }

  HeldOutSentences held_out_;
};

TEST_F(Cleaning, KeepsAnOrdinaryPair) { EXPECT_EQ(Judge("Guten Tag", "Hello"), DropReason::kNone); }

TEST_F(Cleaning, DropsBadUtf8) {
  EXPECT_EQ(Judge("Gr\xfc\xdf Gott", "Hello"), DropReason::kBadUtf8);
  EXPECT_EQ(Judge("Hallo", std::string_view("a\0b", 3)), DropReason::kBadUtf8);
}

TEST_F(Cleaning, DropsAnEmptySide) {
  EXPECT_EQ(Judge("", "Hello"), DropReason::kEmptySide);
  EXPECT_EQ(Judge("Hallo", " \t "), DropReason::kEmptySide);
  EXPECT_EQ(Judge("\u00ad\u200d", "Hello"), DropReason::kEmptySide);
}

TEST_F(Cleaning, DropsATagOfThisCorpusOnly) {
  EXPECT_EQ(Judge("Hallo __de__", "Hello"), DropReason::kTagInText);
  EXPECT_EQ(Judge("Hallo", "a__b__en__c"), DropReason::kTagInText);
  EXPECT_EQ(Judge("Hallo ___de__", "Hello"), DropReason::kTagInText);
  EXPECT_EQ(Judge("Hallo __fr__", "__init__"), DropReason::kNone);
}

TEST_F(Cleaning, DropsEqualSidesUnlessTold) {
  EXPECT_EQ(Judge("Tag ", " Tag"), DropReason::kEqualSides);
  CleaningSpec keep;
  keep.set_keep_equal_sides(true);
  EXPECT_EQ(Judge("Tag", "Tag", keep), DropReason::kNone);
}

TEST_F(Cleaning, DropsALowScoreAndNoScoreThatIsNoNumber) {
  RawPair pair;
  pair.first = "Hallo";
  pair.second = "Hello";
  pair.score = 0.99;
  EXPECT_EQ(Judge(pair), DropReason::kBelowScore);
  pair.score = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(Judge(pair), DropReason::kBelowScore);
  pair.score = 1.0;
  EXPECT_EQ(Judge(pair), DropReason::kNone);
  pair.malformed = true;
  EXPECT_EQ(Judge(pair), DropReason::kMalformed);
}

TEST_F(Cleaning, DropsASentenceOfDevOrTestInItsOwnLanguage) {
  EXPECT_EQ(Judge("Etwas anderes", "  A held out sentence. "), DropReason::kHeldOut);
  EXPECT_EQ(Judge("A held out sentence.", "Something"), DropReason::kNone);
}

TEST_F(Cleaning, DropsALineBeyondTheLimit) {
  RawPair pair;
  pair.first = "Hallo";
  pair.second = "Hello";
  pair.cut = true;
  EXPECT_EQ(Judge(pair), DropReason::kTooLong);
}

TEST(JudgeLengths, DropsLongAndLopsidedPairs) {
  const TextFilter filter(CleaningSpec(), {}, nullptr);
  EXPECT_EQ(filter.JudgeLengths(250, 250), DropReason::kNone);
  EXPECT_EQ(filter.JudgeLengths(251, 250), DropReason::kTooLong);
  EXPECT_EQ(filter.JudgeLengths(4, 12), DropReason::kNone);
  EXPECT_EQ(filter.JudgeLengths(4, 13), DropReason::kLengthRatio);
  EXPECT_EQ(filter.JudgeLengths(1, 9), DropReason::kNone);
  EXPECT_EQ(filter.JudgeLengths(10, 1), DropReason::kLengthRatio);
}

TEST(DropCounts, TheExampleOfAReasonIsTheFirstOfAll) {
  const auto too_long = static_cast<size_t>(DropReason::kTooLong);
  const auto bad = static_cast<size_t>(DropReason::kBadUtf8);
  DropCounts counts, later;
  counts.lines[too_long] = 2;
  counts.examples[too_long] = "a:1";
  later.lines[too_long] = 3;
  later.examples[too_long] = "a:9";
  later.lines[bad] = 1;
  later.examples[bad] = "a:7";
  counts.Add(later);
  EXPECT_EQ(counts.lines[too_long], 5);
  EXPECT_EQ(counts.examples[too_long], "a:1");
  EXPECT_EQ(counts.examples[bad], "a:7");
  EXPECT_EQ(counts.Total(), 6);
}

bool Bit(const std::vector<uint64_t>& bits, int64_t line) {
  return (bits[line / 64] >> (line % 64) & 1) != 0;
}

TEST(DuplicateFinder, AgreesWithASetInMemoryAndOnDisk) {
  const TempFolder folder;
  for (const int64_t memory_records : {100000, 1000, 7}) {
    std::mt19937_64 random(3);
    DuplicateFinder finder(folder.path(), memory_records);
    std::unordered_set<uint64_t> seen;
    std::vector<bool> expected;
    const int64_t num_lines = memory_records == 7 ? 500 : 20000;
    for (int64_t line = 0; line < num_lines; ++line) {
      const bool skipped = random() % 10 == 0;
      const uint64_t hash = (random() % 5000) * 0x9E3779B97F4A7C15ULL;
      expected.push_back(!skipped && !seen.insert(hash).second);
      ASSERT_TRUE(skipped || finder.Add(line, hash).ok());
    }
    const auto bits = finder.Finish();
    ASSERT_TRUE(bits.ok()) << bits.status();
    for (size_t line = 0; line < bits->size() * 64; ++line) {
      EXPECT_EQ(Bit(*bits, static_cast<int64_t>(line)), line < expected.size() && expected[line])
          << line;
    }
    EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  }
}

TEST(DuplicateFinder, NamesAFileThatHasOtherRecordsThanWereWritten) {
  const TempFolder folder;
  for (const int records : {0, 2}) {
    DuplicateFinder finder(folder.path(), 1);
    ASSERT_TRUE(finder.Add(0, 1).ok() && finder.Add(1, 2).ok());
    const std::string path = folder.Path("duplicates.0");
    std::filesystem::resize_file(path, std::filesystem::file_size(path) * records);
    EXPECT_THAT(std::string(finder.Finish().status().message()), ::testing::HasSubstr(path));
  }
}

TEST(DuplicateFinder, SaysThatItsFolderIsMissing) {
  DuplicateFinder finder("/nowhere/at/all", 1);
  ASSERT_TRUE(finder.Add(0, 1).ok());
  EXPECT_FALSE(finder.Add(1, 2).ok());
}

}  // namespace
}  // namespace deepnet

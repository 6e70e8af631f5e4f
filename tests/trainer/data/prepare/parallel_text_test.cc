#include "trainer/data/prepare/parallel_text.h"

#include <fcntl.h>

#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tests/trainer/data/temp_folder.h"

namespace deepnet {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using testing::TempFolder;

std::vector<std::pair<std::string, std::string>> ReadPairs(const ParallelFiles& files,
                                                           absl::Status* status = nullptr) {
  std::vector<std::pair<std::string, std::string>> pairs;
  auto reader = PairReader::Open(files);
  EXPECT_TRUE(reader.ok()) << reader.status();
  RawPair pair;
  for (;;) {
    const absl::StatusOr<bool> more = (*reader)->Next(&pair);
    if (status != nullptr) *status = more.status();
    if (!more.ok() || !*more) return pairs;
    pairs.emplace_back(pair.first, pair.second);
  }
}

TEST(PairReader, PairsLinesOfTwoFiles) {
  const TempFolder folder;
  ParallelFiles files;
  files.first_file = folder.Write("a", "eins\nzwei\n");
  files.second_file = folder.Write("b", "one\ntwo\n");
  EXPECT_THAT(ReadPairs(files), ElementsAre(Pair("eins", "one"), Pair("zwei", "two")));
}

TEST(PairReader, NamesFilesAndLinesOfUnevenTexts) {
  const TempFolder folder;
  ParallelFiles files;
  files.first_file = folder.Write("a", "1\n2\n3\n4\n5\n");
  files.second_file = folder.Write("b", "1\n2\n3\n");
  absl::Status status;
  ReadPairs(files, &status);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("b ends after line 3"), HasSubstr("a after line 5")));
  std::swap(files.first_file, files.second_file);
  ReadPairs(files, &status);
  EXPECT_THAT(std::string(status.message()), HasSubstr("b ends after line 3"));
  files.first_file = files.second_file;
  files.score_file = folder.Write("s", "1\n2\n");
  ReadPairs(files, &status);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("s ends after line 2"), HasSubstr("after line 5")));
  files.score_file = folder.Write("s", "1\n2\n3\n4\n5\n6\n7\n");
  EXPECT_EQ(ReadPairs(files, &status).size(), 5u);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("a ends after line 5"), HasSubstr("s after line 7")));
}

TEST(PairReader, TurnsTheColumnsOfATableAroundWhereTold) {
  const TempFolder folder;
  ParallelFiles files;
  files.tsv_file = folder.Write("t", "one\teins\ntwo\tzwei\t0.5\n");
  files.tsv_swapped = true;
  EXPECT_THAT(ReadPairs(files), ElementsAre(Pair("eins", "one"), Pair("zwei", "two")));
}

TEST(PairReader, ReadsScoresFromTheirFileOrColumn) {
  const TempFolder folder;
  ParallelFiles table;
  table.tsv_file = folder.Write("t", "a\tb\t1.25\na\tb\nab\na\tb\tx\n");
  table.score_threshold = 1.0;
  auto reader = PairReader::Open(table);
  ASSERT_TRUE(reader.ok());
  RawPair pair;
  ASSERT_TRUE((*reader)->Next(&pair).value());
  EXPECT_EQ(pair.score, 1.25);
  ASSERT_TRUE((*reader)->Next(&pair).value());
  EXPECT_EQ(pair.score, std::nullopt);
  EXPECT_FALSE(pair.malformed);
  ASSERT_TRUE((*reader)->Next(&pair).value());
  EXPECT_TRUE(pair.malformed);
  ASSERT_TRUE((*reader)->Next(&pair).value());
  EXPECT_TRUE(pair.malformed);
  EXPECT_EQ((*reader)->Location(pair.line), table.tsv_file + ":4");

  // What was cut off may have been the score: such a row is too long, not malformed.
  table.tsv_file = folder.Write("t", "a\tb\t" + std::string(LineReader::kMaxLineBytes, '1') + "\n");
  reader = PairReader::Open(table);
  ASSERT_TRUE(reader.ok());
  ASSERT_TRUE((*reader)->Next(&pair).value());
  EXPECT_TRUE(pair.cut);
  EXPECT_FALSE(pair.malformed);

  // A line that was cut may have lost its second column, and is not malformed.
  const std::string longer(LineReader::kMaxLineBytes + 1, 'x');
  table.tsv_file = folder.Write("t", longer + "\tb\n");
  reader = PairReader::Open(table);
  ASSERT_TRUE(reader.ok());
  ASSERT_TRUE((*reader)->Next(&pair).value());
  EXPECT_TRUE(pair.cut);
  EXPECT_FALSE(pair.malformed);

  // One side that is cut cuts the pair.
  for (const bool first : {false, true}) {
    ParallelFiles sides;
    sides.first_file = folder.Write("a", (first ? longer : "a") + "\nnext\n");
    sides.second_file = folder.Write("b", (first ? "b" : longer) + "\nnext\n");
    reader = PairReader::Open(sides);
    ASSERT_TRUE(reader.ok());
    ASSERT_TRUE((*reader)->Next(&pair).value());
    EXPECT_TRUE(pair.cut);
    ASSERT_TRUE((*reader)->Next(&pair).value());
    EXPECT_FALSE(pair.cut);
    EXPECT_EQ(pair.line, 2);
  }

  ParallelFiles moses;
  moses.first_file = folder.Write("a", "a\na\n");
  moses.second_file = folder.Write("b", "b\nb\n");
  moses.score_file = folder.Write("s", "-3e2\nnone\n");
  moses.score_threshold = 0.0;
  reader = PairReader::Open(moses);
  ASSERT_TRUE(reader.ok());
  ASSERT_TRUE((*reader)->Next(&pair).value());
  EXPECT_EQ(pair.score, -300.0);
  ASSERT_TRUE((*reader)->Next(&pair).value());
  EXPECT_TRUE(pair.malformed);
}

TEST(StatInput, KnowsSizeAndTimeToTheNanosecond) {
  const TempFolder folder;
  const std::string path = folder.Write("a", "eins\n");
  const timespec times[] = {{0, UTIME_OMIT}, {7, 89}};  // of reading, of writing
  ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  const auto input = StatInput("name", path);
  ASSERT_TRUE(input.ok()) << input.status();
  EXPECT_EQ(input->name(), "name");
  EXPECT_EQ(input->bytes(), 5);
  EXPECT_EQ(input->modified_ns(), 7'000'000'089);
}

}  // namespace
}  // namespace deepnet

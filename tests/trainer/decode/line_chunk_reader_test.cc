#include "trainer/decode/line_chunk_reader.h"

#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel/base/exit_code.h"

namespace deepnet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::string> ReadAll(const std::string& text, int max_lines) {
  std::istringstream in(text);
  LineChunkReader reader(in, "standard input");
  auto lines = reader.ReadChunk(max_lines);
  EXPECT_TRUE(lines.ok()) << lines.status();
  return lines.ok() ? *lines : std::vector<std::string>();
}

std::string ErrorOf(const std::string& text) {
  std::istringstream in(text);
  LineChunkReader reader(in, "standard input");
  const auto lines = reader.ReadChunk(100);
  EXPECT_EQ(GetExitCode(lines.status()), ExitCode::kData);
  return std::string(lines.status().message());
}

TEST(LineChunkReader, CutsAtLineEndsOfEitherKindAndKeepsALastLineWithoutOne) {
  EXPECT_THAT(ReadAll("a b\r\n\nc", 10), ElementsAre("a b", "", "c"));
  EXPECT_THAT(ReadAll("a\n", 10), ElementsAre("a"));
  EXPECT_THAT(ReadAll("", 10), IsEmpty());
}

TEST(LineChunkReader, GoesOnWhereTheLastChunkEnded) {
  std::istringstream in("a\nb\nc\n");
  LineChunkReader reader(in, "standard input");
  EXPECT_THAT(*reader.ReadChunk(2), ElementsAre("a", "b"));
  EXPECT_THAT(*reader.ReadChunk(2), ElementsAre("c"));
  EXPECT_THAT(*reader.ReadChunk(2), IsEmpty());
  EXPECT_EQ(reader.num_lines(), 3);
}

TEST(LineChunkReader, EndsAChunkThatHoldsEnoughBytes) {
  const std::string line(LineChunkReader::kMaxLineBytes, 'x');
  std::string text;
  for (int i = 0; i < 10; ++i) text += line + "\n";
  EXPECT_EQ(ReadAll(text, 100).size(),
            LineChunkReader::kMaxChunkBytes / LineChunkReader::kMaxLineBytes);
}

TEST(LineChunkReader, RefusesALineThatIsTooLong) {
  const std::string line(LineChunkReader::kMaxLineBytes + 1, 'x');
  EXPECT_THAT(ErrorOf("short\n" + line), HasSubstr("standard input, line 2: longer than"));
}

TEST(LineChunkReader, RefusesWhatIsNoUtf8AndNamesTheLine) {
  EXPECT_EQ(ErrorOf("gut\nschlecht \xFC\n"), "standard input, line 2: not UTF-8");
}

TEST(IsUtf8, TakesCharactersOfEveryLength) {
  EXPECT_TRUE(IsUtf8(""));
  EXPECT_TRUE(IsUtf8("a\xC3\xBC\xE2\x82\xAC\xF0\x9F\x99\x82"));
  EXPECT_TRUE(IsUtf8("\xEE\x80\x80\xED\x9F\xBF\xF4\x8F\xBF\xBF"));
}

TEST(IsUtf8, RefusesOverlongSurrogateTruncatedAndTooLargeForms) {
  for (const char* bad : {"\x80", "\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80",
                          "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xC3",
                          "\xE2\x82", "\xF0\x9F\x99", "\xC3(", "\xE2\x82(", "\xFF"}) {
    EXPECT_FALSE(IsUtf8(bad)) << bad;
  }
}

}  // namespace
}  // namespace deepnet

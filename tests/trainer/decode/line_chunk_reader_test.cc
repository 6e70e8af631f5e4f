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

}  // namespace
}  // namespace deepnet

#include "parallel/base/json.h"

#include <limits>

#include <gtest/gtest.h>

namespace deepnet {
namespace {

TEST(JsonQuoted, EscapesQuotesBackslashesAndControlCharacters) {
  EXPECT_EQ(JsonQuoted(""), R"("")");
  EXPECT_EQ(JsonQuoted(R"(a "b" \c)"), R"("a \"b\" \\c")");
  EXPECT_EQ(JsonQuoted("one\ntwo\tthree\x01"), R"("one\ntwo\u0009three\u0001")");
  EXPECT_EQ(JsonQuoted(std::string_view("\0", 1)), R"("\u0000")");
  EXPECT_EQ(JsonQuoted("\x7f\u0080\u009f\xc2"), "\"\\u007f\\u0080\\u009f\\\\xc2\"");
}

TEST(JsonQuoted, IsOneLineForEveryReader) {
  EXPECT_EQ(JsonQuoted("a\u2028b\u2029\u2027"), "\"a\\u2028b\\u2029\u2027\"");
}

TEST(JsonQuoted, LeavesUtf8AsItIs) {
  EXPECT_EQ(JsonQuoted("\u00a0\u00e9中"), "\"\u00a0\u00e9中\"");
}

TEST(JsonNumber, GivesADoubleBackAndHasNoWordForWhatIsNoNumber) {
  EXPECT_EQ(JsonNumber(0.1), "0.10000000000000001");
  EXPECT_EQ(JsonNumber(1.0 / 3, 9), "0.333333333");
  EXPECT_EQ(JsonNumber(5), "5");
  EXPECT_EQ(JsonNumber(std::numeric_limits<double>::infinity()), "null");
  EXPECT_EQ(JsonNumber(std::numeric_limits<double>::quiet_NaN(), 9), "null");
}

}  // namespace
}  // namespace deepnet

#include "parallel/base/json.h"

#include <gtest/gtest.h>

namespace deepnet {
namespace {

TEST(JsonQuoted, EscapesQuotesBackslashesAndControlCharacters) {
  EXPECT_EQ(JsonQuoted(""), R"("")");
  EXPECT_EQ(JsonQuoted(R"(a "b" \c)"), R"("a \"b\" \\c")");
  EXPECT_EQ(JsonQuoted("one\ntwo\tthree\x01"), R"("one\ntwo\u0009three\u0001")");
  EXPECT_EQ(JsonQuoted(std::string_view("\0", 1)), R"("\u0000")");
}

TEST(JsonQuoted, LeavesUtf8AsItIs) { EXPECT_EQ(JsonQuoted("\u00e9\x7f"), "\"\u00e9\x7f\""); }

}  // namespace
}  // namespace deepnet

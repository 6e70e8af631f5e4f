#include "parallel/base/json.h"

#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace deepnet {
namespace {

TEST(JsonQuoted, EscapesQuotesBackslashesAndControlCharacters) {
  EXPECT_EQ(JsonQuoted(""), R"("")");
  EXPECT_EQ(JsonQuoted(R"(a "b" \c)"), R"("a \"b\" \\c")");
  EXPECT_EQ(JsonQuoted("one\ntwo\tthree\x01"), R"("one\ntwo\u0009three\u0001")");
  EXPECT_EQ(JsonQuoted(std::string_view("\0", 1)), R"("\u0000")");
  EXPECT_EQ(JsonQuoted("\u0085"), R"("\u0085")");
  EXPECT_EQ(JsonQuoted("\x7f\u0080\u009f\xc2"), "\"\\u007f\\u0080\\u009f\\\\xc2\"");
}

TEST(JsonQuoted, IsOneLineForEveryReader) {
  EXPECT_EQ(JsonQuoted("a\u2028b\u2029\u2027"), "\"a\\u2028b\\u2029\u2027\"");
}

TEST(JsonQuoted, LeavesUtf8AsItIs) {
  EXPECT_EQ(JsonQuoted("\u00a0\u00e9中"), "\"\u00a0\u00e9中\"");
}

TEST(JsonOf, GivesADoubleBackAndHasNoWordForWhatIsNoNumber) {
  EXPECT_EQ(JsonOf(0.1), "0.10000000000000001");
  EXPECT_EQ(JsonOf(1.0 / 3, 9), "0.333333333");
  EXPECT_EQ(JsonOf(5.0), "5");
  EXPECT_EQ(JsonOf(std::numeric_limits<double>::infinity()), "null");
  EXPECT_EQ(JsonOf(std::numeric_limits<double>::quiet_NaN(), 9), "null");
}

TEST(JsonObject, KeepsTheOrderOfItsMembersAndWritesEachKindOfValue) {
  const JsonObject inner = JsonObject().Add("a \"b\"", true).Add("n", int64_t{-1} << 62);
  EXPECT_EQ(JsonOf(inner), R"({"a \"b\"": true, "n": -4611686018427387904})");
  const std::vector<std::vector<double>> rows = {{1.0 / 3, 2}, {}};
  EXPECT_EQ(JsonOf(JsonObject()
                       .Add("z", std::string("\n"))
                       .Add("rows", rows, 3)
                       .Add("words", std::vector<std::string>{"x", "y"})
                       .AddJson("none", "null")),
            R"({"z": "\n", "rows": [[0.333, 2], []], "words": ["x", "y"], "none": null})");
}

TEST(JsonObject, AListOfObjectsHasALineForEach) {
  const auto made =
      JsonObjects(std::vector<int>{1, 2}, [](int i) { return JsonObject().Add("i", i); });
  EXPECT_EQ(JsonOf(JsonObject().Add("all", made)), "{\"all\": [\n  {\"i\": 1},\n  {\"i\": 2}]}");
  EXPECT_EQ(JsonOf(std::vector<JsonObject>()), "[]");
}

}  // namespace
}  // namespace deepnet

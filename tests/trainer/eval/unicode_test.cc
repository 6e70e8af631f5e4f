#include "trainer/eval/unicode.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace deepnet {
namespace {

using namespace std::string_literals;

TEST(Unicode, EveryCodePointSurvivesTheRoundTrip) {
  for (char32_t c = 0; c <= 0x10FFFF; c += c < 0x3000 ? 1 : 7) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;  // surrogates are no characters
    EXPECT_EQ(DecodeUtf8(EncodeUtf8({&c, 1})), std::u32string(1, c));
  }
}

TEST(Unicode, BrokenBytesSurviveTheRoundTripOneByOne) {
  const std::vector<std::string> broken = {
      "\x80",        "a\xff", "\xc3", "\xe2\x82", "\xc0\xaf"s, "\xed\xa0\x80", "\xf4\x90\x80\x80",
      "\xe0\x80\xaf"};
  for (const std::string& text : broken) {
    EXPECT_EQ(DecodeUtf8(text).size(), text.size());
    EXPECT_EQ(EncodeUtf8(DecodeUtf8(text)), text);
  }
  EXPECT_EQ(DecodeUtf8("\xff")[0], char32_t{0xDCFF});
}

TEST(Unicode, SplitsAtSpacesOfAnyWidth) {
  const std::vector<std::string> words = {"a", "b", "é", "d"};
  EXPECT_EQ(SplitOnSpace(" a\x1c\x1f"
                         "b\u0085\u00a0é\u2028\u3000"
                         "d\u205f"),
            words);
  EXPECT_TRUE(SplitOnSpace("").empty());
  EXPECT_TRUE(SplitOnSpace(" \u3000 ").empty());
}

TEST(Unicode, StripsAtTheEnds) {
  EXPECT_EQ(StripTrailingSpace(" a b\u00a0\n"), " a b");
  EXPECT_EQ(StripSpace("\u3000 a b\u00a0\n"), "a b");
  EXPECT_EQ(StripSpace(" \u2028"), "");
  EXPECT_EQ(StripTrailingSpace("é\xa0"), "é\xa0");  // half a character is no space
}

}  // namespace
}  // namespace deepnet

#include "trainer/data/utf8.h"

#include <gtest/gtest.h>

namespace deepnet {
namespace {

TEST(IsUtf8, TakesCharactersOfEveryLength) {
  for (const char* good :
       {"", "abc", "\u00e4\u20ac", "\U0001F600", "\ue000", "\ued80", "\uffff", "\U0010FFFF"}) {
    EXPECT_TRUE(IsUtf8(good)) << good;
  }
  EXPECT_TRUE(IsUtf8("\xED\x9F\xBF"));  // the last code point before the surrogates
  EXPECT_TRUE(IsUtf8(std::string_view("a\0b", 3)));
}

TEST(IsUtf8, RefusesOverlongSurrogateTruncatedAndTooLargeForms) {
  for (const char* bad :
       {"\x80", "\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF",
        "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "a\xC3", "\xE2\x82", "\xF0\x9F\x99", "\xC3(",
        "\xE2\x82(", "\xF0\x9F\x99(", "\xFE", "\xFF"}) {
    EXPECT_FALSE(IsUtf8(bad)) << bad;
  }
}

TEST(Trim, TakesBlanksAndControlCharactersOffBothEnds) {
  EXPECT_EQ(Trim(" \t\x01 a b \r\n"), "a b");
  EXPECT_EQ(Trim(" \n"), "");
  EXPECT_EQ(Trim("\u00a0a"), "\u00a0a");  // bytes above 0x7F stay
}

}  // namespace
}  // namespace deepnet

#include "parallel/base/utf8.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace deepnet {
namespace {

using namespace std::string_literals;

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

TEST(Trim, TakesWhiteSpaceAndControlCharactersOffBothEnds) {
  EXPECT_EQ(Trim(" \t\x01 a b \r\n"), "a b");
  EXPECT_EQ(Trim(" \n"), "");
  EXPECT_EQ(Trim("\u00a0\u0085\ufeffa\u3000b\u200b\u2028\x7f"), "a\u3000b");
  EXPECT_EQ(Trim("\u0d28\u0d4d\u200d"), "\u0d28\u0d4d\u200d");  // a letter of old Malayalam
  EXPECT_EQ(Trim("\xa0"), "\xa0");                              // no UTF-8
}

TEST(IsBlank, IsTrueWhereNothingIsSeen) {
  for (const char* blank : {"", " \t\r", "\u0085", "\u00a0", "\u00ad", "\u200b", "\u200c", "\u200d",
                            "\u200e", "\u2028", "\u2060", "\u3000", "\ufeff", "\u00ad \u200d"}) {
    EXPECT_TRUE(IsBlank(blank)) << blank;
  }
  for (const char* text : {"a", "\u200d.", "\u2800", "\xff", "\ufffd"}) {
    EXPECT_FALSE(IsBlank(text)) << text;
  }
}

TEST(OneLine, HasASpaceWhereSomebodyEndsALine) {
  EXPECT_EQ(OneLine("a\nb\rc\td\x0b\f\x1c\x1d\x1e\u0085\u2028\u2029\u00e9 "),
            "a b c d        \u00e9 ");
}

TEST(WithoutMark, TakesOneMarkOffTheBeginning) {
  EXPECT_EQ(WithoutMark("\ufeff\ufeffa"), "\ufeffa");
  EXPECT_EQ(WithoutMark("a\ufeff"), "a\ufeff");
}

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

TEST(Unicode, WhatNobodyMaySeeIsShownAsAReplacement) {
  EXPECT_EQ(ShownText("é\xa0 <b>\x1b[0m\t\x7f\u0085\U0001F600\xF0\x9F"),
            "é\uFFFD <b>\uFFFD[0m\uFFFD\uFFFD\uFFFD\U0001F600\uFFFD\uFFFD");
  EXPECT_EQ(ShownText("a\nb\r\u202Ec\u2066"), "a\uFFFDb\uFFFD\uFFFDc\uFFFD");
  EXPECT_EQ(ShownText("a\u2028b\u2029c"), "a\uFFFDb\uFFFDc");
  EXPECT_EQ(ShownLines("a\u2028b\u2029c"), "a\uFFFDb\uFFFDc");
  EXPECT_EQ(ShownText("中文 العربية \u200F עברית \u200D ñ"), "中文 العربية \u200F עברית \u200D ñ");
}

TEST(Unicode, BytesThatBelongToNoneAreEscaped) {
  EXPECT_EQ(EscapedUtf8("l\xe4ufe \xc3\xa4\n\xc3"), "l\\xe4ufe \xc3\xa4\n\\xc3");
  EXPECT_EQ(EscapedUtf8("\xed\xa0\x80"), "\\xed\\xa0\\x80");  // a surrogate
}

TEST(Unicode, LinesAndTabsOfWhatIsShownStay) {
  EXPECT_EQ(ShownLines("a\tb\n\x1b]0;TITLE\a\r\n"s + '\0'),
            "a\tb\n\uFFFD]0;TITLE\uFFFD\uFFFD\n\uFFFD");
}

TEST(Unicode, StripsAtTheEnds) {
  EXPECT_EQ(StripTrailingSpace(" a b\u00a0\n"), " a b");
  EXPECT_EQ(StripSpace("\u3000 a b\u00a0\n"), "a b");
  EXPECT_EQ(StripSpace(" \u2028"), "");
  EXPECT_EQ(StripTrailingSpace("é\xa0"), "é\xa0");  // half a character is no space
}

}  // namespace
}  // namespace deepnet

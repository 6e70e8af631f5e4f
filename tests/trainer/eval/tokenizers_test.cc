#include "trainer/eval/tokenizers.h"

#include <string>

#include "absl/strings/str_join.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel/base/exit_code.h"

namespace deepnet {
namespace {

std::string Joined(const BleuTokenizer& tokenizer, std::string_view segment) {
  return absl::StrJoin(tokenizer.tokenize(segment), " ");
}

TEST(Tokenizer13a, SeparatesMarksButKeepsNumbersAndApostrophes) {
  const BleuTokenizer tokenizer = *MakeTokenizer("13a");
  EXPECT_EQ(Joined(tokenizer, "It costs $5.50, doesn't it?"), "It costs $ 5.50 , doesn't it ?");
  EXPECT_EQ(Joined(tokenizer, "1,234.5 and .5 and 5. End."), "1,234.5 and . 5 and 5 . End .");
  EXPECT_EQ(Joined(tokenizer, "1990-1995 well-known"), "1990 - 1995 well-known");
}

TEST(Tokenizer13a, UndoesEntitiesInOrder) {
  EXPECT_EQ(Joined(*MakeTokenizer("13a"), "&lt;b&gt; &quot;x&quot; &amp;lt;"), "< b > \" x \" <");
}

TEST(Tokenizer13a, JoinsLinesThatEndInADashAndDropsSkipped) {
  EXPECT_EQ(Joined(*MakeTokenizer("13a"), "inter-\nnational\nlaw <skipped>"), "international law");
}

TEST(TokenizerZh, SeparatesChineseCharactersAndWhatSacreBleuTakesForThem) {
  EXPECT_EQ(Joined(*MakeTokenizer("zh"), "人人生而自由 in 1948,是。"),
            "人 人 生 而 自 由 in 1948 , 是 。");
  EXPECT_EQ(Joined(*MakeTokenizer("zh"), "a–b “c”"), "a – b “ c ”");
  EXPECT_EQ(Joined(*MakeTokenizer("zh"), "\U00020000\U00020001"), "\U00020000\U00020001");
}

TEST(TokenizerChar, DropsEveryKindOfSpace) {
  EXPECT_EQ(Joined(*MakeTokenizer("char"), "ab\u00a0c\u3000ไทย"), "a b c ไ ท ย");
}

TEST(TokenizerNames, FollowTheTargetLanguage) {
  EXPECT_EQ(TokenizerNameForLanguage("de"), "13a");
  EXPECT_EQ(TokenizerNameForLanguage("zh_CN"), "zh");
  EXPECT_EQ(TokenizerNameForLanguage("zh-TW"), "zh");
  EXPECT_EQ(TokenizerNameForLanguage("ja"), "char");
  EXPECT_EQ(TokenizerNameForLanguage("ko"), "char");
  EXPECT_EQ(TokenizerNameForLanguage("th"), "char");
  EXPECT_EQ(TokenizerNameForLanguage("kok"), "13a");
}

TEST(TokenizerNames, UnknownOneIsRefusedWithTheChoice) {
  EXPECT_THAT(std::string(MakeTokenizer("14b").status().message()),
              testing::HasSubstr("'14b' is not known: 13a, zh, char or none"));
}

TEST(SentencePieceTokenizer, FileThatIsNoModelIsNamed) {
  const absl::Status status = MakeSentencePieceTokenizer("tests/no_such.model").status();
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("'tests/no_such.model'"));
  EXPECT_EQ(GetExitCode(status), ExitCode::kData);
  EXPECT_EQ(GetExitCode(MakeSentencePieceTokenizer("tests").status()), ExitCode::kBadConfig);
  EXPECT_EQ(GetExitCode(MakeSentencePieceTokenizer("/dev/zero").status()), ExitCode::kBadConfig);
}

}  // namespace
}  // namespace deepnet

#include "launch/flags.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launch/field_names.h"

namespace deepnet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::vector<Flag>& Table() {
  static const auto* table = new std::vector<Flag>{
      {.name = "from", .value = "TAG", .help = "Source language."},
      {.name = "beam",
       .kind = FlagKind::kInteger,
       .value = "N",
       .default_value = "5",
       .help = "Beam."},
      {.name = "penalty",
       .kind = FlagKind::kNumber,
       .value = "X",
       .default_value = "1",
       .help = "P."},
      {.name = "json", .kind = FlagKind::kSwitch, .help = "JSON."},
      {.name = "set", .kind = FlagKind::kList, .value = "A=B", .help = "Change."},
      {.name = "shape", .value = "S", .help = "Which.", .allowed = {"A", "B"}}};
  return *table;
}

std::string Error(const std::vector<std::string>& words, int max_positional = 0) {
  const auto flags = ParseFlags(Table(), words, max_positional);
  return flags.ok() ? "" : std::string(flags.status().message());
}

TEST(Flags, BothWaysOfGivingAValueAreRead) {
  const auto flags = ParseFlags(Table(), {"--from", "de", "--beam=3", "--penalty=0.5"}, 0);
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_EQ(flags->Text("from"), "de");
  EXPECT_EQ(flags->Integer("beam"), 3);
  EXPECT_EQ(flags->Number("penalty"), 0.5);
}

TEST(Flags, UngivenFlagsHaveTheirDefaults) {
  const auto flags = ParseFlags(Table(), {}, 0);
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_FALSE(flags->Given("beam"));
  EXPECT_EQ(flags->Integer("beam"), 5);
  EXPECT_EQ(flags->Text("from"), "");
  EXPECT_FALSE(flags->Switch("json"));
  EXPECT_TRUE(flags->List("set").empty());
}

TEST(Flags, AListKeepsEveryValueAndATextTheLast) {
  const auto flags =
      ParseFlags(Table(), {"--set=a=1", "--set", "b=2", "--from=de", "--from=fr"}, 0);
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_THAT(flags->List("set"), ElementsAre("a=1", "b=2"));
  EXPECT_EQ(flags->Text("from"), "fr");
}

TEST(Flags, ASwitchTakesTrueAndFalse) {
  EXPECT_TRUE(ParseFlags(Table(), {"--json"}, 0)->Switch("json"));
  EXPECT_FALSE(ParseFlags(Table(), {"--json=false"}, 0)->Switch("json"));
  EXPECT_THAT(Error({"--json=maybe"}), HasSubstr("--json: maybe: only true and false"));
}

TEST(Flags, AllMistakesAreListedAtOnce) {
  EXPECT_EQ(Error({"--form=de", "--beam=many", "--shape=C", "word", "--set"}),
            "--form: unknown flag; did you mean '--from'?\n"
            "--beam: many: a whole number is needed\n"
            "--shape: C: allowed are: A, B\n"
            "--set: needs a value, A=B\n"
            "word: unexpected word");
}

TEST(Flags, BoundsAndRequiredFlagsAreChecked) {
  const std::vector<Flag> table = {
      Required(IntegerFlag("files", "", "", {1, 9})), IntegerFlag("sample", "", "5", {.least = 1}),
      Required(TextFlag("output", "FOLDER", "")), Required(ListFlag("checkpoint", "FOLDER", ""))};
  const auto error = [&](const std::vector<std::string>& words) {
    const auto flags = ParseFlags(table, words, 0);
    return std::string((flags.ok() ? flags->CheckRequired() : flags.status()).message());
  };
  EXPECT_EQ(error({}), "--files: required\n--output: required\n--checkpoint: required");
  EXPECT_EQ(error({"--files=0", "--sample=0", "--output=", "--checkpoint=a", "--checkpoint="}),
            "--files: 0: must be from 1 to 9\n--sample: 0: must be at least 1");
  EXPECT_EQ(error({"--files=1", "--output=", "--checkpoint=a", "--checkpoint="}),
            "--output: required\n--checkpoint: required");
  EXPECT_EQ(error({"--files=10", "--output=a", "--checkpoint=a"}),
            "--files: 10: must be from 1 to 9");
  EXPECT_EQ(error({"--files=9", "--output=a", "--checkpoint=a"}), "");
}

TEST(Flags, WordsBehindTwoDashesArePositional) {
  const auto flags = ParseFlags(Table(), {"a", "-", "--", "--from"}, 3);
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_THAT(flags->positional(), ElementsAre("a", "-", "--from"));
}

TEST(Flags, HelpShowsValueDefaultAndChoices) {
  const std::string help = FlagHelp(Table());
  EXPECT_THAT(help, HasSubstr("  --beam N                Beam. [default: 5]\n"));
  EXPECT_THAT(help, HasSubstr("One of: A, B."));
  EXPECT_THAT(help, HasSubstr("May be repeated."));
}

TEST(WrapText, BreaksAtSpacesAndIndents) {
  EXPECT_EQ(WrapText("one two three\nfour", 2, 9), "one two\n  three\n  four");
}

TEST(WrapText, EveryLineIsAsFullAsItCanBe) {
  EXPECT_EQ(WrapText("aa bb cc dd ee ff gg", 1, 6), "aa bb\n cc dd\n ee ff\n gg");
}

TEST(FlagHelp, AHeadThatLeavesNoTwoBlanksHasALineOfItsOwn) {
  const auto help = [](size_t letters) {
    return FlagHelp(
        {{.name = std::string(letters, 'a'), .kind = FlagKind::kSwitch, .help = "Help."}});
  };
  EXPECT_EQ(help(20), "  --" + std::string(20, 'a') + "  Help.\n");
  EXPECT_EQ(help(21), "  --" + std::string(21, 'a') + "\n" + std::string(26, ' ') + "Help.\n");
}

TEST(NearestName, IsTheFirstOfThoseThatDifferInAtMostHalfOfTheLetters) {
  EXPECT_EQ(NearestName("ab", {"ax"}), "ax");
  EXPECT_EQ(NearestName("ab", {"abx"}), "abx");
  EXPECT_EQ(NearestName("ab", {"xy", "abxy"}), std::nullopt);
  EXPECT_EQ(NearestName("abcd", {"abcx", "abcy"}), "abcx");
}

TEST(NearestName, FindsSwapsAndIgnoresCase) {
  EXPECT_EQ(EditDistance("widht", "width"), 1);
  EXPECT_EQ(EditDistance("", "abc"), 3);
  EXPECT_EQ(NearestName("deepnorm", {"POST_LN", "DEEPNORM"}), "DEEPNORM");
  EXPECT_EQ(NearestName("xyzzy", {"width", "heads"}), std::nullopt);
}

TEST(StepRange, HasTwoStepsInOrder) {
  EXPECT_EQ(*ParseStepRange("10..12"), std::pair(int64_t{10}, int64_t{12}));
  EXPECT_EQ(*ParseStepRange("1..1"), std::pair(int64_t{1}, int64_t{1}));
  for (const char* text : {"", "5", "..", "1..", "..2", "a..b", "1..2..3", "1-2", "1.5..2"}) {
    EXPECT_THAT(std::string(ParseStepRange(text).status().message()),
                HasSubstr("two steps are needed, such as 10..12"))
        << text;
  }
  for (const char* text : {"0..3", "3..2", "-1..2"}) {
    EXPECT_THAT(std::string(ParseStepRange(text).status().message()),
                HasSubstr("steps count from 1"))
        << text;
  }
}

TEST(ByteSize, HasUnitsOfBothKinds) {
  EXPECT_EQ(*ParseByteSize("256MiB"), 256 << 20);
  EXPECT_EQ(*ParseByteSize("1.5 GiB"), int64_t{3} << 29);
  EXPECT_EQ(*ParseByteSize(" 64mb "), 64'000'000);
  EXPECT_EQ(*ParseByteSize("2kB"), 2000);
  EXPECT_EQ(*ParseByteSize("7B"), 7);
  EXPECT_EQ(*ParseByteSize("1B"), 1);
  EXPECT_EQ(*ParseByteSize("1000000TB"), 1'000'000'000'000'000'000);
  EXPECT_EQ(*ParseByteSize("1TiB"), int64_t{1} << 40);
}

TEST(ByteSize, MistakesAreNamed) {
  EXPECT_THAT(std::string(ParseByteSize("256").status().message()),
              HasSubstr("'256': a unit is needed, such as 256MiB"));
  EXPECT_THAT(std::string(ParseByteSize("256M").status().message()),
              HasSubstr("unknown unit 'M'; there are B, KiB, MiB"));
  for (const char* text : {"", "MiB", "-", "x5MiB"}) {
    EXPECT_THAT(std::string(ParseByteSize(text).status().message()),
                HasSubstr("a number and a unit are needed"));
  }
  for (const char* text : {"-1MiB", "0MiB", "0.5B", "99999999TiB"}) {
    EXPECT_THAT(std::string(ParseByteSize(text).status().message()), HasSubstr("from 1 B to"));
  }
}

}  // namespace
}  // namespace deepnet

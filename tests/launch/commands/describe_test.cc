#include <algorithm>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include "launch/commands/command.h"
#include "tests/launch/commands/run_command.h"

namespace deepnet {
namespace {

using ::testing::HasSubstr;
using testing::Outcome;
using testing::RunCommand;
using ::testing::StartsWith;

constexpr char kTiny[] = "tests/golden/describe/tiny.textproto";

Outcome RunDescribe(std::vector<std::string> words) {
  return RunCommand(MakeDescribeCommand(), std::move(words));
}

std::string ReadText(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

double Number(const google::protobuf::Struct& object, const std::string& key) {
  return object.fields().at(key).number_value();
}

// Change the file with: deepnet describe --config tests/golden/describe/tiny.textproto
TEST(DescribeCommand, PrintsTheGoldenText) {
  const Outcome outcome = RunDescribe({"--config", kTiny});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, ReadText("tests/golden/describe/tiny.txt"));
}

TEST(DescribeCommand, ListsEveryParameterInFlatOrder) {
  const Outcome outcome = RunDescribe({"--config", kTiny, "--parameters"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, ReadText("tests/golden/describe/tiny_parameters.txt"));
}

TEST(DescribeCommand, JsonHoldsTheSameFigures) {
  const Outcome outcome = RunDescribe({"--config", kTiny, "--parameters", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  google::protobuf::Struct json;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(outcome.out, &json).ok()) << outcome.out;
  // 2 encoder layers of 3,280, one decoder layer of 4,400, two tables of 1,600.
  EXPECT_EQ(Number(json, "parameters"), 2 * 3280 + 4400 + 2 * 1600);
  EXPECT_EQ(Number(json, "tensors"), 2 * 16 + 26 + 2);
  const auto& decoder = json.fields().at("decoder").struct_value();
  EXPECT_NEAR(Number(decoder, "least_alpha"), 1.316074, 1e-6);
  EXPECT_EQ(Number(decoder, "greatest_alpha"), Number(decoder, "least_alpha"));
  EXPECT_NEAR(Number(decoder, "greatest_beta"), 0.537285, 1e-6);
  EXPECT_EQ(Number(decoder, "least_query_key"), 1);
  EXPECT_EQ(json.fields().at("layers").list_value().values_size(), 5);
  EXPECT_EQ(json.fields().at("tensor_list").list_value().values_size(), 60);
}

TEST(DescribeCommand, CountsAThousandLayersWithoutAllocatingThem) {
  const Outcome outcome = RunDescribe({"--config", "launch/recipes/deepnet_1000l.textproto"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("3,806,209,024 parameters in 21,001 tensors"));
  EXPECT_THAT(outcome.out, HasSubstr("5.6482          0.1248          1.0000"));
}

// 2 encoder layers, one decoder layer.
TEST(DescribeCommand, PrintsWhatEachSchemeReallyDoesToItsStacks) {
  struct Row {
    const char *residual, *encoder, *decoder;
  };
  for (const Row& row :
       {Row{"KEEL", "4.0000 1.0000 1.0000", "3.0000 1.0000 1.0000"},
        Row{"B2T", "1.0000 0.7071 0.7071", "1.0000 1.0000 1.0000"},
        Row{"DS_INIT", "1.0000 0.7071..1.0000 0.7071..1.0000", "1.0000 1.0000 1.0000"},
        Row{"T_FIXUP", "1.0000 0.5634 0.7071", "1.0000 0.5774 0.7071"},
        Row{"SUB_LN", "1.0000 0.7125 1.0000", "1.0000 1.0000..1.0481 1.0000"},
        Row{"NEITHER", "0.0000 1.0000 1.0000", "0.0000 1.0000 1.0000"}}) {
    const Outcome outcome =
        RunDescribe({"--config", kTiny, "--set", std::string("model.residual=") + row.residual});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    std::string text = outcome.out;
    text.erase(
        std::unique(text.begin(), text.end(), [](char a, char b) { return a == ' ' && b == ' '; }),
        text.end());
    EXPECT_THAT(text, HasSubstr(std::string(row.residual) + " alpha beta q, k\n encoder " +
                                row.encoder + "\n decoder " + row.decoder + "\n"));
  }
}

TEST(DescribeCommand, TakesTheVocabularyFromPrepareWhereTheModelGivesNone) {
  const Outcome quickstart = RunDescribe({"--config", "launch/recipes/quickstart.textproto"});
  EXPECT_EQ(quickstart.code, 0) << quickstart.err;
  EXPECT_THAT(quickstart.out, HasSubstr("4,004 rows of vocabulary"));
  EXPECT_THAT(quickstart.err, HasSubstr("model.vocabulary_size is not set: taking 4004 from "
                                        "prepare: 4000 pieces and 4 languages\n"));
  const Outcome wmt17 = RunDescribe({"--config", "launch/recipes/paper/wmt17.textproto"});
  EXPECT_THAT(wmt17.err, HasSubstr("taking 40002 from prepare"));
  const Outcome opus = RunDescribe(
      {"--config", "launch/recipes/deepnet_100l.textproto", "--set", "model.vocabulary_size="});
  EXPECT_THAT(opus.err, HasSubstr("taking 250002, estimated from prepare"));
  const auto with = [](const std::string& table) {
    return RunDescribe({"--config", kTiny, "--set", "model.vocabulary_size=", "--set",
                        "prepare.tokenizer.vocab_size=50", "--set", "prepare.table=" + table})
        .err;
  };
  const std::string said = "model.vocabulary_size is not set: taking ";
  EXPECT_THAT(with("{file: 'a' pivot_language: 'en' languages: 'de' languages: 'fr'}"),
              StartsWith(said + "53 from prepare: 50 pieces and 3 languages\n"));
  EXPECT_THAT(
      with("[{file: 'a' pivot_language: 'en'}, {file: 'b' pivot_language: 'de' languages: 'fr'}]"),
      StartsWith(said + "53, estimated from prepare: 50 pieces and 3 languages\n"));
  const auto with_text = [](const std::string& more) {
    return RunDescribe({"--config", kTiny, "--set", "model.vocabulary_size=", "--set",
                        "prepare.tokenizer.vocab_size=50", "--set",
                        "prepare.text={source_language: 'en' target_language: 'de' tag: 'bt'}",
                        "--set", more})
        .err;
  };
  EXPECT_THAT(with_text("prepare.threads=1"),
              StartsWith(said + "53 from prepare: 50 pieces and 3 languages\n"));
  EXPECT_THAT(with_text("prepare.tokenizer.model_file=of_others.model"),
              HasSubstr("model.vocabulary_size: 0: required here"));
  const Outcome nothing = RunDescribe({"--config", "launch/recipes/small_1000l.textproto"});
  EXPECT_EQ(nothing.code, 2);
  EXPECT_THAT(nothing.err, HasSubstr("model.vocabulary_size: 0: required here"));
}

TEST(DescribeCommand, RefusesAModelThatCannotBe) {
  const Outcome outcome = RunDescribe({"--config", kTiny, "--set", "model.num_heads=3"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, StartsWith("error: model.num_heads"));
}

}  // namespace
}  // namespace deepnet

#include "launch/commands/decoding.h"

#include <algorithm>
#include <fstream>
#include <memory>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launch/defaults.h"
#include "parallel/base/exit_code.h"
#include "tests/support/stepped_pair_scorer.h"
#include "tests/support/table_scorer.h"
#include "trainer/data/sentence_pieces.h"

namespace deepnet {
namespace {

using ::deepnet::testing::SteppedPairScorer;
using ::deepnet::testing::TableScorer;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

// The command that TranslateLines and ScoreLines are part of, without a model.
Command TestCommand() {
  Command command{.name = "test", .max_arguments = 2, .spec = SpecUse::kOptional};
  command.flags = ModelFlags();
  for (Flag& flag : SearchFlags()) command.flags.push_back(std::move(flag));
  return command;
}

ParsedFlags Parse(const std::vector<std::string>& words) {
  auto flags = ParseFlags(AllFlags(TestCommand()), words, 2);
  EXPECT_TRUE(flags.ok()) << flags.status();
  return *std::move(flags);
}

std::string Message(const absl::Status& status) {
  EXPECT_EQ(GetExitCode(status), ExitCode::kBadConfig);
  return std::string(status.message());
}

TEST(ModelFlags, AreAllRequired) {
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"--from=de"}, {"--from=de", "--to=", "--checkpoint="}}) {
    EXPECT_EQ(Message(Parse(words).CheckRequired()), "--checkpoint: required\n--to: required");
  }
  EXPECT_TRUE(Parse({"--from=de", "--to=en", "--checkpoint=run"}).CheckRequired().ok());
}

TEST(CheckSearchFlags, RefusesWhatContradicts) {
  EXPECT_TRUE(CheckSearchFlags(Parse({"--beam-size=4", "--nbest=2"})).ok());
  EXPECT_TRUE(CheckSearchFlags(Parse({"--sample=0.7", "--seed=3", "--nbest=9"})).ok());
  EXPECT_THAT(Message(CheckSearchFlags(Parse({"--greedy", "--beam-size=4"}))),
              HasSubstr("--greedy: contradicts"));
  EXPECT_THAT(Message(CheckSearchFlags(Parse({"--sample=1", "--greedy"}))),
              HasSubstr("--sample: contradicts"));
  EXPECT_THAT(Message(CheckSearchFlags(Parse({"--sample=0"}))), HasSubstr("must be above 0"));
  EXPECT_THAT(Message(CheckSearchFlags(Parse({"--seed=1"}))), HasSubstr("only with --sample"));
  EXPECT_THAT(Message(CheckSearchFlags(Parse({"--nbest=0"}))), HasSubstr("--nbest: 0"));
  EXPECT_TRUE(
      CheckSearchFlags(Parse({"--sample=1", "--top-k=9", "--top-p=1", "--epsilon=0.1"})).ok());
  EXPECT_EQ(Message(CheckSearchFlags(Parse({"--top-k=9", "--top-p=0.9", "--epsilon=0.1"}))),
            "--top-k: only with --sample\n--top-p: only with --sample\n"
            "--epsilon: only with --sample");
  EXPECT_EQ(
      Message(CheckSearchFlags(Parse({"--sample=1", "--top-k=0", "--top-p=1.1", "--epsilon=1"}))),
      "--top-p: 1.1: must be above 0 and at most 1\n"
      "--epsilon: 1: must be above 0 and below 1\n--top-k: 0: must be 1 to 1000000");
}

TEST(WithSearchFlags, ChangesOnlyWhatWasTyped) {
  DecodeSpec decode = WithDefaults({}).decode();
  decode.set_max_tokens(77);
  const DecodeSpec same = WithSearchFlags(decode, Parse({}));
  EXPECT_EQ(same.SerializeAsString(), decode.SerializeAsString());
  const DecodeSpec changed =
      WithSearchFlags(decode, Parse({"--length-penalty=0", "--greedy", "--batch-tokens=9"}));
  EXPECT_EQ(changed.length_penalty(), 0.0);
  EXPECT_EQ(changed.beam_size(), 1);
  EXPECT_EQ(changed.batch_tokens(), 9);
  EXPECT_EQ(changed.max_tokens(), 77);
  const DecodeSpec sampling =
      WithSearchFlags(decode, Parse({"--sample=0.8", "--seed=4", "--top-k=9", "--top-p=0.7",
                                     "--epsilon=0.1", "--nbest=6"}));
  EXPECT_EQ(sampling.sampling_temperature(), 0.8);
  EXPECT_EQ(sampling.sampling_seed(), 4u);
  EXPECT_EQ(sampling.nbest(), 6);
  EXPECT_EQ(sampling.sampling_top_k(), 9);
  EXPECT_EQ(sampling.sampling_top_p(), 0.7);
  EXPECT_EQ(sampling.sampling_epsilon(), 0.1);
}

TEST(WithSearchFlags, AskingForABeamEndsTheSamplingOfTheRun) {
  DecodeSpec decode = WithDefaults({}).decode();
  decode.set_sampling_temperature(1.0);
  EXPECT_EQ(WithSearchFlags(decode, Parse({"--beam-size=2"})).sampling_temperature(), 0.0);
  EXPECT_EQ(WithSearchFlags(decode, Parse({"--greedy"})).sampling_temperature(), 0.0);
  EXPECT_EQ(WithSearchFlags(decode, Parse({})).sampling_temperature(), 1.0);
}

TEST(DecodingRunSpec, ChangesDecodingButNeitherModelNorTags) {
  const Command command = TestCommand();
  std::istringstream in;
  std::ostringstream out, err;
  RunSpec base = WithDefaults({});
  base.mutable_model()->set_d_model(64);
  const auto with = [&](const std::vector<std::string>& words) {
    return DecodingRunSpec(CommandLine{{in, out, err}, command, Parse(words)}, base);
  };
  const auto changed = with({"--set", "decode.max_tokens=50", "--nbest=3"});
  ASSERT_TRUE(changed.ok()) << changed.status();
  EXPECT_EQ(changed->decode().max_tokens(), 50);
  EXPECT_EQ(changed->decode().nbest(), 3);
  EXPECT_EQ(changed->model().d_model(), 64);
  EXPECT_THAT(Message(with({"--set", "model.d_model=128"}).status()),
              HasSubstr("model: is given by the checkpoint"));
  EXPECT_THAT(Message(with({"--set", "data.tags=M2M"}).status()),
              HasSubstr("data.tags: is given by the checkpoint"));
}

TEST(ComputeOverrides, HoldsOnlyWhatTheCommandLineNames) {
  const Command command = TestCommand();
  std::istringstream in;
  std::ostringstream out, err;
  const auto compute =
      ComputeOverrides({{in, out, err}, command, Parse({"--set", "compute.threads_per_rank=1"})});
  ASSERT_TRUE(compute.ok()) << compute.status();
  EXPECT_EQ(compute->threads_per_rank(), 1);
  EXPECT_EQ(compute->device(), "");
}

int NumLines(const std::string& text) {
  return static_cast<int>(std::count(text.begin(), text.end(), '\n'));
}

// A small vocabulary with the tags de and en, and a table of its size as the model.
class Decoding : public ::testing::Test {
 protected:
  void SetUp() override {
    std::vector<std::string> sentences;
    for (int i = 0; i < 200; ++i) {
      sentences.push_back("the cat number " + std::to_string(i * 37 % 1000) + " sees a dog");
    }
    std::string model_bytes;
    ASSERT_EQ(TrainSentencePieces({.pieces = 60, .threads = 1}, sentences, &model_bytes), "");
    auto vocabulary = Vocabulary::FromBytes(model_bytes, {"de", "en"});
    ASSERT_TRUE(vocabulary.ok()) << vocabulary.status();
    vocabulary_ = std::make_unique<Vocabulary>(*std::move(vocabulary));
  }

  TableScorer MakeScorer() {
    return TableScorer({.vocabulary_size = vocabulary_->size(), .seed = 3, .likely = {2}});
  }

  RunSpec Run() {
    RunSpec run = WithDefaults({});
    run.mutable_decode()->set_max_tokens(12);
    if (max_positions_ > 0) run.mutable_model()->set_max_positions(max_positions_);
    return run;
  }

  std::string out() const { return out_.str(); }
  std::string err() const { return err_.str(); }

  absl::Status Translate(const std::string& input, const std::vector<std::string>& words) {
    TableScorer scorer = MakeScorer();
    std::istringstream in(input);
    Command command = TestCommand();
    command.flags.push_back({.name = "scores", .kind = FlagKind::kSwitch});
    command.flags.push_back({.name = "prefixes"});
    command.flags.push_back(
        {.name = "chunk-lines", .kind = FlagKind::kInteger, .default_value = "2"});
    auto flags = ParseFlags(AllFlags(command), words, 2);
    EXPECT_TRUE(flags.ok()) << flags.status();
    const CommandLine line = {{in, out_, err_}, command, *std::move(flags)};
    return TranslateLines({line, Run(), *vocabulary_, world_}, BatchLimits(), scorer);
  }

  absl::Status Score(const std::string& input, const std::vector<std::string>& words) {
    TableScorer scorer = MakeScorer();
    SteppedPairScorer pair_scorer(scorer);
    std::istringstream in(input);
    const Command command = TestCommand();
    const CommandLine line = {{in, out_, err_}, command, Parse(words)};
    return ScoreLines({line, Run(), *vocabulary_, world_}, pair_scorer);
  }

  int max_positions_ = 0;  // 0: the default

 private:
  std::unique_ptr<Vocabulary> vocabulary_;
  std::ostringstream out_, err_;
  SelfCommunicator world_;
};

TEST_F(Decoding, TranslatesEachLineOnALineAndSaysHowFast) {
  ASSERT_TRUE(Translate("the cat\n\na dog\n", {"--from=de", "--to=en"}).ok());
  EXPECT_EQ(NumLines(out()), 3);
  EXPECT_THAT(out(), Not(HasSubstr("__")));
  EXPECT_THAT(err(), HasSubstr("3 lines, "));
}

TEST_F(Decoding, BeginsTranslationsWithTheLinesOfAFile) {
  const std::string folder = ::testing::TempDir();
  std::ofstream(folder + "/decoding.prefixes") << "a dog\n\n";
  const std::vector<std::string> words = {"--from=de",        "--to=en",    "--scores",
                                          "--root=" + folder, "--prefixes", "decoding.prefixes"};
  ASSERT_TRUE(Translate("the cat\nthe cat\n", words).ok());
  EXPECT_THAT(out(), HasSubstr("\ta dog"));
  const absl::Status missing =
      Translate("the cat\n", {"--from=de", "--to=en", "--prefixes=none.prefixes"});
  EXPECT_EQ(GetExitCode(missing), ExitCode::kData);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("none.prefixes: cannot be read"));
}

TEST_F(Decoding, TheTargetLanguageDecides) {
  ASSERT_TRUE(Translate("the cat\n", {"--from=de", "--to=en", "--scores"}).ok());
  const std::string to_english = out();
  ASSERT_TRUE(Translate("the cat\n", {"--from=en", "--to=en", "--scores"}).ok());
  EXPECT_EQ(out(), to_english + to_english);  // the source has the tag of the target alone
  ASSERT_TRUE(Translate("the cat\n", {"--from=en", "--to=de", "--scores"}).ok());
  EXPECT_NE(out(), to_english + to_english + to_english);
}

TEST_F(Decoding, RefusesALanguageThatTheModelDoesNotKnow) {
  EXPECT_EQ(Message(Translate("the cat\n", {"--from=de", "--to=fr"})),
            "--to: fr: the model knows de, en");
}

TEST_F(Decoding, ScoresTsvFromStandardInputAndPrintsTotals) {
  const absl::Status status = Score("the cat\ta dog\nthe dog\ta cat\n", {"--from=de", "--to=en"});
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(NumLines(out()), 2);
  EXPECT_THAT(err(), ContainsRegex("2 pairs, .* log-probability -[0-9.]+, [0-9.]+ nats a token, "
                                   "perplexity [1-9]"));
}

TEST_F(Decoding, ScoresTwoFilesLikeTheirTsv) {
  const std::string folder = ::testing::TempDir();
  std::ofstream(folder + "/decoding.de") << "the cat\nthe dog\n";
  std::ofstream(folder + "/decoding.en") << "a dog\na cat\n";
  ASSERT_TRUE(Score("the cat\ta dog\nthe dog\ta cat\n", {"--from=de", "--to=en"}).ok());
  const std::string from_tsv = out();
  ASSERT_TRUE(
      Score("", {"--from=de", "--to=en", "--root", folder, "decoding.de", "decoding.en"}).ok());
  EXPECT_EQ(out(), from_tsv + from_tsv);
}

TEST_F(Decoding, WarnsOfWhatTheModelDoesNotTakeWhole) {
  const std::string long_line = "the cat number 1 sees a dog the cat number 2 sees a dog";
  ASSERT_TRUE(Translate(long_line + "\na\n", {"--from=de", "--to=en"}).ok());
  ASSERT_TRUE(Score(long_line + "\ta\na\ta\n", {"--from=de", "--to=en"}).ok());
  EXPECT_THAT(err(), Not(HasSubstr("warning")));
  max_positions_ = 6;
  ASSERT_TRUE(Translate(long_line + "\na\n", {"--from=de", "--to=en"}).ok());
  EXPECT_THAT(err(), HasSubstr("warning: 1 lines were cut to model.max_positions (6 tokens)\n"));
  ASSERT_TRUE(Score(long_line + "\ta\na\ta\n", {"--from=de", "--to=en"}).ok());
  EXPECT_THAT(err(), HasSubstr("warning: 1 pairs have a side above model.max_positions (6 tokens) "
                               "and score nan\n"));
}

TEST_F(Decoding, NamesAFileThatCannotBeRead) {
  const absl::Status status = Score("", {"--from=de", "--to=en", "none.de", "none.en"});
  EXPECT_EQ(GetExitCode(status), ExitCode::kData);
  EXPECT_THAT(std::string(status.message()), HasSubstr("none.de: cannot be read"));
  EXPECT_THAT(Message(Score("", {"--from=de", "--to=en", "one"})), HasSubstr("one file given"));
}

}  // namespace
}  // namespace deepnet

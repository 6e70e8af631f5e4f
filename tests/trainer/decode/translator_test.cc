#include "trainer/decode/translator.h"

#include <algorithm>
#include <sstream>

#include "absl/strings/str_cat.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel/base/exit_code.h"
#include "tests/support/table_scorer.h"
#include "trainer/data/sentence_pieces.h"
#include "trainer/data/vocabulary.h"
#include "trainer/decode/text_stream.h"

namespace deepnet {
namespace {

using ::deepnet::testing::TableScorer;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int32_t kTag = 30;
constexpr int32_t kOtherTag = 31;

// Letters a to z are ids 4 to 29.
TextCodec LetterCodec() {
  return {.encode =
              [](std::string_view text) {
                std::vector<int32_t> ids;
                for (const char c : text) {
                  if (c >= 'a' && c <= 'z') ids.push_back(c - 'a' + 4);
                }
                return ids;
              },
          .decode =
              [](std::span<const int32_t> ids) {
                std::string text;
                for (const int32_t id : ids) {
                  text.push_back(id < 4 ? '?' : static_cast<char>('a' + id - 4));
                }
                return text;
              }};
}

TranslatorOptions Options() {
  return {.search = {.beam_size = 3, .max_tokens = 8, .forbidden = {kTag, kOtherTag}},
          .limits = {.batch_tokens = 40}};
}

TableScorer MakeScorer() {
  return TableScorer({.vocabulary_size = 32, .seed = 5, .likely = {kEos}});
}

TagFrame Tags() { return {.source = {kTag}, .target = {}}; }

std::vector<std::string> Words(int count) {
  std::vector<std::string> words;
  for (int i = 0; i < count; ++i) {
    words.push_back(std::string(static_cast<size_t>(i * 7 % 11 + 1), 'a'));
    words.back().push_back(static_cast<char>('a' + i % 26));
  }
  return words;
}

std::vector<std::string> BestTexts(const std::vector<Translation>& translations) {
  std::vector<std::string> texts;
  for (const Translation& translation : translations) texts.push_back(translation.best[0].text);
  return texts;
}

TEST(PlanBatches, SortsByLengthAndCutsAtTheBudget) {
  const std::vector<int> lengths = {3, 9, 3, 5, 12};
  EXPECT_THAT(PlanBatches(lengths, 10, 100),
              ElementsAre(ElementsAre(4), ElementsAre(1), ElementsAre(3, 0), ElementsAre(2)));
}

TEST(PlanBatches, CutsAtTheGreatestNumberOfSentences) {
  const std::vector<int> lengths = {1, 1, 1};
  EXPECT_THAT(PlanBatches(lengths, 100, 2), ElementsAre(ElementsAre(0, 1), ElementsAre(2)));
  EXPECT_THAT(PlanBatches({}, 100, 2), IsEmpty());
}

TEST(Translator, GivesEachTextTheSameTranslationWhateverTheBatch) {
  const std::vector<std::string> texts = Words(50);
  TableScorer scorer = MakeScorer();
  TranslatorOptions options = Options();
  const auto batched = Translator(scorer, LetterCodec(), Tags(), options).Translate(texts);
  ASSERT_TRUE(batched.ok()) << batched.status();
  options.limits.batch_tokens = 1;
  const auto single = Translator(scorer, LetterCodec(), Tags(), options).Translate(texts);
  EXPECT_EQ(BestTexts(*batched), BestTexts(*single));
  options.limits.batch_tokens = 1000;
  options.max_log_probs = 1;
  const auto bounded = Translator(scorer, LetterCodec(), Tags(), options).Translate(texts);
  EXPECT_EQ(BestTexts(*batched), BestTexts(*bounded));
  options = Options();
  options.limits = {.batch_tokens = 1000, .max_sentences = 3};
  TableScorer of_few = MakeScorer();
  const auto few = Translator(of_few, LetterCodec(), Tags(), options).Translate(texts);
  EXPECT_EQ(BestTexts(*batched), BestTexts(*few));
  EXPECT_EQ(*std::max_element(of_few.rows_per_step().begin(), of_few.rows_per_step().end()),
            3 * options.search.beam_size);
  // A sentence that is sampled has a row for each sample, not for each hypothesis of a beam.
  options.search.sampling_temperature = 1.0;
  options.max_log_probs = 6 * 32;
  options.limits.max_sentences = 100;
  for (const int samples : {1, 6}) {
    options.search.nbest = samples;
    TableScorer sampled = MakeScorer();
    ASSERT_TRUE(Translator(sampled, LetterCodec(), Tags(), options).Translate(texts).ok());
    const int most =
        *std::max_element(sampled.rows_per_step().begin(), sampled.rows_per_step().end());
    EXPECT_LE(most, 6);
    EXPECT_TRUE(samples > 1 || most == 6) << most;
  }
}

TEST(Translator, FeedsTheModelTagPiecesAndEnd) {
  TableScorer scorer = MakeScorer();
  const auto translations = *Translator(scorer, LetterCodec(), Tags(), Options())
                                 .Translate(std::vector{std::string("ab")});
  const std::vector<std::vector<int32_t>> sources = {{kTag, 4, 5, kEos}};
  const Hypothesis expected = Search(scorer, {.sources = sources}, Options().search)[0][0];
  EXPECT_EQ(translations[0].best[0].text, LetterCodec().decode(expected.tokens));
  EXPECT_EQ(translations[0].best[0].score, expected.score);
  EXPECT_EQ(translations[0].best[0].num_tokens, static_cast<int>(expected.tokens.size()) + 1);
}

TEST(Translator, ForcesTheTargetTagWhereTheStyleAsksForIt) {
  TableScorer scorer = MakeScorer();
  const TagFrame tags = MakeTagFrame({M2M, kTag, kOtherTag});
  const auto translations =
      *Translator(scorer, LetterCodec(), tags, Options()).Translate(std::vector{std::string("ab")});
  const SearchBatch batch{.sources = {{kTag, 4, 5, kEos}}, .tags = {{kOtherTag}}};
  EXPECT_EQ(translations[0].best[0].score, Search(scorer, batch, Options().search)[0][0].score);
}

TEST(Translator, BeginsEachTranslationWithItsPrefixWhateverTheBatch) {
  TableScorer scorer = MakeScorer();
  const std::vector<std::string> texts = {"ab", "", "cde", "f"}, prefixes = {"xyz", "q", " ", "x"};
  const TagFrame tags = MakeTagFrame({M2M, kTag, kOtherTag});
  TranslatorOptions options = Options();
  const auto batched =
      *Translator(scorer, LetterCodec(), tags, options).Translate(texts, 0, prefixes);
  EXPECT_EQ(batched[0].best[0].text.substr(0, 3), "xyz");
  EXPECT_EQ(batched[1].best[0].text, "");  // blank lines stay blank
  EXPECT_EQ(batched[3].best[0].text.substr(0, 1), "x");
  const auto free = *Translator(scorer, LetterCodec(), tags, options).Translate(texts);
  EXPECT_EQ(batched[2].best[0].text, free[2].best[0].text);
  options.limits.batch_tokens = 1;
  const auto single =
      *Translator(scorer, LetterCodec(), tags, options).Translate(texts, 0, prefixes);
  EXPECT_EQ(BestTexts(batched), BestTexts(single));
}

TEST(Translator, NamesTheLineOfAPrefixThatIsLongerThanATranslation) {
  TableScorer scorer = MakeScorer();
  const std::vector<std::string> texts = {"a", "b"}, prefixes = {"abcdefgh", "abcdefghi"};
  const auto result =
      Translator(scorer, LetterCodec(), Tags(), Options()).Translate(texts, 10, prefixes);
  EXPECT_EQ(GetExitCode(result.status()), ExitCode::kData);
  EXPECT_EQ(result.status().message(),
            "line 12 of the prefixes: 9 tokens, but a translation has at most 8");
}

TEST(Translator, BlankTextsAndTextsWithoutPiecesStayEmptyAndAreNotSearched) {
  TableScorer scorer = MakeScorer();
  const std::vector<std::string> texts = {"", " \t", "123"};
  const auto translations = Translator(scorer, LetterCodec(), Tags(), Options()).Translate(texts);
  EXPECT_THAT(BestTexts(*translations), ElementsAre("", "", ""));
  EXPECT_THAT(scorer.rows_per_step(), IsEmpty());
}

TEST(Translator, CutsSourcesAndOutputsToWhatTheModelTakes) {
  TableScorer scorer({.vocabulary_size = 32, .seed = 5, .likely = {4, 5, 6, 7}});
  TranslatorOptions options = Options();
  options.max_positions = 6;  // of the source: tag, 4 letters, </s>; of the output: 5 and </s>
  Translator translator(scorer, LetterCodec(), Tags(), options);
  const std::vector<std::string> texts = {"abcd", "abcde"};
  const auto translations = *translator.Translate(texts);
  EXPECT_FALSE(translations[0].source_cut);
  EXPECT_TRUE(translations[1].source_cut);
  EXPECT_EQ(translations[0].best[0].text, translations[1].best[0].text);
  EXPECT_EQ(translations[0].best[0].num_tokens, 6);
  // A tag that is forced takes a position of the output.
  const TagFrame tags = MakeTagFrame({M2M, kTag, kOtherTag});
  EXPECT_EQ(
      Translator(scorer, LetterCodec(), tags, options).Translate(texts)->at(0).best[0].num_tokens,
      5);
}

TEST(TextCodec, GivesATextInWhichNothingIsSeenNoPieces) {
  PieceTraining training;
  training.pieces = 30;
  std::string model;
  ASSERT_EQ(TrainSentencePieces(training, {"a b c", "c b a"}, &model), "");
  const auto vocabulary = Vocabulary::FromBytes(model, {"de", "en"});
  ASSERT_TRUE(vocabulary.ok()) << vocabulary.status();
  const TextCodec codec = MakeTextCodec(*vocabulary);
  for (const char* blank : {"", " \t", "\u0085", "\u00a0", "\u00ad", "\u200b", "\u200d", "\u200e",
                            "\u2060", "\u3000", "\ufeff"}) {
    EXPECT_THAT(codec.encode(blank), IsEmpty()) << blank;
  }
  EXPECT_FALSE(codec
                   .encode("\u00ad"
                           "a")
                   .empty());
}

TEST(Translator, KeepsEachTranslationOnOneLine) {
  TableScorer scorer = MakeScorer();
  TextCodec codec = LetterCodec();
  codec.decode = [](std::span<const int32_t>) { return std::string("a\tb\r\nc\u2028d"); };
  const std::vector<std::string> texts = {"a"};
  EXPECT_THAT(BestTexts(*Translator(scorer, codec, Tags(), Options()).Translate(texts)),
              ElementsAre("a b  c d"));
}

// Finite nowhere, as after a diverged training.
class SilentScorer : public TableScorer {
 public:
  SilentScorer() : TableScorer({.vocabulary_size = 32}) {}
  void StepRows(DecoderState& state, std::span<const int32_t> tokens, float* log_probs) override {
    TableScorer::StepRows(state, tokens, log_probs);
    std::fill_n(log_probs, tokens.size() * 32, -std::numeric_limits<float>::infinity());
  }
};

TEST(Translator, SaysWhichSentenceABrokenModelCannotTranslate) {
  SilentScorer scorer;
  const std::vector<std::string> texts = {"", "a"};
  const auto result = Translator(scorer, LetterCodec(), Tags(), Options()).Translate(texts, 10);
  EXPECT_EQ(GetExitCode(result.status()), ExitCode::kCheckpoint);
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("sentence 12:"));
}

// Returns the output of TranslateStream for these lines.
std::string Stream(const std::string& input, TranslatorOptions options,
                   TranslateStreamOptions stream_options) {
  TableScorer scorer = MakeScorer();
  Translator translator(scorer, LetterCodec(), Tags(), std::move(options));
  std::istringstream in(input);
  std::ostringstream out;
  LineChunkReader reader(in, "standard input");
  const auto report = TranslateStream(reader, translator, stream_options, out);
  EXPECT_TRUE(report.ok()) << report.status();
  return out.str();
}

TEST(TranslateStream, WritesALinePerLineInOrderWhateverTheChunk) {
  std::string input;
  for (const std::string& word : Words(20)) input += word + "\n\n";
  const std::string whole = Stream(input, Options(), {});
  EXPECT_EQ(std::count(whole.begin(), whole.end(), '\n'), 40);
  EXPECT_EQ(Stream(input, Options(), {.chunk_lines = 1}), whole);
  EXPECT_EQ(Stream(input, Options(), {.chunk_lines = 7}), whole);
}

TEST(TranslateStream, SamplesDoNotDependOnTheChunk) {
  std::string input;
  for (int i = 0; i < 20; ++i) input += "abc\n";
  TranslatorOptions options = Options();
  options.search.sampling_temperature = 1.0;
  EXPECT_EQ(Stream(input, options, {.chunk_lines = 3}), Stream(input, options, {}));
}

TEST(TranslateStream, NumbersTheLinesOfAnNBestList) {
  TranslatorOptions options = Options();
  options.search.nbest = 2;
  TableScorer scorer = MakeScorer();
  const auto translations =
      *Translator(scorer, LetterCodec(), Tags(), options).Translate(std::vector<std::string>{"ab"});
  const auto& best = translations[0].best;
  ASSERT_EQ(best.size(), 2u);
  EXPECT_EQ(Stream("\nab\n", options, {}),
            absl::StrCat("1\t\n2\t", best[0].text, "\n2\t", best[1].text, "\n"));
}

TEST(TranslateStream, PrintsScoresBeforeTheText) {
  EXPECT_EQ(Stream("\n", Options(), {.scores = true}), "0.000000\t\n");
}

TEST(TranslateStream, CountsLinesTokensAndCutSources) {
  TableScorer scorer = MakeScorer();
  TranslatorOptions options = Options();
  options.max_positions = 5;
  Translator translator(scorer, LetterCodec(), Tags(), options);
  std::istringstream in("abcdefgh\n\nab\n");
  std::ostringstream out;
  LineChunkReader reader(in, "standard input");
  const auto report = TranslateStream(reader, translator, {}, out);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->num_lines, 3);
  EXPECT_EQ(report->num_cut_sources, 1);
  EXPECT_GT(report->num_tokens, 2);
}

TEST(TranslateStream, ReportsAnOutputThatCannotBeWritten) {
  TableScorer scorer = MakeScorer();
  Translator translator(scorer, LetterCodec(), Tags(), Options());
  std::istringstream in("ab\n");
  std::ostringstream out;
  out.setstate(std::ios::badbit);
  LineChunkReader reader(in, "standard input");
  EXPECT_EQ(TranslateStream(reader, translator, {}, out).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST(MakeTagFrame, PutsTagsWhereTheStyleSays) {
  EXPECT_EQ(MakeTagFrame({TARGET_TAG_ON_SOURCE, 30, 31}), (TagFrame{.source = {31}, .target = {}}));
  EXPECT_EQ(MakeTagFrame({M2M, 30, 31}), (TagFrame{.source = {30}, .target = {31}}));
  EXPECT_EQ(MakeTagFrame({NO_TAGS, 30, 31}), TagFrame());
}

}  // namespace
}  // namespace deepnet

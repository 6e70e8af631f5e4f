#include "trainer/eval/evaluator.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include <gtest/gtest.h>

#include "parallel/base/exit_code.h"
#include "tests/support/host_scorer.h"
#include "tests/trainer/data/temp_folder.h"
#include "trainer/data/encoded_pair.h"
#include "trainer/eval/sacrebleu.h"
#include "trainer/eval/tokenizers.h"

namespace deepnet {
namespace {

using ::deepnet::testing::TempFolder;

TEST(EvaluateShare, RangesFollowEachOtherAndDifferByAtMostOne) {
  for (const int parts : {1, 2, 3, 7}) {
    for (const size_t sentences : {0u, 1u, 2u, 6u, 200u}) {
      size_t end = 0;
      for (int part = 0; part < parts; ++part) {
        const auto [first, behind] = RangeOf({.part = part, .num_parts = parts}, sentences);
        EXPECT_EQ(first, end);
        EXPECT_LE(behind - first, sentences / parts + 1);
        EXPECT_GE(behind - first, sentences / parts);
        end = behind;
      }
      EXPECT_EQ(end, sentences);
    }
  }
}

SentenceScores Scores(const std::vector<std::string>& hypotheses,
                      const std::vector<double>& log_probabilities, int64_t num_tokens) {
  SentenceScores scores;
  scores.mutable_hypotheses()->Assign(hypotheses.begin(), hypotheses.end());
  scores.mutable_log_probabilities()->Assign(log_probabilities.begin(), log_probabilities.end());
  scores.set_num_tokens(num_tokens);
  return scores;
}

// Gathers in the calls of three parts, one after the other: what each sends, then what all get.
TEST(EvaluateShare, PartsComeTogetherInOrderEmptyOnesAndEmptyLinesIncluded) {
  const std::vector<SentenceScores> parts = {
      Scores({"", "a b"}, {-1.5, 0.1}, 5), {}, Scores({"c\xff", ""}, {-1e-300}, 2)};
  std::vector<std::string> sent;
  for (const SentenceScores& part : parts) {
    const EvaluateShare sends{
        .num_parts = 3, .gather = [&](const absl::StatusOr<std::string>& mine) {
          sent.push_back(*mine);
          return absl::StatusOr<std::vector<std::string>>(std::vector<std::string>{*mine});
        }};
    EXPECT_EQ(Gather(sends, part)->SerializeAsString(), part.SerializeAsString());
  }
  const EvaluateShare gets{.num_parts = 3, .gather = [&](const absl::StatusOr<std::string>&) {
                             return absl::StatusOr<std::vector<std::string>>(sent);
                           }};
  EXPECT_EQ(Gather(gets, parts[0])->SerializeAsString(),
            Scores({"", "a b", "c\xff", ""}, {-1.5, 0.1, -1e-300}, 7).SerializeAsString());
}

TEST(SampleSentences, AreSpreadOverDirectionsAndOverTheSentencesOfEach) {
  for (const int samples : {0, 1, 2, 3, 5, 12}) {
    for (const size_t directions : {1u, 2u, 4u, 5u, 100u}) {
      size_t total = 0;
      for (size_t i = 0; i < directions; ++i) {
        const std::vector<size_t> lines = SampleSentences(samples, i, directions, 50);
        EXPECT_LE(lines.size(), samples / directions + 1);
        EXPECT_GE(lines.size(), samples / directions);
        total += lines.size();
      }
      EXPECT_EQ(total, static_cast<size_t>(samples));
    }
  }
  std::vector<size_t> counts;
  for (size_t i = 0; i < 5; ++i) counts.push_back(SampleSentences(3, i, 5, 50).size());
  EXPECT_EQ(counts, (std::vector<size_t>{1, 1, 0, 1, 0}));
  EXPECT_EQ(SampleSentences(4, 0, 1, 200), (std::vector<size_t>{0, 50, 100, 150}));
  EXPECT_EQ(SampleSentences(4, 0, 1, 2), (std::vector<size_t>{0, 1}));  // no more than there are
  EXPECT_EQ(SampleSentences(3, 34, 100, 0), std::vector<size_t>{});
}

TEST(EvaluateShare, AloneNothingIsGathered) {
  const SentenceScores mine = Scores({"x"}, {-2}, 1);
  EXPECT_EQ(Gather({}, mine)->SerializeAsString(), mine.SerializeAsString());
}

// A model that translates a sentence into itself, its tag left out, and never ends before.
class EchoScorer : public testing::HostScorer {
 public:
  explicit EchoScorer(int64_t vocabulary_size) : vocabulary_size_(vocabulary_size) {}

  int64_t vocabulary_size() const override { return vocabulary_size_; }
  std::unique_ptr<DecoderState> Start(std::span<const std::vector<int32_t>> sources) override {
    auto state = std::make_unique<Rows>();
    for (const std::vector<int32_t>& source : sources) state->rows.push_back({source, 0});
    return state;
  }
  void Reorder(DecoderState& state, std::span<const int32_t> parents) override {
    std::vector<std::pair<std::vector<int32_t>, size_t>> rows;
    for (const int32_t parent : parents) rows.push_back(static_cast<Rows&>(state).rows[parent]);
    static_cast<Rows&>(state).rows = std::move(rows);
  }
  void StepRows(DecoderState& state, std::span<const int32_t> /*tokens*/,
                float* log_probs) override {
    for (auto& [source, fed] : static_cast<Rows&>(state).rows) {
      std::fill_n(log_probs, vocabulary_size_, -20.0F);
      log_probs[kEos] = -40.0F;
      if (++fed < source.size()) log_probs[source[fed]] = -0.1F;
      log_probs += vocabulary_size_;
    }
  }

 private:
  struct Rows : public DecoderState {
    int num_rows() const override { return static_cast<int>(rows.size()); }
    std::vector<std::pair<std::vector<int32_t>, size_t>> rows;  // source, tokens fed
  };

  const int64_t vocabulary_size_;
};

// Gives the k-th pair of a call -(k + 1) * `step`, and keeps all pairs.
class CountingPairScorer : public PairScorer {
 public:
  std::vector<double> LogProbabilities(std::span<const EncodedPair> given) override {
    std::vector<double> results;
    for (const EncodedPair& pair : given) {
      pairs.push_back(pair);
      results.push_back(-static_cast<double>(results.size() + 1) * step);
    }
    return results;
  }

  double step = 0.25;
  std::vector<EncodedPair> pairs;
};

// A corpus of de-en and en-fr: six sentences of dev and of test, whose English is the same.
class EvaluateTest : public ::testing::Test {
 protected:
  static EvaluateOptions Options() {
    EvaluateOptions options;
    DecodeSpec& decode = *options.run.mutable_decode();
    decode.set_beam_size(2);
    decode.set_nbest(2);
    decode.set_length_penalty(1);
    decode.set_max_tokens(400);
    return options;
  }

  absl::StatusOr<EvalRecord> Run(const EvaluateOptions& options) {
    pair_scorer_.pairs.clear();
    return Evaluate(scorer_, pair_scorer_, corpus_, corpus_.vocabulary(), options);
  }

  // The message of an error with this code.
  std::string Error(const EvaluateOptions& options, ExitCode code) {
    const absl::StatusOr<EvalRecord> record = Run(options);
    EXPECT_EQ(GetExitCode(record.status()), code) << record.status();
    return std::string(record.status().message());
  }

  ParallelSentences Text(const std::string& split, const std::string& direction) const {
    return *corpus_.Sentences(split, direction.substr(0, 2), direction.substr(3));
  }

  // Returns what EchoScorer makes of the sentences: characters that the vocabulary lacks are lost.
  std::vector<std::string> Echo(const std::vector<std::string>& sentences) const {
    std::vector<std::string> echoes;
    for (const std::string& text : sentences) {
      echoes.push_back(corpus_.vocabulary().Decode(Pieces(text)));
    }
    return echoes;
  }

  std::vector<int32_t> Pieces(const std::string& text) const {
    return corpus_.vocabulary().Encode(text);
  }

  // The tags of a direction such as "de-en".
  DirectionTags Tags(const std::string& direction, TagStyle style) const {
    return {style, *corpus_.vocabulary().TagId(direction.substr(0, 2)),
            *corpus_.vocabulary().TagId(direction.substr(3))};
  }

  const Corpus corpus_ = *Corpus::Open("tests/golden/run-v1/corpus");
  EchoScorer scorer_{corpus_.vocabulary().size()};
  CountingPairScorer pair_scorer_;
};

std::string Names(const EvalRecord& record) {
  return absl::StrJoin(record.directions(), " ", [](std::string* out, const DirectionScore& score) {
    absl::StrAppend(out, score.direction());
  });
}

TEST_F(EvaluateTest, ScoresWhatWasTranslatedAgainstTheOtherSideOfEveryDirection) {
  const TempFolder folder;
  for (const char* split : {"dev", "test"}) {
    EvaluateOptions options = Options();
    options.split = split;
    options.output_folder = folder.Path(split);
    std::string progress;
    options.progress = [&progress](const std::string& direction, double fraction) {
      absl::StrAppend(&progress, direction, " ", fraction, "\n");
    };
    const auto record = Run(options);
    ASSERT_TRUE(record.ok()) << record.status();
    EXPECT_EQ(progress, "de-en 0\nen-de 0.25\nen-fr 0.5\nfr-en 0.75\n");
    EXPECT_EQ(Names(*record), "de-en en-de en-fr fr-en");
    std::vector<EncodedPair> pairs;
    std::map<std::string, double> bleus;
    double bleu = 0, chrf = 0, nll = 0;
    for (const DirectionScore& score : record->directions()) {
      SCOPED_TRACE(absl::StrCat(split, " ", score.direction()));
      const ParallelSentences text = Text(split, score.direction());
      const std::vector<std::string> echoes = Echo(text.source);
      const std::string file = absl::StrCat(split, "/", score.direction());
      EXPECT_EQ(folder.Read(file + ".hyp"), absl::StrJoin(echoes, "\n") + "\n");
      EXPECT_EQ(folder.Read(file + ".ref"), absl::StrJoin(text.target, "\n") + "\n");
      bleus[score.direction()] = CorpusBleu(echoes, text.target, *MakeTokenizer("13a")).score;
      EXPECT_EQ(score.bleu(), bleus[score.direction()]);
      EXPECT_GT(score.bleu(), 0.0);
      EXPECT_EQ(score.chrf(), CorpusChrf(echoes, text.target));
      EXPECT_EQ(score.tokenizer(), "13a");
      EXPECT_EQ(score.sentences(), 6);
      EXPECT_EQ(score.too_long(), 0);
      EXPECT_FALSE(score.has_spbleu());
      size_t tokens = 0;
      for (size_t i = 0; i < text.source.size(); ++i) {
        pairs.push_back(EncodePair(Tags(score.direction(), TARGET_TAG_ON_SOURCE),
                                   Pieces(text.source[i]), Pieces(text.target[i])));
        tokens += pairs.back().labels.size();
      }
      EXPECT_DOUBLE_EQ(score.nll(), 0.25 * (1 + 2 + 3 + 4 + 5 + 6) / static_cast<double>(tokens));
      bleu += score.bleu() / 4, chrf += score.chrf() / 4, nll += score.nll() / 4;
    }
    EXPECT_EQ(pair_scorer_.pairs, pairs);
    EXPECT_DOUBLE_EQ(record->bleu(), bleu);
    EXPECT_DOUBLE_EQ(record->chrf(), chrf);
    EXPECT_DOUBLE_EQ(record->nll(), nll);
    EXPECT_FALSE(record->has_spbleu());
    EXPECT_DOUBLE_EQ(record->bleu_to_english(), (bleus["de-en"] + bleus["fr-en"]) / 2);
    EXPECT_DOUBLE_EQ(record->bleu_from_english(), (bleus["en-de"] + bleus["en-fr"]) / 2);
    EXPECT_EQ(record->bleu_signature(), BleuSignature("13a"));
    EXPECT_EQ(record->chrf_signature(), ChrfSignature());
    EXPECT_EQ(record->samples_size(), 0);
    EXPECT_GT(record->seconds(), 0.0);
  }
}

TEST_F(EvaluateTest, AnyToAnyJoinsLanguagesOverEnglishOnceEach) {
  const TempFolder folder;
  EvaluateOptions options = Options();
  options.any_to_any = true;
  options.output_folder = folder.path();
  options.samples = 6;
  const auto record = Run(options);
  ASSERT_TRUE(record.ok()) << record.status();
  EXPECT_EQ(Names(*record), "de-en de-fr en-de en-fr fr-de fr-en");
  const ParallelSentences german = Text("test", "de-en"), french = Text("test", "fr-en");
  EXPECT_EQ(folder.Read("fr-de.hyp"), absl::StrJoin(french.source, "\n") + "\n");
  EXPECT_EQ(folder.Read("fr-de.ref"), absl::StrJoin(german.source, "\n") + "\n");
  EXPECT_EQ(record->directions(1).sentences(), 6);
  ASSERT_EQ(record->samples_size(), 6);
  const SampleTranslation& sample = record->samples(4);
  EXPECT_EQ(sample.direction(), "fr-de");
  EXPECT_EQ(sample.line(), 1);
  EXPECT_EQ(sample.source(), french.source[0]);
  EXPECT_EQ(sample.translation(), french.source[0]);
  EXPECT_EQ(sample.reference(), german.source[0]);
}

TEST_F(EvaluateTest, TheFirstSentencesOfTheDirectionsThatAreAskedForCount) {
  EvaluateOptions options = Options();
  options.directions = {"en-fr", "de-en"};
  options.sentences = 2;
  auto record = Run(options);
  ASSERT_TRUE(record.ok()) << record.status();
  EXPECT_EQ(Names(*record), "de-en en-fr");
  ASSERT_EQ(pair_scorer_.pairs.size(), 4u);
  const ParallelSentences text = Text("test", "en-fr");
  EXPECT_EQ(pair_scorer_.pairs[3], EncodePair(Tags("en-fr", TARGET_TAG_ON_SOURCE),
                                              Pieces(text.source[1]), Pieces(text.target[1])));
  EXPECT_EQ(record->directions(1).sentences(), 2);
  options.sentences = 7;  // more than there are
  record = Run(options);
  ASSERT_TRUE(record.ok()) << record.status();
  EXPECT_EQ(record->directions(1).sentences(), 6);
}

TEST_F(EvaluateTest, PiecesOfAGivenModelAreASecondBleu) {
  EvaluateOptions options = Options();
  options.spm_file = "tests/golden/sacrebleu/spm.model";
  const auto record = Run(options);
  ASSERT_TRUE(record.ok()) << record.status();
  const BleuTokenizer pieces = *MakeSentencePieceTokenizer(options.spm_file);
  double sum = 0;
  for (const DirectionScore& score : record->directions()) {
    const ParallelSentences text = Text("test", score.direction());
    EXPECT_EQ(score.spbleu(), CorpusBleu(text.source, text.target, pieces).score);
    EXPECT_NE(score.spbleu(), score.bleu());
    sum += score.spbleu();
  }
  EXPECT_DOUBLE_EQ(record->spbleu(), sum / 4);
  EXPECT_EQ(record->bleu_signature(), BleuSignature("13a") + "; " + BleuSignature(pieces.name));
}

TEST_F(EvaluateTest, APairThatIsTooLongOnEitherSideHasNoNll) {
  const ParallelSentences text = Text("test", "de-en");
  for (size_t i = 0; i < text.source.size(); ++i) {
    const EncodedPair pair = EncodePair(Tags("de-en", TARGET_TAG_ON_SOURCE), Pieces(text.source[i]),
                                        Pieces(text.target[i]));
    EvaluateOptions options = Options();
    options.directions = {"de-en"};
    options.max_positions = static_cast<int>(std::max(pair.source.size(), pair.labels.size()));
    ASSERT_TRUE(Run(options).ok());
    EXPECT_EQ(std::ranges::count(pair_scorer_.pairs, pair), 1);
    --options.max_positions;
    const auto record = Run(options);
    ASSERT_TRUE(record.ok());
    EXPECT_EQ(std::ranges::count(pair_scorer_.pairs, pair), 0);
    EXPECT_EQ(record->directions(0).too_long(),
              std::ssize(text.source) - std::ssize(pair_scorer_.pairs));
    EXPECT_EQ(record->directions(0).sentences(), 6);
  }
}

TEST_F(EvaluateTest, ADirectionWhosePairsAreAllTooLongHasNoNll) {
  EvaluateOptions options = Options();
  options.translates = false;
  options.max_positions = 1;
  const auto record = Run(options);
  ASSERT_TRUE(record.ok()) << record.status();
  for (const DirectionScore& score : record->directions()) {
    EXPECT_EQ(score.too_long(), 6);
    EXPECT_FALSE(score.has_nll());
  }
  EXPECT_FALSE(record->has_nll());
}

// Samples and masks are those of a sentence's place in its direction, whoever has it.
TEST_F(EvaluateTest, APartHasWhatOneEvaluatorHasOfItsSentencesAndWritesNoFiles) {
  const TempFolder folder;
  EvaluateOptions options = Options();
  options.directions = {"de-en"};
  options.run.mutable_decode()->set_sampling_temperature(9);
  options.run.mutable_decode()->set_max_tokens(4);
  options.output_folder = folder.Path("whole");
  ASSERT_TRUE(Run(options).ok());
  const std::string whole = folder.Read("whole/de-en.hyp");
  options.output_folder = folder.Path("part");
  SentenceScores sent;
  options.share = {
      .part = 1, .num_parts = 2, .gather = [&](const absl::StatusOr<std::string>& mine) {
        EXPECT_TRUE(sent.ParseFromString(*mine));
        return absl::StatusOr<std::vector<std::string>>(std::vector{*mine, *mine});
      }};
  ASSERT_TRUE(Run(options).ok());
  ASSERT_EQ(sent.hypotheses_size(), 3);
  EXPECT_TRUE(whole.ends_with("\n" + absl::StrJoin(sent.hypotheses(), "\n") + "\n")) << whole;
  EXPECT_FALSE(std::filesystem::exists(folder.Path("part")));

  options.translates = false;
  options.run.mutable_data()->set_mlm_probability(0.3);
  options.run.mutable_model()->set_architecture(ENCODER_ONLY);
  ASSERT_TRUE(Run(options).ok());
  const std::vector<EncodedPair> mine = pair_scorer_.pairs;
  options.share = {};
  ASSERT_TRUE(Run(options).ok());
  EXPECT_EQ(mine, std::vector(pair_scorer_.pairs.begin() + 3, pair_scorer_.pairs.end()));
}

TEST_F(EvaluateTest, AnyToAnyDoesNotLeaveOutADirectionWhoseTextIsDamaged) {
  const TempFolder folder;
  std::filesystem::copy("tests/golden/run-v1/corpus", folder.Path("corpus"));
  const Corpus corpus = *Corpus::Open(folder.Path("corpus"));
  std::filesystem::resize_file(folder.Path("corpus/test.de-en.de"), 3);
  EvaluateOptions options = Options();
  options.any_to_any = true;
  const auto record = Evaluate(scorer_, pair_scorer_, corpus, corpus.vocabulary(), options);
  EXPECT_EQ(GetExitCode(record.status()), ExitCode::kData) << record.status();
  EXPECT_NE(record.status().message().find("test.de-en.de"), std::string::npos) << record.status();
}

TEST_F(EvaluateTest, AModelOfOneStackHasTheLikelihoodOfItsSideAlone) {
  const ParallelSentences text = Text("test", "de-en");
  for (const Architecture architecture : {DECODER_ONLY, ENCODER_ONLY}) {
    EvaluateOptions options = Options();
    options.directions = {"de-en"};
    options.translates = false;
    options.run.mutable_data()->set_tags(M2M);
    options.run.mutable_data()->set_mlm_probability(0.3);
    options.run.mutable_model()->set_architecture(architecture);
    const auto record = Run(options);
    ASSERT_TRUE(record.ok()) << record.status();
    std::vector<EncodedPair> pairs;
    int64_t tokens = 0;
    for (size_t i = 0; i < text.source.size(); ++i) {
      const DirectionTags tags = Tags("de-en", M2M);
      pairs.push_back(
          architecture == DECODER_ONLY
              ? EncodeTargetSide(tags, Pieces(text.target[i]))
              : EncodeSourceSide(tags, Pieces(text.source[i]),
                                 {0.3, corpus_.vocabulary().first_tag()},
                                 {.direction = "de-en", .pair = static_cast<int64_t>(i)}));
      tokens += std::ranges::count_if(pairs.back().labels, [](int32_t id) { return id >= 0; });
    }
    EXPECT_EQ(pair_scorer_.pairs, pairs);
    EXPECT_DOUBLE_EQ(record->nll(), 0.25 * 21 / static_cast<double>(tokens));
    EXPECT_FALSE(record->has_bleu() || record->has_chrf() || record->directions(0).has_bleu());
    EXPECT_EQ(record->bleu_signature() + record->chrf_signature(), "");
  }
}

TEST_F(EvaluateTest, WhatCannotBeEvaluatedIsNamed) {
  EvaluateOptions options = Options();
  for (const char* name : {"deen", "de-en-fr"}) {
    options.directions = {"de-en", name};
    EXPECT_EQ(Error(options, ExitCode::kData),
              absl::StrCat("direction \"", name, "\": write xx-yy"));
  }
  options.directions = {"de-xx"};
  EXPECT_NE(Error(options, ExitCode::kData).find("xx"), std::string::npos);
  options.directions.clear();
  options.split = "valid";
  EXPECT_EQ(Error(options, ExitCode::kData), "the corpus has no valid sentences");

  const Vocabulary without =
      *Vocabulary::Open("tests/golden/run-v1/corpus/tokenizer.model", {"de", "en"});
  const auto unknown = Evaluate(scorer_, pair_scorer_, corpus_, without, Options());
  EXPECT_EQ(GetExitCode(unknown.status()), ExitCode::kData);
  EXPECT_EQ(unknown.status().message(), "direction en-fr: the model has no such language");

  pair_scorer_.step = std::nan("");
  EXPECT_EQ(Error(Options(), ExitCode::kCheckpoint),
            "de-en: the model gives no finite log-probability");
  pair_scorer_.step = 0.25;
  const TempFolder folder;
  EvaluateOptions output = Options();
  output.output_folder = folder.Write("file", "") + "/below";
  EXPECT_EQ(Error(output, ExitCode::kBadConfig).substr(0, 10), "--output: ");
}

}  // namespace
}  // namespace deepnet

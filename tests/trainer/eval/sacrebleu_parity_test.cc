// Compares with what sacreBLEU said of the same lines (record_sacrebleu.py made
// tests/golden/sacrebleu). Doubles agree to 1e-9: the same operations, but perhaps another libm
// than the recording host's.
#include <array>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include <gtest/gtest.h>

#include "trainer/eval/sacrebleu.h"
#include "trainer/eval/tokenizers.h"

namespace deepnet {
namespace {

constexpr char kFolder[] = "tests/golden/sacrebleu";
constexpr double kTolerance = 1e-9;  // of scores up to 100

using Row = std::vector<std::string>;

std::vector<Row> ReadTsv(const std::string& name) {
  std::ifstream file(absl::StrCat(kFolder, "/", name), std::ios::binary);
  EXPECT_TRUE(file) << "run from the repository's root";
  std::vector<Row> rows;
  for (std::string line; std::getline(file, line);) rows.push_back(absl::StrSplit(line, '\t'));
  return rows;
}

BleuTokenizer TokenizerCalled(const std::string& name) {
  const absl::StatusOr<BleuTokenizer> tokenizer =
      name == "spm" ? MakeSentencePieceTokenizer(absl::StrCat(kFolder, "/spm.model"))
                    : MakeTokenizer(name);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *tokenizer;
}

struct Texts {
  std::vector<std::string> hypotheses, references;
};

// Lines of each language, and of "all".
std::map<std::string, Texts> ReadGroups() {
  std::map<std::string, Texts> groups;
  for (const Row& row : ReadTsv("lines.tsv")) {
    for (const std::string& group : {row[0], std::string("all")}) {
      groups[group].hypotheses.push_back(row[1]);
      groups[group].references.push_back(row[2]);
    }
  }
  return groups;
}

// Returns score and details with sacreBLEU's digits.
std::string ToString(const BleuScore& score) {
  const BleuCounts& counts = score.counts;
  const double ratio = counts.reference_tokens == 0
                           ? 0.0
                           : static_cast<double>(counts.hypothesis_tokens) /
                                 static_cast<double>(counts.reference_tokens);
  return absl::StrFormat(
      "%.2f %.1f/%.1f/%.1f/%.1f (BP = %.3f ratio = %.3f hyp_len = %d ref_len = %d)", score.score,
      score.precisions[0], score.precisions[1], score.precisions[2], score.precisions[3],
      score.brevity_penalty, ratio, counts.hypothesis_tokens, counts.reference_tokens);
}

// A row of corpus.tsv: group, metric, score, signature, printed form, and for BLEU: brevity
// penalty, lengths, counts, totals, precisions.
void ExpectEqualBleu(const Row& row, const Texts& texts) {
  const BleuTokenizer tokenizer = TokenizerCalled(row[1]);
  const BleuScore score = CorpusBleu(texts.hypotheses, texts.references, tokenizer);
  EXPECT_NEAR(score.score, std::stod(row[2]), kTolerance);
  EXPECT_EQ(BleuSignature(tokenizer.name), row[3]);
  EXPECT_EQ(absl::StrCat("BLEU|", row[3], " = ", ToString(score)), row[4]);
  EXPECT_NEAR(score.brevity_penalty, std::stod(row[5]), kTolerance);
  EXPECT_EQ(score.counts.hypothesis_tokens, std::stoll(row[6]));
  EXPECT_EQ(score.counts.reference_tokens, std::stoll(row[7]));
  EXPECT_EQ(absl::StrJoin(score.counts.correct, " "), row[8]);
  EXPECT_EQ(absl::StrJoin(score.counts.total, " "), row[9]);
  const std::vector<std::string> precisions = absl::StrSplit(row[10], ' ');
  ASSERT_EQ(precisions.size(), score.precisions.size());
  for (size_t n = 0; n < precisions.size(); ++n) {
    EXPECT_NEAR(score.precisions[n], std::stod(precisions[n]), kTolerance);
  }
}

TEST(SacreBleuParity, EveryLanguageAndAllTogetherScoreTheSame) {
  const std::map<std::string, Texts> groups = ReadGroups();
  EXPECT_EQ(groups.size(), 11u);
  EXPECT_EQ(groups.at("all").hypotheses.size(), 500u);
  const std::vector<Row> rows = ReadTsv("corpus.tsv");
  EXPECT_EQ(rows.size(), 11u * 6u);
  for (const Row& row : rows) {
    SCOPED_TRACE(absl::StrCat(row[0], " ", row[1]));
    const Texts& texts = groups.at(row[0]);
    if (row[1] == "chrf") {
      const double score = CorpusChrf(texts.hypotheses, texts.references);
      EXPECT_NEAR(score, std::stod(row[2]), kTolerance);
      EXPECT_EQ(ChrfSignature(), row[3]);
    } else {
      ExpectEqualBleu(row, texts);
    }
  }
}

TEST(SacreBleuParity, EverySentenceAloneScoresTheSameWithSmoothing) {
  const std::vector<Row> lines = ReadTsv("lines.tsv");
  const std::vector<Row> sentences = ReadTsv("sentences.tsv");  // the first row names the columns
  ASSERT_EQ(sentences.size(), lines.size() + 1);
  const Row& names = sentences[0];
  for (size_t column = 0; column < names.size(); ++column) {
    if (names[column] == "chrf") continue;
    const BleuTokenizer tokenizer = TokenizerCalled(names[column]);
    for (size_t i = 0; i < lines.size(); ++i) {
      const BleuScore score = CorpusBleu({&lines[i][1], 1}, {&lines[i][2], 1}, tokenizer);
      EXPECT_NEAR(score.score, std::stod(sentences[i + 1][column]), kTolerance)
          << names[column] << " of line " << i + 1;
    }
  }
}

TEST(SacreBleuParity, EverySentenceAloneHasTheSameChrf) {
  const std::vector<Row> lines = ReadTsv("lines.tsv");
  const std::vector<Row> sentences = ReadTsv("sentences.tsv");
  ASSERT_EQ(sentences[0].back(), "chrf");
  for (size_t i = 0; i < lines.size(); ++i) {
    const double score = CorpusChrf({&lines[i][1], 1}, {&lines[i][2], 1});
    EXPECT_NEAR(score, std::stod(sentences[i + 1].back()), kTolerance) << "line " << i + 1;
  }
}

TEST(Bleu, OfNothingIsZero) {
  const BleuScore score = CorpusBleu({}, {}, TokenizerCalled("13a"));
  EXPECT_EQ(score.score, 0.0);
  EXPECT_EQ(ToString(score),
            "0.00 0.0/0.0/0.0/0.0 (BP = 1.000 ratio = 0.000 hyp_len = 0 ref_len = 0)");
  EXPECT_EQ(CorpusChrf({}, {}), 0.0);
}

}  // namespace
}  // namespace deepnet

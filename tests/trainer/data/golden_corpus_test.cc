// tests/golden/run-v1/corpus is a corpus of format version 1 on disk, made of the UDHR fixture's
// German, English and French. It must open, keep its content hash and be reused.
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/trainer/data/prepared_corpus.h"
#include "tests/trainer/data/temp_folder.h"
#include "trainer/data/corpus.h"
#include "trainer/data/corpus_manifest.h"

namespace deepnet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::PrepareIn;
using testing::ReadFile;
using testing::TempFolder;

constexpr char kGolden[] = "tests/golden/run-v1/corpus";
constexpr char kTable[] = "tests/golden/run-v1/udhr.tsv";  // its `fr` is a dialect of Lorraine
constexpr char kContentHash[] = "8bb3dbdceb4fe0b4";
constexpr char kSpec[] =
    "cleaning { max_sentence_tokens: 200 max_length_ratio: 3 } "
    "tokenizer { model_file: 'sentences.model' vocab_size: 300 character_coverage: 1 "
    "input_sentence_size: 10000 type: 'unigram' sample_temperature: 5 } "
    "table { file: 'udhr.tsv' pivot_language: 'en' languages: ['de', 'fr'] dev_percent: 10 "
    "test_percent: 10 }";

// The files that it was made of.
void WriteInputs(const TempFolder& folder) {
  folder.Write("udhr.tsv", ReadFile(kTable));
  folder.Write("sentences.model", ReadFile(absl::StrCat(kGolden, "/tokenizer.model")));
}

TEST(GoldenCorpus, OpensWithItsContentHash) {
  const auto corpus = Corpus::Open(kGolden);
  ASSERT_TRUE(corpus.ok()) << corpus.status();
  EXPECT_EQ(corpus->content_hash(), kContentHash);
  EXPECT_TRUE(corpus->CheckContent().ok());
  std::vector<std::string> names;
  for (const Direction& direction : corpus->directions()) names.push_back(direction.Name());
  EXPECT_THAT(names, ElementsAre("de-en", "en-de", "en-fr", "fr-en"));
  EXPECT_EQ(corpus->vocabulary().size(), 303);
  EXPECT_FALSE(corpus->Sentences("test", "de", "fr")->source.empty());
}

TEST(GoldenCorpus, WithNamesOfBeforeTheFirstVersionIsRefused) {
  const TempFolder folder;
  const std::string text = ReadFile(absl::StrCat(kGolden, "/manifest.textproto"));
  folder.Write("manifest.textproto",
               absl::StrReplaceAll(text, {{"input_sentence_size", "sample_sentences"}}));
  EXPECT_THAT(std::string(ReadManifest(folder.Path("")).status().message()),
              HasSubstr("has names of before version 0.1.0: prepare the corpus again"));
}

TEST(GoldenCorpus, IsReusedByAPrepareOfTheSameSpecAndInput) {
  const TempFolder folder;
  WriteInputs(folder);
  std::filesystem::copy(kGolden, folder.Path("corpus"));
  const auto report = PrepareIn(folder, kSpec, nullptr, "corpus");
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_TRUE(report->reused());
  EXPECT_EQ(report->content_hash(), kContentHash);
}

TEST(GoldenCorpus, IsWrittenTheSameWayToday) {
  const TempFolder folder;
  WriteInputs(folder);
  const auto report = PrepareIn(folder, kSpec, nullptr, "corpus");
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_FALSE(report->reused());
  EXPECT_EQ(report->content_hash(), kContentHash);
  for (const char* file : {"tokenizer.model", "train.de-en.pairs", "train.en-fr.pairs"}) {
    EXPECT_EQ(folder.Read(absl::StrCat("corpus/", file)),
              ReadFile(absl::StrCat(kGolden, "/", file)))
        << file;
  }
}

}  // namespace
}  // namespace deepnet

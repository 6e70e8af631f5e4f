// Prepare() on ranks, which are threads here, and its finished parts: in blocks of 64 lines, so
// that small texts have several.
#include <signal.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <functional>
#include <mutex>
#include <random>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "parallel/base/exit_code.h"
#include "parallel/base/host.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/agreement.h"
#include "parallel/comm/communicator.h"
#include "tests/support/forwarding_communicator.h"
#include "tests/support/run_ranks.h"
#include "tests/trainer/data/prepared_corpus.h"
#include "tests/trainer/data/temp_folder.h"
#include "trainer/data/corpus.h"
#include "trainer/data/corpus_shard.h"
#include "trainer/data/line_reader.h"
#include "trainer/data/prepare/file_writer.h"
#include "trainer/data/prepare/parts.h"
#include "trainer/data/prepare/sample_log.h"
#include "trainer/data/prepare/scan.h"

namespace deepnet {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::PrepareSpecOf;
using testing::TempFolder;
using testing::TextPairs;
using testing::UdhrPairs;
using testing::WriteOpus;
using testing::WritePairs;

constexpr char kSpec[] = "opus100_folder: 'opus' tokenizer { vocab_size: 300 } threads: 1 ";

struct Outcome {
  absl::Status status;
  CorpusReport report;  // of rank 0
  std::string progress;
};

Outcome PrepareOn(int ranks, const TempFolder& folder, const std::string& text,
                  const std::string& output, bool extend = false, int64_t block_lines = 64) {
  Outcome outcome;
  const PrepareSpec spec = PrepareSpecOf(text);
  outcome.status = FirstError(RunRanks(ranks, [&](Communicator& world) -> absl::Status {
    const auto say = [&](std::string_view line) { outcome.progress.append(line).append("\n"); };
    const auto report = Prepare(spec, output, folder.path(), say,
                                {.world = &world, .extend = extend, .block_lines = block_lines});
    if (world.rank() == 0 && report.ok()) outcome.report = *report;
    return report.status();
  }));
  return outcome;
}

// Every file that decides the content hash, and the list of blocks.
void ExpectSameFiles(const TempFolder& folder, const std::string& one, const std::string& other) {
  const auto manifest = ReadManifest(folder.Path(one));
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  for (const CorpusFile& file : manifest->files()) {
    EXPECT_EQ(folder.Read(one + "/" + file.name()), folder.Read(other + "/" + file.name()))
        << file.name();
  }
  const auto corpus = Corpus::Open(folder.Path(other));
  ASSERT_TRUE(corpus.ok()) << corpus.status();
  EXPECT_TRUE(corpus->CheckContent().ok());
  for (const InputFile& input : corpus->manifest().inputs()) {
    EXPECT_EQ(input.hash(), *HashFile((fs::path(folder.path()) / input.name()).string()))
        << input.name();
  }
  EXPECT_EQ(corpus->content_hash(), manifest->report().content_hash());
}

// `rounds` times the fixture's pairs, each time with another word in front, and some of them twice.
void WriteLongOpus(const TempFolder& folder, int rounds) {
  WriteOpus(folder);
  for (const auto& [language, pairs] : UdhrPairs()) {
    TextPairs many;
    for (int i = 0; i < rounds; ++i) {
      for (const auto& [english, other] : pairs) {
        many.emplace_back(absl::StrCat("part ", i / 2 * 2, " ", english),
                          absl::StrCat("teil ", i / 2 * 2, " ", other));
      }
    }
    if (language < "en") {
      for (auto& [a, b] : many) std::swap(a, b);
    }
    const std::string first = std::min<std::string>(language, "en");
    const std::string second = std::max<std::string>(language, "en");
    const std::string name = first + "-" + second;
    WritePairs(folder, "opus/" + name + "/opus." + name + "-train", first, second, many);
  }
}

TEST(PrepareOnRanks, GivesTheBytesOfOneProcess) {
  const TempFolder folder;
  WriteLongOpus(folder, 7);
  const Outcome one = PrepareOn(1, folder, kSpec, "one", false, 1 << 18);
  ASSERT_TRUE(one.status.ok()) << one.status;
  EXPECT_GT(one.report.pairs(0).dropped_size(), 0);
  for (const int ranks : {1, 2, 5}) {
    const Outcome many = PrepareOn(ranks, folder, kSpec, absl::StrCat("on", ranks));
    ASSERT_TRUE(many.status.ok()) << many.status;
    ExpectSameFiles(folder, "one", absl::StrCat("on", ranks));
    ASSERT_EQ(many.report.pairs_size(), one.report.pairs_size());
    for (int i = 0; i < one.report.pairs_size(); ++i) {
      EXPECT_EQ(many.report.pairs(i).ShortDebugString(), one.report.pairs(i).ShortDebugString());
    }
    EXPECT_FALSE(fs::exists(folder.Path(absl::StrCat("on", ranks, ".deepnet-unfinished"))));
    EXPECT_FALSE(fs::exists(folder.Path(absl::StrCat("on", ranks, "/.deepnet-scratch"))));
  }
}

// A text of more blocks than ranks need has larger ones, of the same lines.
TEST(PrepareOnRanks, BlocksThatAreJoinedHaveAllLines) {
  const TempFolder folder;
  WriteLongOpus(folder, 60);
  const std::string spec = absl::StrCat(kSpec, "languages: ['de', 'en']");
  ASSERT_TRUE(PrepareOn(1, folder, spec, "one", false, 1 << 18).status.ok());
  const Outcome two =
      PrepareOn(2, folder, absl::StrReplaceAll(spec, {{"threads: 1", "threads: 64"}}), "two");
  ASSERT_TRUE(two.status.ok()) << two.status;
  EXPECT_THAT(two.progress, HasSubstr(" pairs of 128 lines"));
  const std::vector<std::string> cores(2, UsableCoreList());
  const int threads = std::min(64, ThreadsPerRank(cores, cores[0]));
  EXPECT_THAT(two.progress, HasSubstr(absl::StrCat("on 2 x ", threads, " threads")));
  ExpectSameFiles(folder, "one", "two");

  // A line of the second half of one that is changed, as long as it was. The next one has it again.
  fs::copy_file(folder.Path("two/tokenizer.model"), folder.Path("kept.model"));
  const std::string input = "opus/de-en/opus.de-en-train.en";
  std::string text = folder.Read(input);
  size_t line = 0;
  for (int i = 0; i < 122; ++i) line = text.find('\n', line) + 1;
  ASSERT_EQ(text.substr(line, 5), "part ");
  folder.Write(input, text.replace(line, 5, "trap "));
  const std::string kept = "opus100_folder: 'opus' languages: ['de', 'en'] threads: 1 ";
  ASSERT_TRUE(
      PrepareOn(1, folder, kept + "tokenizer { model_file: 'kept.model' }", "changed").status.ok());
  const Outcome extended = PrepareOn(1, folder, spec, "two", /*extend=*/true);
  ASSERT_TRUE(extended.status.ok()) << extended.status;
  EXPECT_THAT(extended.progress, HasSubstr("27 of 29 blocks are encoded already"));
  ExpectSameFiles(folder, "changed", "two");
}

// The first of four is good.
TEST(PrepareOnRanks, AWarningIsOfAllBlocksOfAText) {
  const TempFolder folder;
  TextPairs pairs;
  for (int i = 0; i < 64; ++i)
    pairs.emplace_back(absl::StrCat("eins ", i), absl::StrCat("one ", i));
  pairs.resize(200, {"same", "same"});
  WritePairs(folder, "t", "de", "en", pairs);
  const Outcome outcome =
      PrepareOn(1, folder,
                "tokenizer { vocab_size: 300 } text { source_language: 'de' "
                "target_language: 'en' source_file: 't.de' target_file: 't.en' }",
                "out");
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_THAT(outcome.progress, HasSubstr("warning: de-en, train: 136 of 200 lines are dropped"));
}

TEST(PrepareOnRanks, TablesAreDealtToo) {
  const TempFolder folder;
  const std::string spec =
      absl::StrCat("tokenizer { vocab_size: 300 } table { file: '",
                   fs::absolute(testing::kUdhr).string(), "' languages: 'de' }", " table { file: '",
                   fs::absolute(testing::kUdhr).string(), "' languages: 'fr' }");
  const Outcome one = PrepareOn(1, folder, spec, "one");
  ASSERT_TRUE(one.status.ok()) << one.status;
  std::set<std::string> splits;  // where nothing is said, five percent are dev and as many test
  for (const LanguagePairReport& pair : one.report.pairs()) splits.insert(pair.split());
  EXPECT_THAT(splits, ElementsAre("dev", "test", "train"));
  const Outcome three = PrepareOn(3, folder, spec, "three");
  ASSERT_TRUE(three.status.ok()) << three.status;
  ExpectSameFiles(folder, "one", "three");
}

TEST(PreparePlan, IsBoundByTheLargestPairAndSharesTheRest) {
  const std::vector<int64_t> bytes = {6'000'000'000, 1'000'000'000, 1'000'000'000};
  const PreparePlan one = PlanPreparation(bytes, 1, 1);
  const PreparePlan four = PlanPreparation(bytes, 4, 1);
  EXPECT_DOUBLE_EQ(one.text_bytes, 8e9);
  EXPECT_DOUBLE_EQ(one.shard_bytes, 8e9 * 0.58);
  EXPECT_DOUBLE_EQ(one.scan_seconds, 8e9 / 44e6);  // rates that were measured
  EXPECT_DOUBLE_EQ(one.encode_seconds, 8e9 / 7e6);
  EXPECT_DOUBLE_EQ(one.assemble_seconds, 8e9 / 160e6);
  EXPECT_DOUBLE_EQ(four.encode_seconds, one.encode_seconds / 4);
  EXPECT_DOUBLE_EQ(four.scan_seconds, one.scan_seconds * 6 / 8);
  EXPECT_DOUBLE_EQ(four.assemble_seconds, one.assemble_seconds * 6 / 8);
  EXPECT_DOUBLE_EQ(PlanPreparation(bytes, 2, 2).encode_seconds, four.encode_seconds);
}

TEST(PreparePlan, CompressedTextIsTakenForThreeTimesItsBytes) {
  const TempFolder folder;
  std::vector<LanguagePairTexts> texts;
  for (const char* end : {"", ".gz", ".zst"}) {
    ParallelFiles files;
    files.first_file = folder.Write(absl::StrCat("a", end), std::string(100, 'x'));
    files.second_file = folder.Write(absl::StrCat("b", end), std::string(50, 'x'));
    texts.emplace_back().train.push_back(files);
  }
  EXPECT_THAT(TrainingBytes(texts), ElementsAre(150, 450, 450));
}

TEST(PrepareOnRanks, ADryRunSaysThePlanAndWritesNothing) {
  const TempFolder folder;
  WriteOpus(folder);
  std::string progress;
  const auto say = [&](std::string_view line) { progress.append(line).append("\n"); };
  ASSERT_TRUE(Prepare(PrepareSpecOf(kSpec), "out", folder.path(), say, {.dry_run = true}).ok());
  EXPECT_THAT(progress,
              AllOf(HasSubstr("GB of training text of 3 language pairs; shards of about "),
                    HasSubstr("on 1 x 1 threads, and a tokenizer\n"),
                    HasSubstr("on 1 rank of a thread: "), HasSubstr("on 64 ranks of a thread: ")));
  EXPECT_THAT(progress, Not(HasSubstr("prepare.table")));
  EXPECT_FALSE(fs::exists(folder.Path("out.deepnet-unfinished")) || fs::exists(folder.Path("out")));

  const std::string table =
      absl::StrCat("table { file: '", fs::absolute(testing::kUdhr).string(), "' languages: 'de' }");
  ASSERT_TRUE(Prepare(PrepareSpecOf(table), "out", folder.path(), say, {.dry_run = true}).ok());
  EXPECT_THAT(progress, HasSubstr("prepare.table: not counted"));
}

TEST(PrepareOnRanks, AnErrorOfOneRankNamesFileAndLine) {
  const TempFolder folder;
  WriteOpus(folder);
  std::ofstream(folder.Path("opus/en-ru/opus.en-ru-train.ru"), std::ios::app) << "one more\n";
  const Outcome outcome = PrepareOn(3, folder, kSpec, "out");
  EXPECT_THAT(std::string(outcome.status.message()),
              HasSubstr("opus.en-ru-train.en ends after line 40"));
  EXPECT_EQ(GetExitCode(outcome.status), ExitCode::kData);
  EXPECT_FALSE(fs::exists(folder.Path("out")));

  // Rank 0, which has the only pair, deletes nothing: others may still work there.
  PrepareOn(2, folder, absl::StrCat(kSpec, "languages: ['en', 'ru']"), "other");
  EXPECT_TRUE(fs::exists(folder.Path("other.deepnet-unfinished")));
}

TEST(PrepareOnRanks, AnErrorThatAllRanksSeeIsAgreed) {
  const TempFolder folder;
  WriteOpus(folder);
  folder.Write("out/thesis.txt", "years of work");
  for (const char* spec : {"opus100_folder: 'nothing'", kSpec}) {
    std::vector<absl::Status> statuses = RunRanks(2, [&](Communicator& world) {
      return Prepare(PrepareSpecOf(spec), "out", folder.path(), {}, {.world = &world}).status();
    });
    for (const absl::Status& status : statuses) {
      EXPECT_TRUE(IsAgreed(status)) << status;
      EXPECT_EQ(GetExitCode(status), ExitCode::kData);
    }
  }
}

TEST(PrepareOnRanks, RanksThatSeeOtherInputAreRefused) {
  const TempFolder folder;
  const std::string spec =
      "text { source_language: 'de' target_language: 'en' source_file: 't.de' target_file: 't.en' "
      "}";
  WritePairs(folder, "0/t", "de", "en", {{"eins", "one"}});
  WritePairs(folder, "1/t", "de", "en", {{"eins", "one or more"}});
  std::vector<absl::Status> statuses = RunRanks(2, [&](Communicator& world) {
    const std::string root = folder.Path(absl::StrCat(world.rank()));
    return Prepare(PrepareSpecOf(spec), folder.Path("out"), root, {}, {.world = &world}).status();
  });
  for (const absl::Status& status : statuses) {
    EXPECT_THAT(std::string(status.message()), HasSubstr("list of input files")) << status;
  }
  EXPECT_FALSE(fs::exists(folder.Path("out")));
}

TEST(PreparedParts, WhatWasFinishedBeforeAnErrorIsNotDoneAgain) {
  const TempFolder folder;
  WriteLongOpus(folder, 4);
  const std::string file = "opus/en-ru/opus.en-ru-train.ru";
  const std::string right = folder.Read(file);
  folder.Write(file, right + "one more\n");
  EXPECT_FALSE(PrepareOn(1, folder, kSpec, "out").status.ok());
  const std::string unfinished = "out.deepnet-unfinished/.deepnet-scratch/" + UnusedName();
  folder.Write(unfinished, "of a process that was killed");
  EXPECT_FALSE(PrepareOn(1, folder, kSpec, "out").status.ok());
  EXPECT_FALSE(fs::exists(folder.Path(unfinished)));
  folder.Write(file, right);
  const Outcome again = PrepareOn(1, folder, kSpec, "out");
  ASSERT_TRUE(again.status.ok()) << again.status;
  EXPECT_THAT(again.progress,
              AllOf(HasSubstr("scanned before: de-en"), Not(HasSubstr("scanned before: en-ru"))));
  ASSERT_TRUE(PrepareOn(1, folder, kSpec, "fresh").status.ok());
  ExpectSameFiles(folder, "fresh", "out");
}

// A preparation that is over but for the last renaming, as far as its parts go.
void KeepScratch(const TempFolder& folder, const std::string& spec) {
  const fs::path saved = folder.Path("saved");
  std::error_code ignored;
  const auto say = [&](std::string_view line) {
    if (line.find("encoded ") == line.npos) return;
    fs::remove_all(saved, ignored);
    fs::copy(folder.Path("out.deepnet-unfinished"), saved, fs::copy_options::recursive);
  };
  ASSERT_TRUE(Prepare(PrepareSpecOf(spec), "out", folder.path(), say, {.block_lines = 64}).ok());
  fs::remove_all(folder.Path("out"));
  fs::rename(saved, folder.Path("out.deepnet-unfinished"));
}

TEST(PreparedParts, AnInterruptedPreparationFindsScansTokenizerAndBlocks) {
  const TempFolder folder;
  WriteLongOpus(folder, 4);
  ASSERT_TRUE(PrepareOn(1, folder, kSpec, "fresh").status.ok());
  KeepScratch(folder, kSpec);
  const Outcome again = PrepareOn(3, folder, kSpec, "out");
  ASSERT_TRUE(again.status.ok()) << again.status;
  EXPECT_THAT(again.progress, AllOf(HasSubstr("learned the tokenizer before"),
                                    HasSubstr("12 of 12 blocks are encoded already"),
                                    Not(HasSubstr("encoded de"))));
  ExpectSameFiles(folder, "fresh", "out");
}

// The same number of bytes, at another time.
TEST(PreparedParts, AnInputThatHasChangedSinceIsScannedAgain) {
  const TempFolder folder;
  WriteLongOpus(folder, 4);
  KeepScratch(folder, kSpec);
  const std::string input = "opus/de-en/opus.de-en-train.en";
  std::string text = folder.Read(input);
  const size_t word = text.find("Everyone");
  ASSERT_NE(word, text.npos);
  folder.Write(input, text.replace(word, 8, "Somebody"));
  ASSERT_TRUE(PrepareOn(1, folder, kSpec, "fresh").status.ok());
  ASSERT_TRUE(PrepareOn(2, folder, kSpec, "out").status.ok());
  ExpectSameFiles(folder, "fresh", "out");
}

// Damages pairs, bits, and the notes that say what they are.
TEST(PreparedParts, ADamagedPartIsMadeAgain) {
  const TempFolder folder;
  WriteLongOpus(folder, 4);
  ASSERT_TRUE(PrepareOn(1, folder, kSpec, "fresh").status.ok());
  for (const bool notes : {false, true}) {
    fs::remove_all(folder.Path("out"));
    KeepScratch(folder, kSpec);
    int damaged = 0;
    for (const auto& entry :
         fs::directory_iterator(folder.Path("out.deepnet-unfinished/.deepnet-scratch"))) {
      const std::string name =
          "out.deepnet-unfinished/.deepnet-scratch/" + entry.path().filename().string();
      const std::string end = entry.path().extension();
      if (notes ? end != ".part" : end != ".pairs" && end != ".bits") continue;
      std::string bytes = folder.Read(name);
      bytes[bytes.size() / 2] ^= 1;
      folder.Write(name, bytes);
      ++damaged;
    }
    EXPECT_EQ(damaged, notes ? 16 : 15);
    const Outcome again = PrepareOn(2, folder, kSpec, "out");
    ASSERT_TRUE(again.status.ok()) << again.status;
    EXPECT_THAT(again.progress, Not(HasSubstr("encoded already")));
    ExpectSameFiles(folder, "fresh", "out");
  }
}

TEST(PreparedParts, APartOfOtherCleaningIsMadeAgain) {
  const TempFolder folder;
  WriteLongOpus(folder, 4);
  const std::string other = absl::StrCat(kSpec, "cleaning { max_sentence_tokens: 60 }");
  ASSERT_TRUE(PrepareOn(1, folder, other, "fresh").status.ok());
  KeepScratch(folder, kSpec);
  const Outcome again = PrepareOn(2, folder, other, "out");
  ASSERT_TRUE(again.status.ok()) << again.status;
  ExpectSameFiles(folder, "fresh", "out");
}

// The scan of before judged by another threshold.
TEST(PreparedParts, AnotherThresholdIsAnotherScan) {
  const TempFolder folder;
  WriteOpus(folder);
  std::string scores;
  for (int i = 0; i < 40; ++i) absl::StrAppend(&scores, i, "\n");
  folder.Write("scores", scores);
  const auto spec = [](int threshold) {
    return absl::StrCat(
        "tokenizer { vocab_size: 300 } threads: 1 text { source_language: 'de' ",
        "target_language: 'en' source_file: 'opus/de-en/opus.de-en-train.de' target_file: ",
        "'opus/de-en/opus.de-en-train.en' score_file: 'scores' score_threshold: ", threshold, " }");
  };
  ASSERT_TRUE(PrepareOn(1, folder, spec(5), "fresh").status.ok());
  KeepScratch(folder, spec(2));
  const Outcome again = PrepareOn(1, folder, spec(5), "out");
  ASSERT_TRUE(again.status.ok()) << again.status;
  EXPECT_THAT(again.progress, Not(HasSubstr("scanned before")));
  ExpectSameFiles(folder, "fresh", "out");

  // As are other scores.
  for (const char* output : {"out", "fresh"}) fs::remove_all(folder.Path(output));
  KeepScratch(folder, spec(5));
  folder.Write("scores", "0\n" + scores.substr(0, scores.size() - 3));
  ASSERT_TRUE(PrepareOn(1, folder, spec(5), "fresh").status.ok());
  ASSERT_TRUE(PrepareOn(1, folder, spec(5), "out").status.ok());
  ExpectSameFiles(folder, "fresh", "out");
}

// Each setting changes with the same training text: with the scan of before, blocks of before would
// be found too.
TEST(PreparedParts, AScanOfOtherSettingsIsMadeAgain) {
  const TempFolder folder;
  const TextPairs pairs = UdhrPairs()["de"];
  std::string rows = "of __xx__\tvon __xx__\n";
  for (const auto& [english, german] : pairs) absl::StrAppend(&rows, english, "\t", german, "\n");
  absl::StrAppend(&rows, pairs[3].first, "\t", pairs[3].second, "\n");  // a duplicate
  folder.Write("t.tsv", rows);
  WritePairs(folder, "test", "en", "de", {pairs[7]});
  WritePairs(folder, "more", "en", "xx", {pairs[9]});
  const std::string learned = "tokenizer { vocab_size: 300 input_sentence_size: 40 } threads: 1 ";
  const auto text = [](const std::string& source, const std::string& target,
                       const std::string& files) {
    return absl::StrCat("text { source_language: '", source, "' target_language: '", target, "' ",
                        files, " } ");
  };
  const std::string before = learned + text("en", "de", "tsv_file: 't.tsv'");
  const std::string test = "source_file: 'test.en' target_file: 'test.de' split: 'test'";
  ASSERT_TRUE(PrepareOn(1, folder, before, "given").status.ok());
  const std::string given = "tokenizer { model_file: 'given/tokenizer.model' } threads: 1 " +
                            text("en", "de", "tsv_file: 't.tsv'");
  for (const auto& [first, after] :
       {std::pair(before, before + "seed: 5"),
        {before, before + text("en", "de", test)},
        {before, before + text("en", "xx", "source_file: 'more.en' target_file: 'more.xx'")},
        {before, before + "cleaning { keep_duplicates: true }"},
        {given, before},
        {before, learned + text("de", "en", "tsv_file: 't.tsv'")}}) {
    for (const char* output : {"out", "fresh"}) fs::remove_all(folder.Path(output));
    ASSERT_TRUE(PrepareOn(1, folder, after, "fresh").status.ok());
    KeepScratch(folder, first);
    const Outcome again = PrepareOn(1, folder, after, "out");
    ASSERT_TRUE(again.status.ok()) << again.status;
    EXPECT_THAT(again.progress, Not(HasSubstr("scanned before: de-en\n"))) << after;
    ExpectSameFiles(folder, "fresh", "out");
  }

  // The tokenizer's rules, of the same scans.
  for (const char* output : {"out", "fresh"}) fs::remove_all(folder.Path(output));
  const std::string with_rules =
      "tokenizer { vocab_size: 300 normalization: 'rules' } threads: 1 " +
      text("en", "de", "tsv_file: 't.tsv'");
  folder.Write("rules", "65\t45\n");  // e to E
  KeepScratch(folder, with_rules);
  folder.Write("rules", "65\t46\n");
  ASSERT_TRUE(PrepareOn(1, folder, with_rules, "fresh").status.ok());
  const Outcome again = PrepareOn(1, folder, with_rules, "out");
  ASSERT_TRUE(again.status.ok()) << again.status;
  EXPECT_THAT(again.progress, HasSubstr("scanned before: de-en\n"));
  ExpectSameFiles(folder, "fresh", "out");
}

// The new language's test set has a sentence of one block of de-en, and its dev set none.
TEST(PreparedParts, ALanguageAddedLaterReusesTokenizerAndBlocks) {
  const TempFolder folder;
  WriteLongOpus(folder, 4);
  const std::string two = absl::StrCat(kSpec, "languages: ['de', 'en', 'fr']");
  ASSERT_TRUE(PrepareOn(1, folder, two, "out").status.ok());
  WritePairs(folder, "opus/en-ru/opus.en-ru-test", "en", "ru",
             {{"part 0 " + UdhrPairs()["de"][3].first, "\u0434\u0430"}});
  fs::copy_file(folder.Path("out/tokenizer.model"), folder.Path("kept.model"));
  ASSERT_TRUE(PrepareOn(1, folder,
                        absl::StrCat("opus100_folder: 'opus' threads: 1 ",
                                     "tokenizer { model_file: 'kept.model' }"),
                        "fresh")
                  .status.ok());
  EXPECT_THAT(std::string(PrepareOn(1, folder, kSpec, "out").status.message()),
              HasSubstr("--extend"));
  const Outcome extended = PrepareOn(2, folder, kSpec, "out", /*extend=*/true);
  ASSERT_TRUE(extended.status.ok()) << extended.status;
  // Four blocks a pair; of de-en and of en-fr the first ones have the sentence.
  EXPECT_THAT(extended.progress, AllOf(HasSubstr("6 of 12 blocks are encoded already"),
                                       HasSubstr("encoded de-en from line 1:"),
                                       Not(HasSubstr("encoded de-en from line 129:"))));
  ExpectSameFiles(folder, "fresh", "out");
  EXPECT_TRUE(PrepareOn(2, folder, kSpec, "out").report.reused());
}

// The texts that stay are in the earlier shard, which holds another's too.
TEST(PreparedParts, ATextThatIsTakenAwayIsNoLongerInItsPair) {
  const TempFolder folder;
  const auto texts = [](int count) {
    std::string spec = "tokenizer { model_file: 'kept.model' } threads: 1 ";
    for (int i = 0; i < count; ++i) {
      absl::StrAppend(&spec, "text { source_language: 'de' target_language: 'en' source_file: 't",
                      i, ".de' target_file: 't", i, ".en' } ");
    }
    return spec;
  };
  const TextPairs all = UdhrPairs()["de"];
  for (int i = 0; i < 3; ++i) {
    const TextPairs part(all.begin() + 10 * i, all.begin() + 10 * i + 10);
    WritePairs(folder, absl::StrCat("t", i), "de", "en", part);
  }
  WriteOpus(folder);
  ASSERT_TRUE(PrepareOn(1, folder, kSpec, "opus-out").status.ok());
  fs::copy_file(folder.Path("opus-out/tokenizer.model"), folder.Path("kept.model"));
  ASSERT_TRUE(PrepareOn(1, folder, texts(2), "out").status.ok());
  ASSERT_TRUE(PrepareOn(1, folder, texts(1), "fresh").status.ok());
  const Outcome fewer = PrepareOn(2, folder, texts(1), "out", /*extend=*/true);
  ASSERT_TRUE(fewer.status.ok()) << fewer.status;
  ExpectSameFiles(folder, "fresh", "out");

  // Neither is a damaged pair taken over into one that has the right hashes.
  std::string shard = folder.Read("out/train.de-en.pairs");
  shard[kShardDataOffset + 9] ^= 1;
  folder.Write("out/train.de-en.pairs", shard);
  ASSERT_TRUE(PrepareOn(1, folder, texts(3), "fresh-3").status.ok());
  const Outcome damaged = PrepareOn(2, folder, texts(3), "out", /*extend=*/true);
  ASSERT_TRUE(damaged.status.ok()) << damaged.status;
  EXPECT_THAT(damaged.progress, HasSubstr("train.de-en.pairs of the earlier corpus is damaged"));
  ExpectSameFiles(folder, "fresh-3", "out");

  // Neither is the last of its blocks where the shard, whole by its hashes, ends before that.
  {
    const auto corpus = Corpus::Open(folder.Path("fresh-3"));
    ASSERT_TRUE(corpus.ok()) << corpus.status();
    auto shorter =
        ShardWriter::Create(folder.Path("out/train.de-en.pairs"), corpus->vocabulary().size());
    ASSERT_TRUE(shorter.ok()) << shorter.status();
    for (int64_t i = 0; i < corpus->directions()[0].num_pairs - 1; ++i) {
      const PairTokens pair = corpus->Tokens(0, i);
      ASSERT_TRUE((*shorter)->Add(pair.source, pair.target).ok());
    }
    ASSERT_TRUE((*shorter)->Finish().ok());
  }
  const Outcome cut = PrepareOn(1, folder, texts(3), "out", /*extend=*/true);
  ASSERT_TRUE(cut.status.ok()) << cut.status;
  EXPECT_THAT(cut.progress, HasSubstr("train.de-en.pairs of the earlier corpus is damaged"));
  ExpectSameFiles(folder, "fresh-3", "out");

  // Neither is a pair of which the test set has a sentence now.
  const std::string held =
      texts(3) + "text { source_language: 'de' target_language: 'en' source_file: 'test.de' " +
      "target_file: 'test.en' split: 'test' } ";
  WritePairs(folder, "test", "de", "en", {all[25]});
  ASSERT_TRUE(PrepareOn(1, folder, held, "fresh-held").status.ok());
  const Outcome without = PrepareOn(1, folder, held, "out", /*extend=*/true);
  ASSERT_TRUE(without.status.ok()) << without.status;
  EXPECT_EQ(without.report.kept(), damaged.report.kept() - 1);
  ExpectSameFiles(folder, "fresh-held", "out");

  // A pair of the second text that the first one has now too is a duplicate there.
  ASSERT_TRUE(PrepareOn(1, folder, texts(2), "out", /*extend=*/true).status.ok());
  WritePairs(folder, "t0", "de", "en", {all[0], all[12]});
  ASSERT_TRUE(PrepareOn(1, folder, texts(2), "fresh-2").status.ok());
  const Outcome repeated = PrepareOn(2, folder, texts(2), "out", /*extend=*/true);
  ASSERT_TRUE(repeated.status.ok()) << repeated.status;
  EXPECT_EQ(repeated.report.kept(), 11);
  ExpectSameFiles(folder, "fresh-2", "out");

  // A sentence that another has taken the place of is not in the corpus any more.
  WritePairs(folder, "t0", "de", "en", {all[0], all[40]});
  ASSERT_TRUE(PrepareOn(1, folder, texts(2), "out", /*extend=*/true).status.ok());
  WritePairs(folder, "t0", "de", "en", {all[0], all[41]});
  ASSERT_TRUE(PrepareOn(1, folder, texts(2), "fresh-other").status.ok());
  ASSERT_TRUE(PrepareOn(1, folder, texts(2), "out", /*extend=*/true).status.ok());
  ExpectSameFiles(folder, "fresh-other", "out");

  // A text that is named twice, to be met more often, is two parts of one key.
  const std::string twice =
      texts(1) + texts(1).substr(texts(1).find("text {")) + "cleaning { keep_duplicates: true } ";
  ASSERT_TRUE(PrepareOn(1, folder, twice, "twice").status.ok());
  const Outcome extended = PrepareOn(1, folder, twice + "seed: 2", "twice", /*extend=*/true);
  ASSERT_TRUE(extended.status.ok()) << extended.status;
  EXPECT_THAT(extended.progress, Not(HasSubstr("damaged")));
}

// It was whole when it was looked through. Where it is all of a new shard, that is a link to it.
TEST(PreparedParts, AnEarlierShardThatIsDamagedMeanwhileIsNotTakenOver) {
  const TempFolder folder;
  WriteOpus(folder);
  WritePairs(folder, "more", "de", "en", {{"eins", "one"}, {"zwei", "two"}});
  const std::string before = absl::StrCat(kSpec, "languages: ['de', 'en'] ");
  const std::string copied =
      before + "text { source_language: 'de' target_language: 'en' source_file: 'more.de' " +
      "target_file: 'more.en' }";
  for (const std::string& after : {copied, std::string(kSpec)}) {
    fs::remove_all(folder.Path("out"));
    ASSERT_TRUE(PrepareOn(1, folder, before, "out").status.ok());
    std::string bad = folder.Read("out/train.de-en.pairs");
    bad[kShardDataOffset + 9] ^= 1;
    const auto say = [&](std::string_view line) {
      if (line.find("encoded ") != line.npos) folder.Write("out/train.de-en.pairs", bad);
    };
    const absl::Status status = Prepare(PrepareSpecOf(after), "out", folder.path(), say,
                                        {.extend = true, .block_lines = 64})
                                    .status();
    EXPECT_EQ(GetExitCode(status), ExitCode::kData) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("out/train.de-en.pairs: damaged"));
  }
}

TEST(PreparedParts, ALineThatIsDroppedInAnotherPlaceIsNamedThere) {
  const TempFolder folder;
  const std::string spec =
      "tokenizer { vocab_size: 300 } text { source_language: 'de' target_language: 'en' "
      "source_file: 't.de' target_file: 't.en' }";
  TextPairs pairs = {{"eins", "one"}, {"", "two"}, {"drei", "three"}};
  for (const char* line : {":2", ":3"}) {
    WritePairs(folder, "t", "de", "en", pairs);
    const Outcome outcome = PrepareOn(1, folder, spec, "out", /*extend=*/true);
    ASSERT_TRUE(outcome.status.ok()) << outcome.status;
    EXPECT_EQ(outcome.report.pairs(0).dropped(0).example(), folder.Path("t.de") + line);
    std::swap(pairs[1], pairs[2]);
  }
}

TEST(PreparedParts, ACorpusBetweenItsTwoRenamingsIsFound) {
  const TempFolder folder;
  WriteOpus(folder);
  ASSERT_TRUE(PrepareOn(1, folder, kSpec, "out").status.ok());
  fs::create_directories(folder.Path("out.deepnet-unfinished/.deepnet-scratch"));
  fs::rename(folder.Path("out"), folder.Path("out.deepnet-unfinished/.deepnet-scratch/replaced"));
  const Outcome again = PrepareOn(1, folder, kSpec, "out");
  EXPECT_TRUE(again.report.reused()) << again.status;
}

TEST(PreparedParts, AreClaimedByOneRankEach) {
  const TempFolder folder;
  const PartStore parts(folder.path());
  std::array<int, 40> claims = {};  // of each part
  std::mutex mutex;
  const auto claim = [&](Communicator&) -> absl::Status {
    for (size_t i = 0; i < claims.size(); ++i) {
      ASSIGN_OR_RETURN(const bool is_mine, parts.Claim(absl::StrCat(i)));
      const std::lock_guard lock(mutex);
      claims[i] += is_mine ? 1 : 0;
    }
    return absl::OkStatus();
  };
  EXPECT_TRUE(FirstError(RunRanks(4, claim)).ok());
  EXPECT_THAT(claims, Each(1));
  EXPECT_FALSE(PartStore(folder.Path("none")).Claim("0").ok());
}

// A rank that another job left goes on writing the file that it has open.
TEST(PreparedParts, AreNotWrittenIntoAFileOfThatName) {
  const TempFolder folder;
  WriteLongOpus(folder, 4);
  ASSERT_TRUE(PrepareOn(1, folder, kSpec, "fresh").status.ok());
  KeepScratch(folder, kSpec);
  fs::create_directory(folder.Path("opened"));
  std::vector<fs::path> opened;
  const fs::path scratch = folder.Path("out.deepnet-unfinished/.deepnet-scratch");
  for (const auto& entry : fs::directory_iterator(scratch)) {
    const fs::path& path = entry.path();
    if (path.extension() == ".part") fs::remove(path);
    if (path.extension() != ".pairs" && path.extension() != ".bits") continue;
    opened.push_back(fs::path(folder.Path("opened")) / path.filename());
    fs::create_hard_link(path, opened.back());
  }
  EXPECT_EQ(opened.size(), 15);
  int compared = 0;
  const auto say = [&](std::string_view line) {
    if (line.find("encoded ") == line.npos || compared > 0) return;
    for (const fs::path& path : opened) {
      std::ofstream(path, std::ios::app) << "more";
      ++compared;
    }
  };
  ASSERT_TRUE(Prepare(PrepareSpecOf(kSpec), "out", folder.path(), say, {.block_lines = 64}).ok());
  EXPECT_EQ(compared, 15);
  ExpectSameFiles(folder, "fresh", "out");
}

int NumClaims(const TempFolder& folder) {
  int claims = 0;
  std::error_code none;  // iterates over nothing
  for (const auto& entry :
       fs::directory_iterator(folder.Path("out.deepnet-unfinished/.deepnet-scratch"), none)) {
    claims += entry.path().extension() == kClaimEnd ? 1 : 0;
  }
  return claims;
}

// Calls `before` before each collective.
class Watched final : public ForwardingCommunicator {
 public:
  Watched(Communicator& inner, std::function<void()> before)
      : ForwardingCommunicator(inner), before_(std::move(before)) {}
  TransferOr AllGather(Buffer mine, std::span<const Buffer> all) override {
    before_();
    return inner().AllGather(mine, all);
  }

 private:
  const std::function<void()> before_;
};

TEST(PreparedParts, AreTakenFromARankThatIsSlow) {
  const TempFolder folder;
  WriteLongOpus(folder, 4);
  ASSERT_TRUE(PrepareOn(1, folder, kSpec, "one").status.ok());
  // Rank 0 does nothing more after its first block until rank 1 is through with its own and others.
  absl::Notification rank1_is_through;
  int claims = 0;
  const auto say = [&](std::string_view line) {
    if (line.find("encoded ") == line.npos || claims > 0) return;
    rank1_is_through.WaitForNotificationWithTimeout(absl::Minutes(1));
    claims = NumClaims(folder);
  };
  const auto notify = [&] {
    if (NumClaims(folder) > 0 && !rank1_is_through.HasBeenNotified()) rank1_is_through.Notify();
  };
  const absl::Status status = FirstError(RunRanks(2, [&](Communicator& world) {
    Watched watched(world, notify);
    return Prepare(PrepareSpecOf(kSpec), "out", folder.path(), say,
                   {.world = world.rank() == 1 ? &watched : &world, .block_lines = 64})
        .status();
  }));
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(claims, 12);
  ExpectSameFiles(folder, "one", "out");
}

TEST(PreparedParts, AreTriedInTheOrderOfTheirRankThenFromTheEnd) {
  EXPECT_THAT(ClaimOrder({0, 1, 0, 2, 1}, 1), ElementsAre(1, 4, 3, 2, 0));
  EXPECT_THAT(ClaimOrder({}, 1), ElementsAre());
}

TEST(PreparedParts, AreDealtLargestFirstToWhoHasLeast) {
  EXPECT_THAT(Deal(std::vector<int64_t>{1, 5, 3, 3, 2}, 2), ElementsAre(1, 0, 1, 1, 0));
  EXPECT_THAT(Deal(std::vector<int64_t>{4, 4}, 3), ElementsAre(0, 1));
  EXPECT_THAT(Deal({}, 3), ElementsAre());
}

TEST(FileWriter, AWriteThatFailedIsNotForgotten) {
  const TempFolder folder;
  signal(SIGXFSZ, SIG_IGN);
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  auto writer = FileWriter::Create(folder.path(), "file");
  ASSERT_TRUE(writer.ok()) << writer.status();
  const rlimit little = {.rlim_cur = 1000, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &little), 0);
  EXPECT_FALSE((*writer)->Append(std::string(1 << 20, 'x')));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_THAT(std::string((*writer)->Finish().status().message()),
              HasSubstr("cannot write " + folder.Path("file")));
}

// Sentences of three pairs, in an order and of lengths that make samples shrink often.
struct Stream {
  std::array<std::string, 2> languages;
  std::vector<std::string> sentences;  // of either side in turn
};

std::vector<Stream> RandomStreams(std::mt19937& random, const std::vector<int>& sizes) {
  std::vector<Stream> streams;
  for (const int size : sizes) {
    streams.push_back({{"en", absl::StrCat("x", streams.size())}, {}});
    for (int i = 0; i < 2 * size; ++i) {
      streams.back().sentences.push_back(
          absl::StrCat("sentence ", random() % 5000, std::string(random() % 40, 'a')));
    }
  }
  return streams;
}

// Returns the sample that logs give, and how many of them left too much out.
std::vector<std::string> ByLogs(const TempFolder& folder, const std::vector<Stream>& streams,
                                const SentenceSampleSpec& spec, int* num_incomplete) {
  SentenceSample sample(spec);
  for (const Stream& stream : streams) {
    SampleLog log(FileWriter::Create(folder.path(), "log").value(), spec, stream.languages);
    const auto add = [&](size_t i, auto&& to) { to(static_cast<int>(i % 2), stream.sentences[i]); };
    for (size_t i = 0; i < stream.sentences.size(); ++i) {
      add(i, [&](int side, const std::string& text) { log.Add(side, text); });
    }
    EXPECT_TRUE(log.Finish().ok());
    const auto replay = ReplaySample(folder.Path("log"), stream.languages, &sample);
    EXPECT_TRUE(replay.ok()) << replay.status();
    if (replay->complete) continue;
    ++*num_incomplete;
    for (auto i = static_cast<size_t>(replay->num_added); i < stream.sentences.size(); ++i) {
      sample.Add(stream.languages[i % 2], stream.sentences[i]);
    }
  }
  return sample.Take();
}

TEST(SampleLog, GivesTheSampleOfOneReaderWhateverTheOrderAndSizes) {
  const TempFolder folder;
  std::mt19937 random(7);
  for (int round = 0; round < 60; ++round) {
    SentenceSampleSpec spec;
    spec.max_sentences = 20 + static_cast<int64_t>(random() % 200);
    spec.max_bytes = 2000 + static_cast<int64_t>(random() % 20000);
    std::vector<int> sizes;
    for (int i = 0; i < 4; ++i) sizes.push_back(static_cast<int>(random() % 1500));
    const std::vector<Stream> streams = RandomStreams(random, sizes);
    SentenceSample direct(spec);
    for (const Stream& stream : streams) {
      for (size_t i = 0; i < stream.sentences.size(); ++i) {
        direct.Add(stream.languages[i % 2], stream.sentences[i]);
      }
    }
    int num_incomplete = 0;
    EXPECT_EQ(ByLogs(folder, streams, spec, &num_incomplete), direct.Take()) << round;
  }
}

TEST(SampleLog, HoldsSentencesOfAnyLengthThatALineHas) {
  const TempFolder folder;
  SampleLog log(FileWriter::Create(folder.path(), "log").value(), {}, {"de", "en"});
  const std::string longest(LineReader::kMaxLineBytes, 'x');
  log.Add(0, longest);
  log.Add(1, "");
  ASSERT_TRUE(log.Finish().ok());
  SentenceSample sample{SentenceSampleSpec()};
  const auto replay = ReplaySample(folder.Path("log"), {"de", "en"}, &sample);
  ASSERT_TRUE(replay.ok()) << replay.status();
  EXPECT_TRUE(replay->complete);
  EXPECT_EQ(replay->num_added, 2);
  EXPECT_TRUE(sample.Take() == (std::vector<std::string>{longest, ""}));
}

TEST(SampleLog, ReplayNoticesThatTooMuchWasLeftOut) {
  const TempFolder folder;
  std::mt19937 random(7);
  const std::vector<Stream> streams = RandomStreams(random, {3000});
  SentenceSampleSpec small;
  small.max_sentences = 10;
  SampleLog log(FileWriter::Create(folder.path(), "log").value(), small, streams[0].languages);
  for (size_t i = 0; i < streams[0].sentences.size(); ++i) {
    log.Add(static_cast<int>(i % 2), streams[0].sentences[i]);
  }
  ASSERT_TRUE(log.Finish().ok());
  SentenceSample large{SentenceSampleSpec()};
  const auto replay = ReplaySample(folder.Path("log"), streams[0].languages, &large);
  ASSERT_TRUE(replay.ok()) << replay.status();
  EXPECT_FALSE(replay->complete);
  EXPECT_LT(replay->num_added, 100);
  std::string bytes = folder.Read("log");
  folder.Write("log", bytes.substr(0, bytes.size() - 1));
  SentenceSample again(small);
  EXPECT_FALSE(ReplaySample(folder.Path("log"), streams[0].languages, &again).ok());
}

}  // namespace
}  // namespace deepnet

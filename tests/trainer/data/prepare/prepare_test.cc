#include "trainer/data/prepare/prepare.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "parallel/base/exit_code.h"
#include "parallel/comm/agreement.h"
#include "tests/support/run_ranks.h"
#include "tests/support/thread_limit.h"
#include "tests/trainer/data/prepared_corpus.h"
#include "tests/trainer/data/temp_folder.h"
#include "trainer/data/corpus.h"
#include "trainer/data/corpus_manifest.h"
#include "trainer/data/corpus_shard.h"
#include "trainer/data/line_reader.h"

namespace {
int flock_error = 0;  // what flock fails with; 0: it works
int link_error = 0;   // likewise
int links_refused = 0;
std::string no_rename_to;  // the path at which rename fails

// Identifies what a descriptor or a path leads to: a file with its size, or a folder.
using Identity = std::pair<ino_t, off_t>;
Identity IdentityOf(const struct stat& status) {
  return {status.st_ino, S_ISDIR(status.st_mode) ? -1 : status.st_size};
}

// These were given to fsync, in order: since something was renamed to `renamed_to`, and before.
std::mutex synced_mutex;
std::vector<Identity> synced, synced_before;
std::string renamed_to;
}  // namespace

// Stands before the C library's.
extern "C" int flock(int file, int operation) noexcept {
  if (flock_error == 0) return static_cast<int>(syscall(SYS_flock, file, operation));
  errno = flock_error;
  return -1;
}

extern "C" int link(const char* from, const char* to) noexcept {
  if (link_error == 0) return linkat(AT_FDCWD, from, AT_FDCWD, to, 0);
  ++links_refused;
  errno = link_error;
  return -1;
}

extern "C" int fsync(int file) {
  struct stat status = {};
  const std::lock_guard lock(synced_mutex);
  if (fstat(file, &status) == 0) synced.push_back(IdentityOf(status));
  return static_cast<int>(syscall(SYS_fsync, file));
}

extern "C" int rename(const char* from, const char* to) noexcept {
  if (renamed_to == to) {
    const std::lock_guard lock(synced_mutex);
    synced_before = std::exchange(synced, {});
  }
  if (no_rename_to != to) return renameat(AT_FDCWD, from, AT_FDCWD, to);
  errno = EIO;
  return -1;
}

namespace deepnet {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using testing::kUdhr;
using ::testing::Not;
using testing::PrepareIn;
using testing::TempFolder;
using testing::TextPairs;
using testing::WriteOpus;
using testing::WritePairs;

// Lines dropped for `reason`; 0 if the report does not have it.
int64_t Dropped(const LanguagePairReport& pair, std::string_view reason) {
  for (const DropCount& drop : pair.dropped()) {
    if (drop.reason() == reason) return drop.lines();
  }
  return 0;
}

const LanguagePairReport& PairOf(const CorpusReport& report, const std::string& split,
                                 const std::string& first, const std::string& second) {
  for (const LanguagePairReport& pair : report.pairs()) {
    if (pair.split() == split && pair.first_language() == first &&
        pair.second_language() == second) {
      return pair;
    }
  }
  ADD_FAILURE() << "no " << split << " " << first << "-" << second;
  return LanguagePairReport::default_instance();
}

void ExpectCountsAddUp(const CorpusReport& report) {
  for (const LanguagePairReport& pair : report.pairs()) {
    int64_t sum = pair.kept();
    for (const DropCount& drop : pair.dropped()) sum += drop.lines();
    EXPECT_EQ(sum, pair.lines()) << pair.ShortDebugString();
  }
}

void WriteGzip(const std::string& path, const std::string& text) {
  const gzFile file = gzopen(path.c_str(), "wb");
  EXPECT_EQ(gzwrite(file, text.data(), static_cast<unsigned>(text.size())), text.size());
  EXPECT_EQ(gzclose(file), Z_OK);
}

std::string Message(const absl::StatusOr<CorpusReport>& report) {
  return std::string(report.status().message());
}

TEST(Prepare, MakesACorpusOfOpusFolders) {
  const TempFolder folder;
  WriteOpus(folder);
  const auto report = PrepareIn(folder, "opus100_folder: 'opus'");
  ASSERT_TRUE(report.ok()) << report.status();
  ExpectCountsAddUp(*report);
  EXPECT_EQ(report->vocabulary_size(), 300 + 4);
  EXPECT_EQ(PairOf(*report, "test", "en", "fr").kept(), 10);
  EXPECT_EQ(report->lines(), 120);  // of training text
  EXPECT_EQ(report->folder(), folder.Path("out"));
  EXPECT_GT(report->peak_resident_bytes(), 1 << 20);
  EXPECT_GT(report->tokenizer_seconds(), 0.0);
  EXPECT_LE(report->tokenizer_seconds(), report->seconds());
  EXPECT_EQ(PairOf(*report, "train", "de", "en").lines(), 40);

  const auto corpus = Corpus::Open(folder.Path("out"));
  ASSERT_TRUE(corpus.ok()) << corpus.status();
  EXPECT_TRUE(corpus->CheckContent().ok());
  for (const InputFile& input : corpus->manifest().inputs()) {
    EXPECT_EQ(input.hash(), *HashFile(folder.Path(input.name()))) << input.name();
    EXPECT_EQ(input.bytes(), fs::file_size(folder.Path(input.name()))) << input.name();
  }
  EXPECT_EQ(corpus->manifest().inputs_size(), 18);
  const auto expect_lengths = [&](const std::string& split, int64_t first, int64_t second,
                                  int longest) {
    const LanguagePairReport& pair = PairOf(*report, split, "de", "en");
    const auto kept = static_cast<double>(pair.kept());
    EXPECT_EQ(pair.first_tokens(), first);
    EXPECT_EQ(pair.second_tokens(), second);
    EXPECT_EQ(pair.longest(), longest);
    EXPECT_DOUBLE_EQ(pair.first_mean_length(), static_cast<double>(first) / kept);
    EXPECT_DOUBLE_EQ(pair.second_mean_length(), static_cast<double>(second) / kept);
  };
  int64_t sums[2] = {};
  int longest = 0;
  for (int64_t i = 0; i < corpus->directions()[0].num_pairs; ++i) {
    const PairLengths lengths = corpus->Lengths(0, i);  // de-en
    sums[0] += lengths.source;
    sums[1] += lengths.target;
    longest = std::max({longest, lengths.source, lengths.target});
  }
  expect_lengths("train", sums[0], sums[1], longest);
  longest = 0;
  for (const int side : {0, 1}) {
    sums[side] = 0;
    std::ifstream file(folder.Path(side == 0 ? "out/dev.de-en.de" : "out/dev.de-en.en"));
    for (std::string line; std::getline(file, line);) {
      const auto pieces = static_cast<int>(corpus->vocabulary().Encode(line).size());
      sums[side] += pieces;
      longest = std::max(longest, pieces);
    }
  }
  expect_lengths("dev", sums[0], sums[1], longest);
  std::vector<std::string> names;
  for (const Direction& direction : corpus->directions()) names.push_back(direction.Name());
  EXPECT_EQ(names,
            (std::vector<std::string>{"de-en", "en-de", "en-fr", "en-ru", "fr-en", "ru-en"}));
  EXPECT_THAT(folder.Read("out/report.json"), HasSubstr("\"directions\": [\"de-en\", \"en-de\"]"));
  EXPECT_THAT(ReportTable(*report), HasSubstr("de-en"));
  EXPECT_FALSE(fs::exists(folder.Path("out.deepnet-unfinished")));
}

TEST(Prepare, SaysFirstHowLargeTheCorpusIsGoingToBe) {
  const TempFolder folder;
  WritePairs(folder, "few", "de", "en", {{"eins", "one"}, {"zwei", "two"}, {"drei", "three"}});
  WritePairs(folder, "many", "en", "fr", TextPairs(3000, {"four", "quatre"}));
  std::string rows;
  for (int i = 0; i < 2000; ++i) rows += "a long row of English\tRussian\n";
  folder.Write("rows.tsv", rows);
  WriteGzip(folder.Path("more.tsv.gz"), rows);
  std::string progress;
  const auto text = [](const std::string& other, const std::string& stem, const std::string& tag) {
    return "text { source_language: 'en' target_language: '" + other + "' source_file: '" + stem +
           ".en' target_file: '" + stem + "." + other + "' tag: '" + tag + "' } ";
  };
  ASSERT_TRUE(
      PrepareIn(folder,
                text("de", "few", "") + text("de", "few", "bt") + text("fr", "many", "") +
                    "text { source_language: 'en' target_language: 'ru' tsv_file: 'rows.tsv' } "
                    "text { source_language: 'en' target_language: 'ru' tsv_file: 'more.tsv.gz' }",
                &progress)
          .ok());
  // Compressed text is taken for three times its bytes, which is less than these rows are.
  const double more = 3.0 * static_cast<double>(fs::file_size(folder.Path("more.tsv.gz"))) / 30;
  const size_t planned = progress.find(absl::StrFormat(
      "planned: 4 languages, 4 language pairs and as many shards, 7 directions, about %.4g pairs",
      5006 + more));
  ASSERT_NE(planned, progress.npos) << progress;
  EXPECT_LT(planned, progress.find("scanned "));
}

TEST(Prepare, WarnsOfATextOfWhichMostIsDroppedWithTheReason) {
  const TempFolder folder;
  const TextPairs few = {{"eins", "one"}, {"zwei", "two"}, {"drei", "three"}};
  WritePairs(folder, "good", "de", "en", few);
  WritePairs(folder, "half", "de", "en", {{"vier", "four"}, {"", "five"}});
  WritePairs(folder, "dev", "de", "en", {{"sechs", "six"}, {"\u200d", "7"}, {"\u2060", "8"}});
  folder.Write("scores", "-4,5\n-1,5\n0.5\n");
  const auto text = [](const std::string& stem, const std::string& more) {
    return "text { source_language: 'de' target_language: 'en' source_file: '" + stem +
           ".de' target_file: '" + stem + ".en' " + more + " } ";
  };
  std::string progress;
  ASSERT_TRUE(PrepareIn(folder,
                        text("good", "") + text("half", "") + text("dev", "split: 'dev'") +
                            text("good", "tag: 'bt' score_file: 'scores' score_threshold: -9"),
                        &progress)
                  .ok());
  const std::string rest = " lines are dropped, 2 for the reason \"";
  EXPECT_THAT(progress, HasSubstr("warning: de-en.bt, train: 2 of 3" + rest +
                                  "malformed\", the first of them " + folder.Path("good.de:1")));
  EXPECT_THAT(progress, HasSubstr("warning: de-en, dev: 2 of 3" + rest +
                                  "empty side\", the first of them " + folder.Path("dev.de:2")));
  EXPECT_EQ(progress.find("warning: de-en, train"), progress.npos) << progress;

  // Whatever the other texts of its languages are.
  WritePairs(folder, "bad", "de", "en", {{"\xff", "zero"}, {"", "four"}, {"", "five"}});
  progress.clear();
  ASSERT_TRUE(PrepareIn(folder, text("good", "") + text("bad", ""), &progress, "beside").ok());
  EXPECT_THAT(progress, HasSubstr("warning: de-en, train: 3 of 3" + rest + "empty side"));
}

TEST(Prepare, AMarkAtTheBeginningOfATextIsNoneOfIt) {
  const TempFolder folder;
  WritePairs(folder, "t", "de", "en", {{"\ufeffeins", "\ufeffone"}, {"zwei", "two"}});
  WritePairs(folder, "dev", "de", "en", {{"\ufeffdrei", "\ufeffthree"}});
  const std::string text = "text { source_language: 'de' target_language: 'en' ";
  ASSERT_TRUE(PrepareIn(folder, text + "source_file: 't.de' target_file: 't.en' } " + text +
                                    "source_file: 'dev.de' target_file: 'dev.en' split: 'dev' }")
                  .ok());
  EXPECT_EQ(folder.Read("out/dev.de-en.de"), "drei\n");
  EXPECT_EQ(folder.Read("out/dev.de-en.en"), "three\n");
  folder.Write("table.tsv", "\ufeffde\tone\teins\nde\ttwo\tzwei\n");
  EXPECT_TRUE(PrepareIn(folder, "table { file: 'table.tsv' dev_percent: -1 test_percent: -1 }",
                        nullptr, "of_table")
                  .ok());
}

TEST(Prepare, RulesOfNormalizationAreReadFromAFileOrNamed) {
  const TempFolder folder;
  WritePairs(folder, "t", "de", "en", {{"eins", "one"}, {"zwei", "two"}});
  const auto prepare = [&](const std::string& normalization, bool extend = false) {
    const PrepareSpec spec = testing::PrepareSpecOf(
        "tokenizer { vocab_size: 300 normalization: '" + normalization +
        "' } text { source_language: 'de' target_language: 'en' source_file: 't.de' target_file: "
        "'t.en' } replace: true");
    return Prepare(spec, "out", folder.path(), [](std::string_view) {}, {.extend = extend});
  };
  EXPECT_THAT(Message(prepare("nfck")),
              HasSubstr("prepare.tokenizer.normalization: neither nmt_nfkc, nfkc, identity nor a "
                        "file: " +
                        folder.Path("nfck") + ": No such file"));
  folder.Write("rules.tsv", "65\t45\n# e to E\n");
  EXPECT_THAT(Message(prepare("rules.tsv")),
              HasSubstr("prepare.tokenizer.normalization: " + folder.Path("rules.tsv") +
                        ":2: not code points"));
  for (const char* bad : {"", "D800\t61\n", "61\t110000\n", "\t61\n", "61\t62\t63\t64\n"}) {
    folder.Write("rules.tsv", bad);
    EXPECT_THAT(Message(prepare("rules.tsv")), HasSubstr("normalization: ")) << bad;
  }
  std::string very_long;
  while (very_long.size() < (1 << 20)) very_long += "61 ";
  folder.Write("rules.tsv", "61\t62\n" + very_long);
  EXPECT_THAT(Message(prepare("rules.tsv")), HasSubstr("rules.tsv:2: more than 4096 bytes"));
  folder.Write("rules.tsv", "65\t45\n");
  ASSERT_TRUE(prepare("rules.tsv").ok());
  const std::string model = folder.Read("out/tokenizer.model");
  EXPECT_TRUE(prepare("rules.tsv")->reused());
  EXPECT_TRUE(prepare("rules.tsv", /*extend=*/true)->reused());
  EXPECT_TRUE(prepare("rules.tsv")->reused());
  folder.Write("rules.tsv", "65\t45\n");  // the same bytes at another time
  EXPECT_TRUE(prepare("rules.tsv")->reused());
  folder.Write("rules.tsv", "65\t46\n");
  EXPECT_FALSE(prepare("rules.tsv")->reused());
  EXPECT_NE(folder.Read("out/tokenizer.model"), model);
}

TEST(Prepare, WritesThePairsItReadInTheirOrder) {
  const TempFolder folder;
  const TextPairs pairs = {{"eins", "one"}, {"zwei", "two"}, {"drei", "three"}};
  WritePairs(folder, "t", "de", "en", pairs);
  const auto report =
      PrepareIn(folder,
                "text { source_language: 'en' target_language: 'de' source_file: 't.en' "
                "target_file: 't.de' }");
  ASSERT_TRUE(report.ok()) << report.status();
  const auto corpus = Corpus::Open(folder.Path("out"));
  ASSERT_TRUE(corpus.ok()) << corpus.status();
  const auto decode = [&](const std::vector<int32_t>& ids) {
    return corpus->vocabulary().Decode(ids);
  };
  ASSERT_EQ(corpus->directions()[0].Name(), "de-en");
  for (int64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(decode(corpus->Tokens(0, i).source), pairs[i].first);
    EXPECT_EQ(decode(corpus->Tokens(0, i).target), pairs[i].second);
    EXPECT_EQ(decode(corpus->Tokens(1, i).source), pairs[i].second);
    EXPECT_EQ(corpus->Lengths(1, i).target, static_cast<int>(corpus->Tokens(1, i).target.size()));
  }
}

TEST(Prepare, SyntheticTextServesOneDirectionAndItsSourcesHaveTheTag) {
  const TempFolder folder;
  WritePairs(folder, "t", "de", "en",
             {{"eins", "one"}, {"zwei", "two"}, {"drei", "three"}, {"eins", "one two three"}});
  WritePairs(folder, "bt", "en", "de",
             {{"two one", "zwei eins"},
              {"three two", "drei zwei"},
              {"one two three one two three", "eins zwei"}});
  const std::string real =
      "text { source_language: 'en' target_language: 'de' "
      "source_file: 't.en' target_file: 't.de' } ";
  const std::string synthetic =
      "text { source_language: 'en' target_language: 'de' "
      "source_file: 'bt.en' target_file: 'bt.de' tag: 'bt' } ";
  const auto report = PrepareIn(folder, real + synthetic);
  ASSERT_TRUE(report.ok()) << report.status();
  const auto corpus = Corpus::Open(folder.Path("out"));
  ASSERT_TRUE(corpus.ok()) << corpus.status();
  EXPECT_EQ(corpus->vocabulary().languages(), (std::vector<std::string>{"bt", "de", "en"}));
  ASSERT_EQ(corpus->directions().size(), 3u);
  EXPECT_EQ(corpus->directions()[2], (Direction{"en", "de", 3, "bt"}));
  const PairTokens pair = corpus->Tokens(2, 1);
  EXPECT_EQ(pair.source.front(), corpus->vocabulary().TagId("bt"));
  EXPECT_EQ(corpus->vocabulary().Decode(pair.source), "three two");
  EXPECT_EQ(corpus->vocabulary().Decode(pair.target), "drei zwei");
  EXPECT_LT(corpus->Tokens(1, 1).source[0], corpus->vocabulary().first_tag());
  const auto longest = [](const Corpus& of, size_t direction) {
    int32_t pieces = 0;
    for (int64_t i = 0; i < of.directions()[direction].num_pairs; ++i) {
      const PairLengths lengths = of.Lengths(direction, i);
      pieces = std::max({pieces, lengths.source, lengths.target});
    }
    return pieces;
  };
  EXPECT_EQ(PairOf(*report, "train", "de", "en").longest(), longest(*corpus, 0));  // of an "en"
  // A tag is no piece of the sentence: the longest one is kept where as many pieces are allowed.
  const std::string limit =
      absl::StrCat("cleaning { max_sentence_tokens: ", longest(*corpus, 2) - 1, " }");
  ASSERT_TRUE(PrepareIn(folder, real + synthetic + limit, nullptr, "limited").ok());
  const auto limited = Corpus::Open(folder.Path("limited"));
  ASSERT_TRUE(limited.ok()) << limited.status();
  EXPECT_EQ(limited->directions()[2].num_pairs, 3);
  EXPECT_THAT(folder.Read("out/report.json"), HasSubstr("\"directions\": [\"en-de.bt\"]"));
  EXPECT_THAT(ReportTable(*report), HasSubstr("en-de.bt"));

  // The tokenizer is that of the real text alone.
  ASSERT_TRUE(PrepareIn(folder, real, nullptr, "alone").ok());
  EXPECT_EQ(folder.Read("alone/tokenizer.model"), folder.Read("out/tokenizer.model"));

  const auto refused =
      PrepareIn(folder,
                real +
                    "text { source_language: 'en' target_language: 'fr' source_file: 'bt.en' "
                    "target_file: 'bt.de' tag: 'de' }",
                nullptr, "refused");
  EXPECT_THAT(Message(refused), HasSubstr("the tag \"de\" of en-fr.de is a language of de-en"));
}

// Blocks that are kept by --extend hold the tag's number, which a language that is added changes.
TEST(Prepare, ALanguageThatIsAddedChangesTheTagsOfSyntheticText) {
  const TempFolder folder;
  WritePairs(folder, "t", "de", "en", {{"eins", "one"}, {"zwei", "two"}, {"drei", "three"}});
  WritePairs(folder, "a", "af", "en", {{"een", "one"}, {"twee", "two"}});
  const auto text = [](const std::string& other, const std::string& stem, const std::string& tag) {
    return "text { source_language: 'en' target_language: '" + other + "' source_file: '" + stem +
           ".en' target_file: '" + stem + "." + other + "' tag: '" + tag + "' } ";
  };
  const std::string first = text("de", "t", "") + text("de", "t", "bt");
  ASSERT_TRUE(PrepareIn(folder, first).ok());
  PrepareSpec spec = testing::PrepareSpecOf(first + text("af", "a", ""));
  spec.mutable_tokenizer()->set_vocab_size(300);
  const auto report =
      Prepare(spec, "out", folder.path(), [](std::string_view) {}, {.extend = true});
  ASSERT_TRUE(report.ok()) << report.status();
  const auto corpus = Corpus::Open(folder.Path("out"));
  ASSERT_TRUE(corpus.ok()) << corpus.status();
  const auto& directions = corpus->directions();
  const auto synthetic = std::ranges::find(directions, "en-de.bt", &Direction::Name);
  ASSERT_NE(synthetic, directions.end());
  EXPECT_EQ(corpus->Tokens(static_cast<int>(synthetic - directions.begin()), 0).source[0],
            corpus->vocabulary().TagId("bt"));
}

TEST(Prepare, BlocksThatAnotherLengthRatioJudgesAreEncodedAgain) {
  const TempFolder folder;
  WritePairs(folder, "t", "de", "en",
             {{"eins zwei drei eins zwei drei eins zwei drei", "one"}, {"vier", "four"}});
  const std::string text =
      "text { source_language: 'de' target_language: 'en' source_file: 't.de' "
      "target_file: 't.en' } ";
  const auto before = PrepareIn(folder, text + "cleaning { max_length_ratio: 100 }");
  ASSERT_TRUE(before.ok()) << before.status();
  EXPECT_EQ(before->kept(), 2);
  PrepareSpec spec = testing::PrepareSpecOf(text + "cleaning { max_length_ratio: 1.5 }");
  spec.mutable_tokenizer()->set_vocab_size(300);
  const auto after = Prepare(spec, "out", folder.path(), [](std::string_view) {}, {.extend = true});
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_EQ(after->kept(), 1);
}

TEST(Prepare, CountsEveryLineForOneReason) {
  const TempFolder folder;
  std::string longest = "viel";
  for (int i = 0; i < 300; ++i) longest += " zu lang";
  WritePairs(folder, "t", "de", "en",
             {{"Der Anfang ist gemacht", "The beginning is made"},
              {"Gr\xfc\xdf Gott", "Good day"},
              {"", "Nothing there"},
              {"Ein __en__ darin", "With a tag"},
              {"Taxi", "Taxi"},
              {"Der Anfang ist gemacht ", " The beginning is made"},
              {"Im Test", "In the test"},
              {longest, "much too long"},
              {"ein", "a b c d e f g h i j k l m n o p q r s t u v w x y z a b c d e f g h i j k"},
              {"Das Ende", "The end"}});
  folder.Write("scores", "1\n1\n1\n1\n1\n1\n1\n1\n1\n0.5\n");
  WritePairs(folder, "test", "de", "en", {{"Pr\u00fcfung", "In the test"}});
  const auto report = PrepareIn(
      folder,
      "text { source_language: 'de' target_language: 'en' source_file: 't.de' target_file: 't.en' "
      "score_file: 'scores' score_threshold: 0.75 } "
      "text { source_language: 'de' target_language: 'en' source_file: 'test.de' "
      "target_file: 'test.en' split: 'test' }");
  ASSERT_TRUE(report.ok()) << report.status();
  ExpectCountsAddUp(*report);
  const LanguagePairReport& pair = PairOf(*report, "train", "de", "en");
  EXPECT_EQ(pair.lines(), 10);
  EXPECT_EQ(pair.kept(), 1);
  for (const char* reason : {"bad UTF-8", "empty side", "tag in text", "equal sides", "below score",
                             "in dev or test", "duplicate", "too long", "length ratio"}) {
    EXPECT_EQ(Dropped(pair, reason), 1) << reason;
  }
  EXPECT_EQ(pair.dropped(0).example(), folder.Path("t.de") + ":2");
}

TEST(Prepare, KeepsDuplicatesWhereTold) {
  const TempFolder folder;
  WritePairs(folder, "t", "de", "en", TextPairs(20, {"Guten Tag", "Good day"}));
  folder.Write("other.tsv", "one\tun\ntwo\tdeux\n");  // where another pair has a duplicate
  const std::string text =
      "text { source_language: 'de' target_language: 'en' source_file: 't.de' target_file: 't.en' "
      "} text { source_language: 'en' target_language: 'fr' tsv_file: 'other.tsv' }";
  auto report = PrepareIn(folder, text);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->kept(), 1 + 2);
  report = PrepareIn(folder, text + "cleaning { keep_duplicates: true }", nullptr, "all");
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->kept(), 20 + 2);
}

TEST(Prepare, RefusesUnevenTextsNamingFilesAndLines) {
  const TempFolder folder;
  WriteOpus(folder);
  std::ofstream(folder.Path("opus/de-en/opus.de-en-train.de"), std::ios::app) << "noch eine\n";
  const auto report = PrepareIn(folder, "opus100_folder: 'opus'");
  EXPECT_THAT(Message(report), AllOf(HasSubstr("opus.de-en-train.en ends after line 40"),
                                     HasSubstr("opus.de-en-train.de after line 41")));
  EXPECT_EQ(GetExitCode(report.status()), ExitCode::kData);
  EXPECT_FALSE(fs::exists(folder.Path("out")));
  EXPECT_FALSE(fs::exists(folder.Path("out.deepnet-unfinished")));
}

TEST(Prepare, RefusesBadUtf8InDevAndTestNamingFileAndLine) {
  const TempFolder folder;
  WriteOpus(folder);
  folder.Write("opus/de-en/opus.de-en-dev.de",
               "gut\nschl\xe4"
               "cht\n");
  folder.Write("opus/de-en/opus.de-en-dev.en", "good\nbad\n");
  EXPECT_THAT(Message(PrepareIn(folder, "opus100_folder: 'opus'")),
              HasSubstr("opus.de-en-dev.de:2: bad UTF-8"));
  folder.Write("t.tsv", "gut\tgood\nschlecht\n");
  EXPECT_THAT(Message(PrepareIn(folder,
                                "text { source_language: 'de' target_language: 'en' "
                                "tsv_file: 't.tsv' split: 'test' }")),
              HasSubstr("t.tsv:2: malformed in test text"));
}

TEST(Prepare, NamesWhatIsMissing) {
  const TempFolder folder;
  WriteOpus(folder);
  EXPECT_THAT(Message(PrepareIn(folder, "opus100_folder: 'nothing'")),
              HasSubstr("prepare.opus100_folder"));
  EXPECT_THAT(Message(PrepareIn(folder, "opus100_folder: 'opus' languages: ['en', 'de', 'xx']")),
              HasSubstr("\"xx\""));
  fs::remove(folder.Path("opus/de-en/opus.de-en-test.en"));
  EXPECT_THAT(Message(PrepareIn(folder, "opus100_folder: 'opus'")),
              HasSubstr("opus.de-en-test.en is missing"));
  EXPECT_THAT(Message(PrepareIn(folder,
                                "text { source_language: 'de' target_language: 'en' "
                                "source_file: 'a.de' target_file: 'a.en' }")),
              HasSubstr("a.de"));
}

TEST(Prepare, NamesUtf16Text) {
  const TempFolder folder;
  WriteOpus(folder);
  folder.Write("opus/de-en/opus.de-en-train.de", std::string("\xff\xfeg\0u\0t\0\n\0", 10));
  EXPECT_THAT(Message(PrepareIn(folder, "opus100_folder: 'opus'")),
              HasSubstr("opus.de-en-train.de: UTF-16, convert it to UTF-8"));
}

TEST(Prepare, NamesAFolderInPlaceOfAFileAndAFileInPlaceOfAFolder) {
  const TempFolder folder;
  WriteOpus(folder);
  folder.Write("file", "text");
  fs::create_directories(folder.Path("folder"));
  const std::string text =
      "text { source_language: 'de' target_language: 'en' source_file: 'folder' "
      "target_file: 'file' }";
  EXPECT_THAT(Message(PrepareIn(folder, text)), HasSubstr("folder is a folder, not a file"));
  EXPECT_THAT(Message(PrepareIn(folder, "table { file: 'folder' }")),
              HasSubstr("folder is a folder, not a file"));
  EXPECT_THAT(
      Message(PrepareIn(folder, "opus100_folder: 'opus' tokenizer { model_file: 'folder' }")),
      HasSubstr("folder is a folder, not a file"));
  EXPECT_THAT(Message(PrepareIn(folder, "opus100_folder: 'file'")),
              HasSubstr("file is a file, not a folder"));
  EXPECT_THAT(Message(PrepareIn(folder, "opus100_folder: 'opus'", nullptr, "file")),
              HasSubstr("file is a file, not a folder"));
  EXPECT_THAT(Message(PrepareIn(folder, "opus100_folder: 'opus'", nullptr, "file/corpus")),
              HasSubstr("cannot make the folder " + folder.Path("file")));
  EXPECT_THAT(std::string(Corpus::Open(folder.Path("file")).status().message()),
              HasSubstr("file is no prepared corpus: it is a file, not a folder"));
  fs::remove(folder.Path("opus/de-en/opus.de-en-test.en"));
  fs::create_directories(folder.Path("opus/de-en/opus.de-en-test.en"));
  EXPECT_THAT(Message(PrepareIn(folder, "opus100_folder: 'opus'")),
              HasSubstr("opus.de-en-test.en is a folder, not a file"));
}

// Nobody writes into the pipe: whoever opens it waits.
TEST(Prepare, NamesAPipeOrADeviceInPlaceOfAFileAndDoesNotWaitForIt) {
  const TempFolder folder;
  WriteOpus(folder);
  ASSERT_EQ(mkfifo(folder.Path("pipe").c_str(), 0600), 0);
  folder.Write("file", "text\n");
  const std::string sides = "source_language: 'de' target_language: 'en' ";
  const auto expect_refused = [&](const std::string& spec, const std::string& path) {
    std::string progress;
    const auto report = PrepareIn(folder, spec, &progress);
    EXPECT_EQ(GetExitCode(report.status()), ExitCode::kBadConfig) << report.status();
    EXPECT_THAT(Message(report), HasSubstr(path + " is a pipe or a device")) << spec;
    EXPECT_THAT(progress, Not(HasSubstr("planned")));
  };
  const std::string pipe = folder.Path("pipe");
  for (const std::string text :
       {"source_file: 'pipe' target_file: 'file'", "source_file: 'file' target_file: 'pipe'",
        "tsv_file: 'pipe'", "tsv_file: 'file' score_file: 'pipe' score_threshold: 1",
        "source_file: 'file' target_file: 'pipe' split: 'dev'"}) {
    expect_refused(absl::StrCat("text { ", sides, text, " }"), pipe);
  }
  expect_refused(absl::StrCat("text { ", sides, "tsv_file: '/dev/zero' }"), "/dev/zero");
  expect_refused("table { file: 'pipe' }", pipe);
  expect_refused("opus100_folder: 'opus' tokenizer { model_file: 'pipe' }", pipe);
  const std::string opus = folder.Path("opus/de-en/opus.de-en-test.en");
  fs::remove(opus);
  ASSERT_EQ(mkfifo(opus.c_str(), 0600), 0);
  expect_refused("opus100_folder: 'opus'", opus);
}

TEST(Prepare, SaysWhyThereIsNoLock) {
  const TempFolder folder;
  WriteOpus(folder);
  const std::string spec = "opus100_folder: 'opus'";
  flock_error = EWOULDBLOCK;
  EXPECT_THAT(Message(PrepareIn(folder, spec)), HasSubstr("another prepare is writing"));
  flock_error = EINTR;
  EXPECT_THAT(Message(PrepareIn(folder, spec)),
              AllOf(HasSubstr("cannot lock"), HasSubstr(".out.lock")));
  EXPECT_FALSE(fs::exists(folder.Path("out")));
  for (const int without : {ENOLCK, EOPNOTSUPP, ENOSYS, EINVAL}) {
    flock_error = without;
    std::string progress;
    const auto report = PrepareIn(folder, spec + " replace: true", &progress);
    EXPECT_TRUE(report.ok()) << report.status();
    EXPECT_THAT(progress, HasSubstr("warning: no locks on this file system"));
  }
  flock_error = 0;
}

TEST(Prepare, CopiesPairsWhereTheFileSystemHasNoHardLinks) {
  const TempFolder folder;
  WriteOpus(folder);
  ASSERT_TRUE(PrepareIn(folder, "opus100_folder: 'opus'", nullptr, "linked").ok());
  link_error = EPERM;
  const auto copied = PrepareIn(folder, "opus100_folder: 'opus'");
  link_error = 0;
  ASSERT_TRUE(copied.ok()) << copied.status();
  EXPECT_GT(links_refused, 0);
  EXPECT_EQ(folder.Read("out/train.de-en.pairs"), folder.Read("linked/train.de-en.pairs"));
}

TEST(Prepare, TakesOnlyTheLanguagesAskedFor) {
  const TempFolder folder;
  WriteOpus(folder);
  const auto report = PrepareIn(folder, "opus100_folder: 'opus' languages: ['en', 'fr']");
  ASSERT_TRUE(report.ok()) << report.status();
  const auto corpus = Corpus::Open(folder.Path("out"));
  EXPECT_EQ(corpus->directions().size(), 2u);
  EXPECT_EQ(corpus->vocabulary().languages(), (std::vector<std::string>{"en", "fr"}));

  // As the corpus is published, its pairs are one level further down.
  for (const char* move : {"supervised/de-en", "zero-shot/en-fr"}) {
    const fs::path place = fs::path(folder.Path("opus")) / move;
    fs::create_directories(place.parent_path());
    fs::rename(fs::path(folder.Path("opus")) / place.filename(), place);
  }
  // Compressed or not.
  const std::string stem = "opus/supervised/de-en/opus.de-en-train.";
  const std::string german = folder.Read(stem + "de"), english = folder.Read(stem + "en");
  WriteGzip(folder.Path(stem + "de.gz"), german);
  std::string bytes(ZSTD_compressBound(english.size()), '\0');
  bytes.resize(ZSTD_compress(bytes.data(), bytes.size(), english.data(), english.size(), 3));
  folder.Write(stem + "en.zst", bytes);
  for (const char* language : {"de", "en"}) fs::remove(folder.Path(stem + language));
  const auto deeper =
      PrepareIn(folder, "opus100_folder: 'opus' languages: ['de', 'en', 'fr']", nullptr, "deeper");
  ASSERT_TRUE(deeper.ok()) << deeper.status();
  EXPECT_EQ(deeper->lines(), 80);
}

TEST(Prepare, SplitsATableOfLanguagesByItsPivotSentences) {
  const TempFolder folder;
  const std::string spec =
      "table { file: '" + fs::absolute(kUdhr).string() + "' dev_percent: 15 test_percent: 25 }";
  const auto report = PrepareIn(folder, spec);
  ASSERT_TRUE(report.ok()) << report.status();
  ExpectCountsAddUp(*report);
  int64_t lines = 0;
  for (const LanguagePairReport& pair : report->pairs()) lines += pair.lines();
  EXPECT_EQ(lines, 180);
  const auto corpus = Corpus::Open(folder.Path("out"));
  ASSERT_TRUE(corpus.ok()) << corpus.status();
  const auto german = corpus->Sentences("test", "en", "de");
  const auto french = corpus->Sentences("test", "en", "fr");
  ASSERT_TRUE(german.ok() && french.ok());
  EXPECT_GE(german->source.size(), 5u);
  EXPECT_EQ(german->source, french->source);  // a sentence is on one side in every language
  const auto joined = corpus->Sentences("test", "de", "fr");
  ASSERT_TRUE(joined.ok()) << joined.status();
  EXPECT_EQ(joined->source, german->target);
  EXPECT_EQ(joined->target, french->target);
}

// Rows are written by the 64 kB; what is dropped is named by its line of the table.
TEST(Prepare, ALargeTableGivesEachRowOnceAndNamesItsLines) {
  const TempFolder folder;
  std::string rows;
  for (int i = 0; i < 3000; ++i) {
    absl::StrAppend(&rows, i % 2 == 0 ? "de" : "fr", "\tthe row of number ", i,
                    i == 2000 ? "\tthe row of number " : "\teine Zeile mit Nummer ", i, "\n");
  }
  folder.Write("t.tsv", rows);
  folder.Write("out.deepnet-unfinished/.deepnet-scratch/table0.train.de.tsv", "killed\tin it\t1\n");
  const auto report = PrepareIn(folder, "table { file: 't.tsv' dev_percent: -1 test_percent: -1 }");
  ASSERT_TRUE(report.ok()) << report.status();
  const LanguagePairReport& german = PairOf(*report, "train", "de", "en");
  EXPECT_EQ(german.lines(), 1500);
  EXPECT_EQ(german.kept(), 1499);
  ASSERT_EQ(german.dropped_size(), 1);
  EXPECT_EQ(german.dropped(0).reason(), "equal sides");
  EXPECT_EQ(german.dropped(0).example(), folder.Path("t.tsv") + ":2001");
  EXPECT_EQ(PairOf(*report, "train", "en", "fr").kept(), 1500);
}

TEST(Prepare, EachOfManyTablesGivesItsOwnRows) {
  const TempFolder folder;
  std::string spec;
  for (int i = 0; i < 11; ++i) {
    folder.Write(absl::StrCat(i), absl::StrCat("de\tnumber ", i, "\tNummer ", i, "\n"));
    absl::StrAppend(&spec, "table { file: '", i, "' dev_percent: -1 test_percent: -1 } ");
  }
  const auto report = PrepareIn(folder, spec);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->lines(), 11);
}

TEST(Prepare, SpacesAroundAPivotSentenceDoNotChangeItsSplit) {
  const TempFolder folder;
  std::string rows;
  for (const auto& [language, pairs] : testing::UdhrPairs()) {
    const char* const space = language == "fr" ? " " : "";
    for (const auto& [english, other] : pairs) {
      absl::StrAppend(&rows, language, "\t", space, english, space, "\t", other, "\n");
    }
  }
  folder.Write("t.tsv", rows);
  ASSERT_TRUE(PrepareIn(folder, "table { file: 't.tsv' dev_percent: 15 test_percent: 25 }").ok());
  const auto corpus = Corpus::Open(folder.Path("out"));
  ASSERT_TRUE(corpus.ok()) << corpus.status();
  const auto german = corpus->Sentences("test", "en", "de");
  const auto french = corpus->Sentences("test", "en", "fr");
  ASSERT_TRUE(german.ok() && french.ok());
  EXPECT_EQ(german->source, french->source);
}

TEST(Prepare, NamesTheLineOfATableThatIsNoRow) {
  const TempFolder folder;
  folder.Write("t.tsv", "de\tone\teins\nde\ttwo\n");
  EXPECT_THAT(Message(PrepareIn(folder, "table { file: 't.tsv' }")), HasSubstr("t.tsv:2"));
  folder.Write("t.tsv", "de\tone\teins\n__\ttwo\tzwei\n");
  EXPECT_THAT(Message(PrepareIn(folder, "table { file: 't.tsv' }")), HasSubstr("t.tsv:2"));
  folder.Write("t.tsv", "de\tone\teins\nen\ttwo\tzwei\n");
  EXPECT_THAT(Message(PrepareIn(folder, "table { file: 't.tsv' }")),
              HasSubstr("t.tsv:2: a row of the pivot language en"));
  EXPECT_THAT(Message(PrepareIn(folder, "table { file: 't.tsv' languages: ['de', 'fr'] }")),
              HasSubstr("t.tsv: no row of language \"fr\""));
  folder.Write("t.tsv", "de\tone\t" + std::string(LineReader::kMaxLineBytes, 'x') + "\n");
  EXPECT_THAT(Message(PrepareIn(folder, "table { file: 't.tsv' }")),
              HasSubstr("t.tsv:1: not lang"));
}

TEST(Prepare, ATableOfTooManyLanguagesIsRefusedByItsLine) {
  TempFolder folder;
  std::string rows;
  for (int i = 0; i < 60'000; ++i) rows += "l" + std::to_string(i) + "\tone\teins\n";
  folder.Write("t.tsv", rows);
  EXPECT_THAT(Message(PrepareIn(folder, "table { file: 't.tsv' }")),
              HasSubstr("t.tsv:4097: more than 4096 languages"));
  EXPECT_FALSE(fs::exists(folder.Path("out")));
}

TEST(Prepare, SaysWhatBecameOfTextOfWhichNothingIsLeft) {
  const TempFolder folder;
  folder.Write("t.tsv", "same\tsame\n\tempty\nother\tother\n");
  EXPECT_THAT(Message(PrepareIn(folder,
                                "text { source_language: 'de' target_language: 'en' "
                                "tsv_file: 't.tsv' }")),
              AllOf(HasSubstr("all 3 training pairs were dropped: 1 empty side, first "),
                    HasSubstr("t.tsv:2; 2 equal sides, first "), HasSubstr("t.tsv:1")));
}

// Every rank learns of an error that one of them has; then nobody works in the folder any more.
TEST(Prepare, WhatEndsRankZeroAloneEndsAll) {
  const TempFolder folder;
  WriteOpus(folder);
  folder.Write("empty.tsv", "");
  const std::string text = "text { source_language: 'de' target_language: 'en' tsv_file: ";
  const auto expect_error = [&](const std::string& spec, const std::string& error) {
    for (const absl::Status& status : RunRanks(2, [&](Communicator& world) {
           return Prepare(testing::PrepareSpecOf(spec), "out", folder.path(), {}, {.world = &world})
               .status();
         })) {
      EXPECT_TRUE(IsAgreed(status)) << status;
      EXPECT_EQ(GetExitCode(status), ExitCode::kData) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr(error));
    }
  };
  expect_error(text + "'empty.tsv' split: 'dev' }", "prepare: there is no training text");
  EXPECT_FALSE(fs::exists(folder.Path("out.deepnet-unfinished")));
  expect_error(text + "'empty.tsv' }", "prepare: there is no training text");
  no_rename_to = folder.Path("out");
  expect_error("opus100_folder: 'opus' tokenizer { vocab_size: 300 }", folder.Path("out"));
  no_rename_to.clear();
}

TEST(Prepare, NamesASampleThatIsTooSmallForASentence) {
  const TempFolder folder;
  WriteOpus(folder);
  EXPECT_THAT(
      Message(PrepareIn(folder, "opus100_folder: 'opus' tokenizer { input_sentence_size: 1 }")),
      HasSubstr("prepare.tokenizer.input_sentence_size: 1: is too small"));
}

TEST(Prepare, NamesTheFieldAndTheLeastThatTheTokenizerNeeds) {
  const TempFolder folder;
  folder.Write("t.tsv", "abcdefghij\tklmnopqrst\n");
  const auto vocabulary = [&](int pieces) {
    return PrepareIn(folder, absl::StrCat("text { source_language: 'de' target_language: 'en' "
                                          "tsv_file: 't.tsv' } tokenizer { vocab_size: ",
                                          pieces, " }"))
        .status();
  };
  const absl::Status status = vocabulary(20);  // 20 letters, the sign of a word's begin, 4 specials
  EXPECT_EQ(GetExitCode(status), ExitCode::kBadConfig);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("prepare.tokenizer.vocab_size: 20: must be at least 25"));
  EXPECT_TRUE(vocabulary(25).ok()) << vocabulary(25);
}

TEST(Prepare, TakesAGivenTokenizer) {
  const TempFolder folder;
  WriteOpus(folder);
  ASSERT_TRUE(PrepareIn(folder, "opus100_folder: 'opus'").ok());
  const auto report = PrepareIn(folder,
                                "opus100_folder: 'opus' "
                                "tokenizer { model_file: 'out/tokenizer.model' }",
                                nullptr, "second");
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(folder.Read("second/tokenizer.model"), folder.Read("out/tokenizer.model"));
  EXPECT_EQ(Corpus::Open(folder.Path("second"))->content_hash(),
            Corpus::Open(folder.Path("out"))->content_hash());
  const uint64_t hash = *HashFile(folder.Path("out/tokenizer.model"));
  const CorpusManifest manifest = Corpus::Open(folder.Path("second"))->manifest();
  EXPECT_EQ(std::ranges::find(manifest.inputs(), "out/tokenizer.model", &InputFile::name)->hash(),
            hash);
}

TEST(Prepare, AGivenTokenizerTakesThePlaceOfThatOfACorpusThatIsExtended) {
  const TempFolder folder;
  WriteOpus(folder);
  for (const auto& [pieces, output] : {std::pair(300, "out"), {310, "other"}}) {
    const std::string spec =
        absl::StrCat("opus100_folder: 'opus' tokenizer { vocab_size: ", pieces, " }");
    ASSERT_TRUE(PrepareIn(folder, spec, nullptr, output).ok());
  }
  const PrepareSpec spec = testing::PrepareSpecOf(
      "opus100_folder: 'opus' tokenizer { model_file: 'other/tokenizer.model' }");
  const auto extended = Prepare(spec, "out", folder.path(), {}, {.extend = true});
  ASSERT_TRUE(extended.ok()) << extended.status();
  EXPECT_EQ(extended->content_hash(), Corpus::Open(folder.Path("other"))->content_hash());
}

TEST(Prepare, EverySettingOfTheTokenizerCounts) {
  const TempFolder folder;
  WriteOpus(folder);
  std::map<std::string, std::string> settings_of;  // by model
  for (const std::string settings :
       {"", "character_coverage: 0.98", "type: 'bpe'", "vocab_size: 310",
        "normalization: 'identity'", "input_sentence_size: 60",
        "input_sentence_size: 60 sample_temperature: 1",
        "input_sentence_size: 60 } seed: 5 cleaning {"}) {
    std::string progress;
    const auto report = PrepareIn(
        folder, "opus100_folder: 'opus' replace: true tokenizer { " + settings + " }", &progress);
    ASSERT_TRUE(report.ok()) << settings << report.status();
    EXPECT_THAT(progress, Not(HasSubstr("encoded already"))) << settings;
    const auto [same, is_new] =
        settings_of.try_emplace(folder.Read("out/tokenizer.model"), settings);
    EXPECT_TRUE(is_new) << settings << " as " << same->second;
  }
}

// 61 sentences are 30 of each language: its share is rounded down.
TEST(Prepare, ATokenizersSampleHasBothSidesOfAPair) {
  const TempFolder folder;
  WriteOpus(folder);
  std::string progress;
  ASSERT_TRUE(PrepareIn(folder,
                        "opus100_folder: 'opus' languages: ['de', 'en'] tokenizer { "
                        "input_sentence_size: 61 }",
                        &progress)
                  .ok());
  EXPECT_THAT(progress, HasSubstr("learning 300 pieces from 60 sentences"));
}

// Earlier versions wrote where the corpus was into its spec.
TEST(Prepare, ReusesACorpusWhoseManifestNamesItsOutputFolder) {
  const TempFolder folder;
  WriteOpus(folder);
  ASSERT_TRUE(PrepareIn(folder, "opus100_folder: 'opus'").ok());
  std::string manifest = folder.Read("out/manifest.textproto");
  const size_t at = manifest.find("  opus100_folder: ");
  ASSERT_NE(at, std::string::npos);
  manifest = manifest.substr(0, manifest.rfind("digest: "));  // they wrote none
  folder.Write("out/manifest.textproto", manifest.insert(at, "  output_folder: \"out\"\n"));
  const auto again = PrepareIn(folder, "opus100_folder: 'opus'");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(again->reused());
}

TEST(Prepare, DoesNotCallADamagedCorpusFinishedAndReplacesIt) {
  const TempFolder folder;
  WriteOpus(folder);
  const std::string spec = "opus100_folder: 'opus'";
  const auto first = PrepareIn(folder, spec);
  ASSERT_TRUE(first.ok()) << first.status();
  for (const std::string name :
       {"train.de-en.pairs", "dev.de-en.de", "tokenizer.model", "parts.textproto"}) {
    const auto written = fs::last_write_time(folder.Path("out/" + name));
    std::string bytes = folder.Read("out/" + name);
    bytes[bytes.size() / 2] ^= 2;
    folder.Write("out/" + name, bytes);
    fs::last_write_time(folder.Path("out/" + name), written);  // as a disk does it
    const absl::Status status = PrepareIn(folder, spec).status();
    EXPECT_EQ(GetExitCode(status), ExitCode::kData) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("out holds a corpus that cannot be used ("), HasSubstr(name)));
    if (name == "tokenizer.model") {
      PrepareSpec kept = testing::PrepareSpecOf(spec + " tokenizer { vocab_size: 300 }");
      EXPECT_THAT(Message(Prepare(kept, "out", folder.path(), {}, {.extend = true})),
                  HasSubstr("tokenizer.model: damaged: its bytes do not match"));
    }
    std::string progress;
    const auto replaced = PrepareIn(folder, spec + " replace: true", &progress);
    ASSERT_TRUE(replaced.ok()) << replaced.status();
    EXPECT_EQ(replaced->content_hash(), first->content_hash()) << name;
    const bool is_shard = name == "train.de-en.pairs";
    EXPECT_EQ(
        absl::StrContains(progress, "warning: train.de-en.pairs of the earlier corpus is damaged"),
        is_shard)
        << progress;
    EXPECT_EQ(absl::StrContains(progress, "2 of 3 blocks are encoded already"), is_shard);
    EXPECT_TRUE(PrepareIn(folder, spec)->reused());
  }
  // A shard that is whole, with fewer pairs than were written.
  auto writer = ShardWriter::Create(folder.Path("out/train.de-en.pairs"), 8000);
  ASSERT_TRUE(writer.ok() && (*writer)->Finish().ok());
  std::string progress;
  const auto replaced = PrepareIn(folder, spec + " replace: true", &progress);
  ASSERT_TRUE(replaced.ok()) << replaced.status();
  EXPECT_EQ(replaced->content_hash(), first->content_hash());
  EXPECT_THAT(progress, HasSubstr("warning: train.de-en.pairs of the earlier corpus is damaged"));
}

TEST(Prepare, ALongCorpusIsReadWhereAFileIsNewerThanItsManifestOrItIsAskedFor) {
  const TempFolder folder;
  WriteOpus(folder);
  ASSERT_TRUE(PrepareIn(folder, "opus100_folder: 'opus'").ok());
  const std::string text = folder.Path("out/dev.de-en.de"), longer = folder.Path("out/long");
  std::string bytes = folder.Read("out/dev.de-en.de");
  bytes[bytes.size() / 2] ^= 2;
  folder.Write("out/dev.de-en.de", bytes);
  auto manifest = ReadManifest(folder.Path("out"));
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  CorpusFile& file = *manifest->add_files();
  file.set_name("long");
  file.set_bytes((int64_t{1} << 30) + 1);
  manifest->mutable_report()->set_content_hash(ContentHash(*manifest));
  folder.Write("out/long", "");
  fs::resize_file(longer, static_cast<uintmax_t>(file.bytes()));
  folder.Write("out/manifest.textproto", ManifestText(*manifest));
  const auto written = fs::last_write_time(folder.Path("out/manifest.textproto"));
  for (const std::string& path : {text, longer}) fs::last_write_time(path, written);
  EXPECT_TRUE(PrepareIn(folder, "opus100_folder: 'opus'")->reused());
  PrepareSpec spec = testing::PrepareSpecOf("opus100_folder: 'opus' tokenizer { vocab_size: 300 }");
  const auto verified = Prepare(spec, "out", folder.path(), {}, {.verify = true});
  EXPECT_THAT(Message(verified), HasSubstr("dev.de-en.de: damaged"));
  fs::last_write_time(longer, written + std::chrono::seconds(1));
  EXPECT_THAT(Message(PrepareIn(folder, "opus100_folder: 'opus'")),
              HasSubstr("dev.de-en.de: damaged"));
}

TEST(Prepare, GivesTheSameCorpusForAnyNumberOfThreads) {
  const TempFolder folder;
  WriteOpus(folder);
  const auto one = PrepareIn(folder, "opus100_folder: 'opus' threads: 1", nullptr, "one");
  const auto five = PrepareIn(folder, "opus100_folder: 'opus' threads: 5", nullptr, "five");
  ASSERT_TRUE(one.ok() && five.ok());
  EXPECT_EQ(one->content_hash(), five->content_hash());
  EXPECT_EQ(folder.Read("one/train.de-en.pairs"), folder.Read("five/train.de-en.pairs"));
}

TEST(Prepare, NamesTheThreadsThatTheSystemDoesNotGive) {
  TempFolder folder;
  WriteOpus(folder);
  ASSERT_TRUE(PrepareIn(folder, "opus100_folder: 'opus'").ok());
  const testing::ThreadLimit limit(2);
  const auto report = PrepareIn(
      folder, "opus100_folder: 'opus' threads: 9 tokenizer { model_file: 'out/tokenizer.model' }",
      nullptr, "other");
  EXPECT_EQ(GetExitCode(report.status()), ExitCode::kDoesNotFit) << report.status();
  EXPECT_THAT(std::string(report.status().message()),
              AllOf(HasSubstr("prepare.threads: "), HasSubstr(" of 9 run")));
}

TEST(Prepare, ReusesACorpusOfTheSameInputAndRefusesAnother) {
  const TempFolder folder;
  WriteOpus(folder);
  const std::string spec = "opus100_folder: 'opus'";
  const std::string name = "opus/de-en/opus.de-en-train.en";
  const auto written = fs::last_write_time(folder.Path(name));
  const auto first = PrepareIn(folder, spec);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_FALSE(first->reused());
  const auto again = PrepareIn(folder, spec + " threads: 3");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(again->reused());
  EXPECT_EQ(again->content_hash(), first->content_hash());

  const std::string bytes = folder.Read(name);
  folder.Write(name, bytes + "more\n");
  fs::last_write_time(folder.Path(name), written);
  EXPECT_THAT(Message(PrepareIn(folder, spec)), HasSubstr("opus.de-en-train.en has changed"));
  folder.Write(name, bytes);  // the same bytes at another time
  folder.Write("out/.deepnet-scratch/replaced/report.json", "killed before it deleted this");
  EXPECT_TRUE(PrepareIn(folder, spec)->reused());
  EXPECT_FALSE(fs::exists(folder.Path("out/.deepnet-scratch")));

  EXPECT_THAT(Message(PrepareIn(folder, spec + " seed: 5")),
              AllOf(HasSubstr("holds another corpus"), HasSubstr("seed")));
  std::string changed = bytes;
  changed[0] = changed[0] == 'X' ? 'Y' : 'X';
  folder.Write(name, changed);
  EXPECT_THAT(Message(PrepareIn(folder, spec)), HasSubstr("opus.de-en-train.en has changed"));
  const auto replaced = PrepareIn(folder, spec + " replace: true");
  ASSERT_TRUE(replaced.ok()) << replaced.status();
  EXPECT_FALSE(replaced->reused());
  EXPECT_NE(replaced->content_hash(), first->content_hash());

  fs::rename(folder.Path("out"), folder.Path("moved"));
  EXPECT_EQ(PrepareIn(folder, spec, nullptr, "moved")->folder(), folder.Path("moved"));
  fs::remove_all(folder.Path("opus/en-ru"));
  EXPECT_THAT(Message(PrepareIn(folder, spec, nullptr, "moved")), HasSubstr("other input files"));
}

TEST(Prepare, NeverTouchesAFolderThatIsNoCorpus) {
  const TempFolder folder;
  WriteOpus(folder);
  folder.Write("out/thesis.txt", "years of work");
  EXPECT_THAT(Message(PrepareIn(folder, "opus100_folder: 'opus' replace: true")),
              HasSubstr("is no prepared corpus"));
  EXPECT_EQ(folder.Read("out/thesis.txt"), "years of work");
}

TEST(Prepare, LeavesAloneWhatOthersHaveBesideItsFolder) {
  const TempFolder folder;
  WriteOpus(folder);
  ASSERT_TRUE(PrepareIn(folder, "opus100_folder: 'opus'").ok());
  folder.Write("out.old/NOTES", "a backup");
  folder.Write("out.tmp/mine/y", "x");
  folder.Write("out/scratch/z", "x");
  ASSERT_TRUE(PrepareIn(folder, "opus100_folder: 'opus'").ok());
  EXPECT_EQ(folder.Read("out/scratch/z"), "x");
  ASSERT_TRUE(PrepareIn(folder, "opus100_folder: 'opus' seed: 5 replace: true").ok());
  EXPECT_EQ(folder.Read("out.old/NOTES"), "a backup");
  EXPECT_EQ(folder.Read("out.tmp/mine/y"), "x");
}

TEST(Prepare, EntersNoLinkThatStandsWhereItWorks) {
  for (const char* link : {"out.deepnet-unfinished", "out.deepnet-unfinished/.deepnet-scratch",
                           "out.deepnet-unfinished/other", ".out.lock"}) {
    const TempFolder folder;
    WriteOpus(folder);
    folder.Write("home/thesis.part", "years of work");
    fs::create_directories(fs::path(folder.Path(link)).parent_path());
    fs::create_directory_symlink(folder.Path("home"), folder.Path(link));
    const bool is_lock = std::string_view(link) == ".out.lock";
    EXPECT_EQ(PrepareIn(folder, "opus100_folder: 'opus'").ok(), !is_lock) << link;
    EXPECT_THAT(folder.FilesBelow("home"), ElementsAre("thesis.part")) << link;
    EXPECT_EQ(fs::is_symlink(folder.Path("out")), false) << link;
  }
}

TEST(Prepare, WorksWhereItsFoldersLinkLeads) {
  const TempFolder folder;
  WriteOpus(folder);
  fs::create_directories(folder.Path("scratch"));
  fs::create_directory_symlink("scratch/none", folder.Path("out"));
  for (const char* spec : {"", "seed: 5 replace: true"}) {
    ASSERT_TRUE(PrepareIn(folder, absl::StrCat("opus100_folder: 'opus' ", spec)).ok());
    EXPECT_TRUE(fs::is_symlink(folder.Path("out")));
    EXPECT_TRUE(fs::exists(folder.Path("scratch/none/manifest.textproto")));
    EXPECT_EQ(folder.FilesBelow("scratch").size(), folder.FilesBelow("scratch/none").size() + 2);
  }
  fs::remove(folder.Path("out"));
  fs::create_directory_symlink("out", folder.Path("out"));
  EXPECT_THAT(Message(PrepareIn(folder, "opus100_folder: 'opus'")),
              HasSubstr("out' is a symbolic link to itself"));
}

Identity IdentityOf(const std::string& path) {
  struct stat status = {};
  EXPECT_EQ(stat(path.c_str(), &status), 0) << path;
  return ::IdentityOf(status);
}

// Returns what Prepare() synced before it renamed something to `path`, and after that.
std::pair<std::vector<Identity>, std::vector<Identity>> SyncedByPrepare(const TempFolder& folder,
                                                                        const std::string& spec,
                                                                        const std::string& path) {
  synced.clear();
  renamed_to = folder.Path(path);
  const auto report = PrepareIn(folder, spec);
  renamed_to.clear();
  EXPECT_TRUE(report.ok()) << report.status();
  return {std::exchange(synced_before, {}), std::exchange(synced, {})};
}

// The shard of en-fr, of two texts, is written; the others are links to their only block.
TEST(Prepare, WhatIsPublishedIsOnTheDisk) {
  const TempFolder folder;
  WriteOpus(folder);
  const std::string train = "opus/en-fr/opus.en-fr-train.";
  const auto [before, after] = SyncedByPrepare(
      folder,
      absl::StrCat("opus100_folder: 'opus' text { source_language: 'en' target_language: 'fr' ",
                   "source_file: '", train, "en' target_file: '", train, "fr' }"),
      "out");
  for (const std::string& name : folder.FilesBelow("out")) {
    EXPECT_THAT(before, Contains(IdentityOf(folder.Path("out/" + name)))) << name;
  }
  EXPECT_EQ(before.back(), IdentityOf(folder.Path("out")));
  EXPECT_THAT(after, Contains(IdentityOf(folder.path())));
}

// As root alone: nobody else can mount.
TEST(Prepare, FillsAMountPointThatItCannotReplace) {
  if (unshare(CLONE_NEWNS) != 0) return;
  ASSERT_EQ(mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr), 0);
  const TempFolder folder;
  WriteOpus(folder);
  fs::create_directory(folder.Path("out"));
  ASSERT_EQ(mount("none", folder.Path("out").c_str(), "tmpfs", 0, "size=8m"), 0);
  fs::create_directory(folder.Path("out/lost+found"));
  const auto [before, after] =
      SyncedByPrepare(folder, "opus100_folder: 'opus'", "out/manifest.textproto");
  EXPECT_EQ(before.back(), IdentityOf(folder.Path("out")));
  EXPECT_EQ(after.back(), IdentityOf(folder.Path("out")));
  EXPECT_TRUE(PrepareIn(folder, "opus100_folder: 'opus'")->reused());
  folder.Write("out/mine", "x");
  // Killed when the first file had been moved.
  fs::create_directory(folder.Path("out/.deepnet-unfinished"));
  for (const char* name : {"manifest.textproto", "tokenizer.model"}) {
    fs::rename(folder.Path(absl::StrCat("out/", name)),
               folder.Path(absl::StrCat("out/.deepnet-unfinished/", name)));
  }
  EXPECT_TRUE(PrepareIn(folder, "opus100_folder: 'opus'")->reused());
  ASSERT_TRUE(
      PrepareIn(folder, "opus100_folder: 'opus' languages: ['de', 'en'] replace: true").ok());
  EXPECT_EQ(folder.Read("out/mine"), "x");
  EXPECT_FALSE(fs::exists(folder.Path("out/train.en-fr.pairs")));
  EXPECT_FALSE(fs::exists(folder.Path("out/.deepnet-unfinished")));
  EXPECT_TRUE(Corpus::Open(folder.Path("out")).ok());
  // No manifest stands among files of another corpus.
  const std::string other = "opus100_folder: 'opus' languages: ['en', 'fr'] replace: true";
  no_rename_to = folder.Path("out/manifest.textproto");
  EXPECT_THAT(Message(PrepareIn(folder, other)), HasSubstr("manifest.textproto"));
  no_rename_to.clear();
  EXPECT_TRUE(absl::IsNotFound(Corpus::Open(folder.Path("out")).status()));
  EXPECT_TRUE(PrepareIn(folder, other)->reused());
  EXPECT_TRUE(Corpus::Open(folder.Path("out"))->CheckContent().ok());
  ASSERT_EQ(umount(folder.Path("out").c_str()), 0);
}

TEST(Prepare, ReplacesNoFolderThatHoldsItsText) {
  const TempFolder folder;
  WriteOpus(folder);
  ASSERT_TRUE(PrepareIn(folder, "opus100_folder: 'opus'").ok());
  fs::rename(folder.Path("opus"), folder.Path("out/opus"));
  const absl::Status status =
      PrepareIn(folder, "opus100_folder: 'out/opus' seed: 5 replace: true").status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("out holds the text "));
  EXPECT_TRUE(fs::exists(folder.Path("out/opus")));
}

TEST(Prepare, TidiesUpWhatAnInterruptedOneLeft) {
  const TempFolder folder;
  WriteOpus(folder);
  folder.Write("out.deepnet-unfinished/.deepnet-scratch/junk", "left");
  folder.Write("out.deepnet-unfinished/train.de-en.pairs", "half");
  EXPECT_FALSE(Corpus::Open(folder.Path("out.deepnet-unfinished")).ok());
  ASSERT_TRUE(PrepareIn(folder, "opus100_folder: 'opus'").ok());
  EXPECT_FALSE(fs::exists(folder.Path("out.deepnet-unfinished")));
  EXPECT_THAT(folder.FilesBelow("out"),
              AllOf(Not(Contains(".deepnet-scratch")), Not(Contains(HasSubstr("junk"))),
                    IsSupersetOf({"manifest.textproto", "report.json", "tokenizer.model",
                                  "train.de-en.pairs", "dev.de-en.de", "test.en-ru.ru"})));
}

}  // namespace
}  // namespace deepnet

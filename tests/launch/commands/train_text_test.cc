#include "launch/commands/train_text.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "launch/validate.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/communicator.h"
#include "tests/launch/commands/run_command.h"
#include "tests/trainer/data/prepared_corpus.h"
#include "tests/trainer/data/temp_folder.h"
#include "trainer/data/corpus.h"

namespace deepnet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Outcome;
using testing::TempFolder;

absl::Status RunTry(const CommandLine& line) {
  ASSIGN_OR_RETURN(const RunSpec run, LoadTrainConfig(line));
  SelfCommunicator alone;
  Logger log({.stream = &line.err});
  return PrepareText(line, run, alone, log);
}

// `train` without the training.
Command Try() {
  Command command = {.name = "train",
                     .summary = "Train.",
                     .arguments = "--config FILE | --text SOURCE TARGET",
                     .max_arguments = 1,
                     .spec = SpecUse::kRequired,
                     .load = LoadTrainConfig,
                     .validate = ValidateForTrain,
                     .flags = TextFlags(),
                     .run = RunTry};
  command.flags.push_back(SwitchFlag("require-empty", "As train's."));
  return command;
}

class TrainTextTest : public ::testing::Test {
 protected:
  TrainTextTest() { testing::WritePairs(folder_, "a", "en", "de", testing::UdhrPairs()["de"]); }

  Outcome Run(std::vector<std::string> words) {
    words.insert(words.end(), {"--root", folder_.path()});
    return testing::RunCommand(Try(), words);
  }
  RunSpec Dumped(std::vector<std::string> words) {
    words.push_back("--dump-config");
    RunSpec run;
    const Outcome outcome = Run(std::move(words));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(outcome.out, &run)) << outcome.out;
    return run;
  }

  TempFolder folder_;
};

TEST_F(TrainTextTest, TwoFilesAreARunWithACorpusInItsFolder) {
  const RunSpec run = Dumped({"--text", "a.en", "a.de"});
  EXPECT_EQ(run.folder(), "runs/en-de");
  EXPECT_EQ(run.data().folder(), "runs/en-de/corpus");
  EXPECT_THAT(run.data().directions(), ElementsAre("en-de"));
  EXPECT_EQ(run.prepare().tokenizer().vocab_size(), 2000);
  folder_.Write("runs/en-de/text.deepnet-unfinished/old", "of a start that was killed");
  const Outcome outcome = Run({"--text", "a.en", "a.de"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto corpus = Corpus::Open(folder_.Path("runs/en-de/corpus"));
  ASSERT_TRUE(corpus.ok()) << corpus.status();
  const auto dev = corpus->Sentences("dev", "en", "de");
  ASSERT_TRUE(dev.ok()) << dev.status();
  EXPECT_EQ(dev->source.size(), 3u);  // of 60 pairs
  EXPECT_EQ(dev->source[1], testing::UdhrPairs()["de"][30].first);
  EXPECT_EQ(folder_.FilesBelow("runs/en-de/text").size(), 5u);
  EXPECT_FALSE(std::filesystem::exists(folder_.Path("runs/en-de/text.deepnet-unfinished")));
}

TEST_F(TrainTextTest, ASecondStartFindsItsWorkDoneAndOtherTextIsRefused) {
  ASSERT_EQ(Run({"--text", "a.en", "a.de"}).code, 0);
  const auto cut = std::filesystem::last_write_time(folder_.Path("runs/en-de/text/dev.en"));
  const Outcome again = Run({"--text", "a.en", "a.de"});
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_THAT(again.err, HasSubstr("already prepared: "));
  EXPECT_EQ(std::filesystem::last_write_time(folder_.Path("runs/en-de/text/dev.en")), cut);
  // Damage, or somebody's corrections: not replaced unasked, and cut again where it is asked for.
  const std::string text = folder_.Read("runs/en-de/text/train.en");
  std::string bad = text;
  bad[bad.size() / 2] ^= 1;
  folder_.Write("runs/en-de/text/train.en", bad);
  const Outcome changed = Run({"--text", "a.en", "a.de"});
  EXPECT_EQ(changed.code, 4) << changed.err;
  EXPECT_THAT(changed.err, HasSubstr("runs/en-de/text: a file was changed since it was cut"));
  EXPECT_EQ(folder_.Read("runs/en-de/text/train.en"), bad);
  EXPECT_EQ(Run({"--text", "a.en", "a.de", "--set", "prepare.replace=true"}).code, 0);
  EXPECT_EQ(folder_.Read("runs/en-de/text/train.en"), text);
  // Other files, as old as the ones before.
  const auto old = std::filesystem::last_write_time(folder_.Path("a.en"));
  testing::WritePairs(folder_, "b", "en", "de", {{"one", "eins"}, {"two", "zwei"}});
  for (const char* name : {"b.en", "b.de"}) {
    std::filesystem::last_write_time(folder_.Path(name), old);
  }
  const Outcome other = Run({"--text", "b.en", "b.de"});
  EXPECT_EQ(other.code, 4) << other.err;
  EXPECT_THAT(other.err, HasSubstr("runs/en-de is the run of another text"));
  EXPECT_EQ(folder_.Read("runs/en-de/text/train.en"), text);
  // Its own target, changed.
  folder_.Write("a.de", folder_.Read("a.de").insert(3, "x"));
  const Outcome target = Run({"--text", "a.en", "a.de"});
  EXPECT_EQ(target.code, 4) << target.err;
  EXPECT_THAT(target.err, HasSubstr("runs/en-de is the run of another text"));
}

TEST_F(TrainTextTest, AtMostAThousandPairsAreHeldOut) {
  testing::WritePairs(folder_, "b", "en", "de", testing::TextPairs(21'000, {"one", "eins"}));
  Run({"--text", "b.en", "b.de"});
  const std::string dev = folder_.Read("runs/en-de/text/dev.en");
  EXPECT_EQ(std::ranges::count(dev, '\n'), 21'000 / 21);
}

TEST_F(TrainTextTest, TheVocabularyGrowsWithTheTextAndCompressedTextIsMore) {
  folder_.Write("b.en.gz", std::string(900'000, 'x'));
  folder_.Write("b.de", std::string(300'000, 'x'));
  EXPECT_EQ(Dumped({"--text", "b.en.gz", "b.de"}).prepare().tokenizer().vocab_size(), 3000);
}

TEST_F(TrainTextTest, AFolderThatItDidNotMakeOrThatHoldsASourceIsRefusedUntouched) {
  namespace fs = std::filesystem;
  testing::WritePairs(folder_, "text/a", "en", "de", testing::UdhrPairs()["de"]);
  folder_.Write("text/my_novel/ch1.tex", "years of work");
  const std::vector<std::string> before = folder_.FilesBelow("text");
  for (const char* name : {"a", "text/a"}) {
    const std::string stem = name;
    const Outcome outcome = Run({"--text", stem + ".en", stem + ".de", "--set", "folder=."});
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("/text"));
    EXPECT_EQ(folder_.FilesBelow("text"), before);
  }
  // Not its own either: a link to such a folder, and what only has a name like those that it gives.
  ASSERT_EQ(Run({"--text", "a.en", "a.de", "--set", "folder=r"}).code, 0);
  const Outcome inside = Run({"--text", "r/text/train.en", "r/text/train.de", "--set", "folder=r"});
  EXPECT_EQ(inside.code, 2) << inside.err;
  EXPECT_THAT(inside.err, HasSubstr("r/text would be replaced and holds "));
  fs::rename(folder_.Path("r/text"), folder_.Path("kept"));
  fs::create_directory_symlink(folder_.Path("kept"), folder_.Path("r/text"));
  folder_.Write("r/text.tmp/mine", "x");
  EXPECT_EQ(Run({"--text", "a.en", "a.de", "--set", "folder=r"}).code, 2);
  EXPECT_EQ(folder_.FilesBelow("kept").size(), 5u);
  EXPECT_EQ(folder_.Read("r/text.tmp/mine"), "x");
}

TEST_F(TrainTextTest, ConfigAndSetChangeAllButTheText) {
  folder_.Write("run.textproto",
                "# proto-file: proto/run.proto\n# proto-message: deepnet.RunSpec\n"
                "model { encoder_layers: 3 } data { folder: 'elsewhere' } "
                "prepare { opus100_folder: 'opus' languages: 'fr' table { file: 'a.tsv' } "
                "text { tsv_file: 'b.tsv' } tokenizer { type: 'bpe' } }");
  const RunSpec run = Dumped({"--text", "a.en", "a.de", "--config", folder_.Path("run.textproto"),
                              "--set", "folder=r", "--from", "x", "--set", "data.directions=*-*"});
  EXPECT_EQ(run.model().encoder_layers(), 3);
  EXPECT_EQ(run.model().decoder_layers(), 12);
  EXPECT_EQ(run.data().folder(), "r/corpus");
  EXPECT_THAT(run.data().directions(), ElementsAre("*-*"));
  EXPECT_EQ(run.prepare().opus100_folder(), "");
  EXPECT_EQ(run.prepare().languages_size() + run.prepare().table_size(), 0);
  EXPECT_EQ(run.prepare().text_size(), 2);
  EXPECT_EQ(run.prepare().tokenizer().type(), "bpe");
  EXPECT_EQ(run.prepare().text(0).source_language(), "x");
  EXPECT_EQ(run.prepare().text(0).source_file(), "r/text/train.x");
}

TEST_F(TrainTextTest, AMistakeNamesItsFlag) {
  const auto error = [&](const std::vector<std::string>& words, int code) {
    const Outcome outcome = Run(words);
    EXPECT_EQ(outcome.code, code) << outcome.err;
    return outcome.err;
  };
  folder_.Write("b.en", "one\n");
  EXPECT_THAT(error({}, 2), HasSubstr("--config: required, or --text SOURCE TARGET"));
  EXPECT_THAT(error({"--text", "a.en"}, 2), HasSubstr("--text: two files are needed"));
  EXPECT_THAT(error({"--text", "a.en", "b.en"}, 2), HasSubstr("say them by --from and --to"));
  EXPECT_THAT(error({"a.de"}, 2), HasSubstr("a.de: a word only follows --text"));
  EXPECT_THAT(error({"--to", "de"}, 2), HasSubstr("--to: only with --text"));
  EXPECT_THAT(error({"--text", "a.en", "no.de"}, 4),
              HasSubstr("--text: " + folder_.Path("no.de") + ": "));
  ASSERT_EQ(mkfifo(folder_.Path("pipe.de").c_str(), 0600), 0);
  EXPECT_THAT(error({"--text", "a.en", "pipe.de"}, 2),
              HasSubstr("--text: " + folder_.Path("pipe.de") + " is a pipe or a device"));
  EXPECT_THAT(error({"--text", "a.en", "a.de", "--require-empty"}, 2),
              HasSubstr("not with --text"));
  EXPECT_THAT(error({"--text", "b.en", "a.de"}, 4), HasSubstr("uneven line counts"));
  testing::WritePairs(folder_, "b", "en", "de", testing::TextPairs(10, {"one", "eins"}));
  EXPECT_THAT(error({"--text", "b.en", "b.de"}, 4),
              HasSubstr("--text: b.en: 10 lines, too few to hold any out as dev: at least 11"));
}

}  // namespace
}  // namespace deepnet

#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include <gmock/gmock.h>
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/text_format.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include "launch/commands/command.h"
#include "tests/launch/commands/run_command.h"
#include "tests/trainer/checkpoint/checkpoint_samples.h"
#include "trainer/checkpoint/run_lock.h"
#include "trainer/telemetry/spikes.h"

namespace deepnet {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using testing::Outcome;
using testing::RunCommand;
using testing::SaveSample;
using ::testing::StartsWith;

Outcome RunTool(std::vector<std::string> words) {
  return RunCommand(MakeCheckpointCommand(), std::move(words));
}

void ExpectIsJson(const std::string& text) {
  google::protobuf::Value value;
  const auto status = google::protobuf::util::JsonStringToMessage(text, &value);
  EXPECT_TRUE(status.ok()) << text;
}

// A run of three checkpoints in a folder of its own.
class CheckpointCommand : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = JoinPath(::testing::TempDir(), "checkpoint-command");
    fs_->DeleteTree(folder_).IgnoreError();
    for (const int64_t step : {10, 20, 30}) ASSERT_TRUE(SaveSample(*fs_, Run(), step).ok());
    ASSERT_TRUE(SetPointer(*fs_, Run(), "best-bleu", 20).ok());
  }
  void TearDown() override { fs_->DeleteTree(folder_).IgnoreError(); }

  std::string Run() const { return JoinPath(folder_, "run"); }
  std::string Step(const char* name) const { return JoinPath(Run(), name); }
  std::string Output() const { return JoinPath(folder_, "output"); }

  void Damage(const std::string& path, size_t offset) {
    std::string contents = *ReadWholeFile(*fs_, path, 1 << 20);
    contents[offset] = static_cast<char>(contents[offset] ^ 1);
    ASSERT_TRUE(ReplaceFile(*fs_, path, contents).ok());
  }

  std::string folder_;
  const std::unique_ptr<FileSystem> fs_ = MakePosixFileSystem();
};

TEST_F(CheckpointCommand, HelpListsTheToolsAndEachHasItsOwn) {
  const Outcome group = RunTool({"--help"});
  EXPECT_EQ(group.code, 0);
  EXPECT_THAT(group.out, StartsWith("deepnet checkpoint: List, inspect,"));
  for (const char* tool : {"list", "inspect", "verify", "diff", "reshard", "average", "prune"}) {
    EXPECT_THAT(group.out, HasSubstr(std::string("\n  ") + tool + " "));
    const Outcome own = RunTool({tool, "--help"});
    EXPECT_EQ(own.code, 0);
    EXPECT_THAT(own.out, StartsWith(std::string("deepnet checkpoint ") + tool + ": "));
    EXPECT_THAT(own.out, HasSubstr("--memory SIZE"));
  }
}

TEST_F(CheckpointCommand, MistakesExitWithTwo) {
  EXPECT_EQ(RunTool({}).code, 2);
  EXPECT_EQ(RunTool({"lst"}).err, "error: checkpoint lst: unknown command; did you mean 'list'?\n");
  EXPECT_THAT(RunTool({"list"}).err, HasSubstr("RUN: required"));
  EXPECT_THAT(RunTool({"diff", Run()}).err, HasSubstr("A B: required"));
  EXPECT_THAT(RunTool({"reshard", Run(), "--output", Output()}).err,
              HasSubstr("--files: required"));
  EXPECT_THAT(RunTool({"reshard", Run(), "--files=0", "--output", Output()}).err,
              HasSubstr("--files: 0: must be from 1 to"));
  EXPECT_THAT(RunTool({"reshard", Run(), "--files=2"}).err, HasSubstr("--output: required"));
  EXPECT_THAT(RunTool({"average", Run(), "--output", Output()}).err,
              HasSubstr("--last: required with one run folder"));
  EXPECT_THAT(RunTool({"prune", Run()}).err, HasSubstr("--keep: required"));
  const Outcome memory = RunTool({"verify", Run(), "--memory=256"});
  EXPECT_EQ(memory.code, 2);
  EXPECT_THAT(memory.err, HasSubstr("--memory: '256': a unit is needed"));
}

TEST_F(CheckpointCommand, TooLittleMemoryExitsWithSix) {
  for (const std::string& path : {Run(), Step("step-00000030")}) {
    const Outcome outcome = RunTool({"verify", path, "--memory=1KiB"});
    EXPECT_EQ(outcome.code, 6) << path;
    EXPECT_THAT(outcome.err, HasSubstr("of memory; allowed are 1.0 KiB"));
  }
}

TEST_F(CheckpointCommand, ListShowsStepsMarksAndDamage) {
  Damage(Step("step-00000010/manifest.pb"), 12);
  const Outcome outcome = RunTool({"list", Run()});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("damaged\n"));
  EXPECT_THAT(outcome.out, HasSubstr("intact      best-bleu\n"));
  EXPECT_THAT(outcome.out, HasSubstr("intact      latest\n"));
  EXPECT_THAT(outcome.out, HasSubstr("step-00000010/manifest.pb' is damaged or foreign"));
  EXPECT_EQ(outcome.err, "");
  ExpectIsJson(RunTool({"list", Run(), "--json"}).out);
  EXPECT_EQ(RunTool({"list", Run() + "-typo"}).code, 5);
}

TEST_F(CheckpointCommand, ListReadsEverythingWhenAsked) {
  Damage(Step("step-00000020/tensors-00000-of-00001.bin"), 200);
  EXPECT_THAT(RunTool({"list", Run()}).out, Not(HasSubstr("damaged")));
  EXPECT_THAT(RunTool({"list", Run(), "--verify"}).out, HasSubstr("is damaged in block 6"));
}

TEST_F(CheckpointCommand, InspectPrintsManifestTensorsAndSpec) {
  const Outcome outcome = RunTool({"inspect", Run(), "--filter", "weight/encoder", "--spec"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("step              30\n"));
  EXPECT_THAT(outcome.out, HasSubstr("inventory         0123456789abcdef\n"));
  EXPECT_THAT(outcome.out, HasSubstr("name: \"sample\""));
  EXPECT_THAT(outcome.out, HasSubstr("3x5              15  tensors-00000-of-00001.bin+0\n"));
  EXPECT_THAT(outcome.out, Not(HasSubstr("embed_tokens")));
  ExpectIsJson(RunTool({"inspect", Step("best-bleu"), "--json"}).out);
  EXPECT_THAT(RunTool({"inspect", Step("best-bleu"), "--json"}).out, HasSubstr("step-00000020"));
}

TEST_F(CheckpointCommand, InspectPrintsAllThatAManifestSays) {
  Manifest manifest = testing::SampleManifest(1234);
  ASSERT_TRUE(google::protobuf::TextFormat::MergeFromString(
      R"(corpus_hash: "c0" tokenizer_hash: "70" data { step: 1300 } optimizer_steps: 1230
         skipped_steps: 5 train_seconds: 3725 target_tokens: 2000000 source_tokens: 1900000
         best { metric: "bleu" value: 27.25 step: 1000 } best { metric: "nll" value: 2.5 step: 1200 }
         best { metric: "chrf" value: 41.5 step: 1234 }
         skips { first_step: 3 count: 1 } skips { first_step: 1100 count: 4 }
         averaged { folder: "a" manifest_crc32c: 255 } averaged { folder: "b" ema: true }
         spikes { step: 7 action: "SKIP" } spikes { step: 9 action: "WARN" })",
      &manifest));
  const std::string run = JoinPath(folder_, "full");
  ASSERT_TRUE(SaveCheckpoint(*fs_, run, manifest, testing::Views(testing::SampleTensors(1))).ok());
  const std::string step = run + "/step-00001234";
  const uint32_t crc = ReadManifest(*fs_, step)->manifest_crc32c();
  EXPECT_EQ(
      RunTool({"inspect", run, "--filter", "weight/encoder"}).out,
      absl::StrCat(
          "checkpoint        ", step,
          "\n"
          "run               sample\n"
          "step              1,234\n"
          "next data step    1,300\n"
          "updates           1,230, 5 steps skipped\n"
          "skipped           3, 1,100 to 1,103\n"
          "spikes            ",
          SpikeLine(manifest.spikes(0)), "\n                  ", SpikeLine(manifest.spikes(1)),
          "\n"
          "tokens            1,900,000 source, 2,000,000 target\n"
          "trained           1:02:05\n"
          "best              bleu 27.25 at step 1000, nll 2.5 at step 1200, "
          "chrf 41.5 at step 1234\n"
          "mean of           a (manifest 000000ff), b (ema; manifest 00000000)\n"
          "inventory         0123456789abcdef\n"
          "corpus            c0\n"
          "tokenizer         70\n"
          "format            version 1, checksums of 32 B, manifest ",
          absl::Hex(crc, absl::kZeroPad8),
          "\n"
          "file              tensors-00000-of-00001.bin  300 B in 10 blocks\n"
          "\n"
          "tensor                                       shape        elements  in file + byte\n"
          "weight/encoder.layers.0.fc1.weight             3x5              15  "
          "tensors-00000-of-00001.bin+0\n"
          "weight/encoder.layers.0.fc1.bias                 3               3  "
          "tensors-00000-of-00001.bin+60\n"));
  for (const char* mark : {"best-bleu", "best-chrf", "best-nll", "latest"}) {
    ASSERT_TRUE(SetPointer(*fs_, run, mark, 1234).ok());
  }
  EXPECT_THAT(RunTool({"list", run}).out,
              ::testing::MatchesRegex(
                  "      step  saved                   size    trained    target tokens  state     "
                  "  marks\n"
                  "      1234  ....-..-.. ..:.. +[0-9]+ B    1:02:05        2,000,000  intact    "
                  "  best-bleu, best-chrf 41.5, best-nll, latest\n"));
}

TEST_F(CheckpointCommand, DiffNamesEveryKindOfDifference) {
  std::vector<testing::SampleTensor> tensors = testing::SampleTensors(30);
  tensors[0].shape = {5, 3};
  tensors[1].data[1] += 2;
  tensors[2].name = "weight/new";
  const std::string run = JoinPath(folder_, "other");
  ASSERT_TRUE(SaveCheckpoint(*fs_, run, testing::SampleManifest(31), testing::Views(tensors)).ok());
  const std::string a = Run() + "/step-00000030", b = run + "/step-00000031";
  const Outcome outcome = RunTool({"diff", Run(), run});
  EXPECT_EQ(outcome.code, 5);
  EXPECT_EQ(outcome.out,
            absl::StrCat("a  ", a, "\nb  ", b,
                         "\n"
                         "only in a  weight/embed_tokens.weight\n"
                         "only in b  weight/new\n"
                         "reshaped   weight/encoder.layers.0.fc1.weight  3x5 -> 5x3\n"
                         "   max |a-b|      relative     of elements  tensor\n"
                         "           2      0.000664        33.3333%  "
                         "weight/encoder.layers.0.fc1.bias\n"
                         "6 tensors equal, 1 different, 1 reshaped, 2 in one of them only\n"));
  EXPECT_EQ(
      RunTool({"diff", Run(), run, "--json"}).out,
      absl::StrCat("{\"a\": \"", a, "\", \"b\": \"", b,
                   "\", \"step_a\": 30, \"step_b\": 31, \"identical\": false, "
                   "\"num_equal\": 6, \"different\": [\n"
                   "  {\"name\": \"weight/encoder.layers.0.fc1.bias\", \"num_elements\": 3, "
                   "\"num_different\": 1, \"max_absolute\": 2, "
                   "\"max_relative\": 0.00066395551498049632}], \"reshaped\": [\n"
                   "  {\"name\": \"weight/encoder.layers.0.fc1.weight\", \"shape_a\": [3, 5], "
                   "\"shape_b\": [5, 3]}], \"only_a\": [\"weight/embed_tokens.weight\"], "
                   "\"only_b\": [\"weight/new\"]}\n"));
}

TEST_F(CheckpointCommand, VerifyExitsWithFiveAndNamesAllDamage) {
  EXPECT_EQ(RunTool({"verify", Run()}).code, 0);
  Damage(Step("step-00000020/tensors-00000-of-00001.bin"), 0);
  Damage(Step("step-00000020/tensors-00000-of-00001.bin"), 299);
  const Outcome outcome = RunTool({"verify", Step("best-bleu")});
  EXPECT_EQ(outcome.code, 5);
  EXPECT_THAT(outcome.out, HasSubstr("in block 0 (bytes 0 to 31)"));
  EXPECT_THAT(outcome.out, HasSubstr("in block 9 (bytes 288 to 299)"));
  EXPECT_THAT(outcome.out, HasSubstr("\n    moment2/embed_tokens.weight\n"));
  EXPECT_THAT(outcome.out, HasSubstr("DAMAGED in 2 places"));
  EXPECT_EQ(outcome.err, "");
  const Outcome run = RunTool({"verify", Run(), "--json"});
  EXPECT_EQ(run.code, 5);
  ExpectIsJson(run.out);
  EXPECT_EQ(RunTool({"verify", Step("step-00000030")}).code, 0);
}

TEST_F(CheckpointCommand, DiffExitsWithFiveWhereTensorsDiffer) {
  const Outcome same = RunTool({"diff", Run(), Step("latest")});
  EXPECT_EQ(same.code, 0) << same.err;
  EXPECT_THAT(same.out, HasSubstr("identical: 9 tensors\n"));
  const Outcome other = RunTool({"diff", Step("step-00000010"), Run()});
  EXPECT_EQ(other.code, 5);
  EXPECT_THAT(other.out, HasSubstr("        2000 "));
  EXPECT_EQ(other.err, "");
  ExpectIsJson(RunTool({"diff", Step("step-00000010"), Run(), "--json"}).out);
}

TEST_F(CheckpointCommand, ReshardWritesAnIdenticalCheckpoint) {
  const Outcome outcome = RunTool({"reshard", Run() + "/", "--files=3", "--output", Output()});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, Output() + "/step-00000030\n");
  EXPECT_EQ(RunTool({"verify", Output()}).code, 0);
  EXPECT_EQ(RunTool({"diff", Run(), Output()}).code, 0);
  EXPECT_THAT(RunTool({"inspect", Output()}).out, HasSubstr("tensors-00002-of-00003.bin"));
  const std::string other = JoinPath(folder_, "unsynced");
  EXPECT_EQ(RunTool({"reshard", Run(), "--files=3", "--no-sync", "--output", other}).code, 0);
  EXPECT_EQ(RunTool({"verify", other}).code, 0);
  EXPECT_EQ(RunTool({"diff", Output(), other}).code, 0);
  const Outcome again = RunTool({"reshard", Run(), "--files=3", "--output", Output()});
  EXPECT_EQ(again.code, 2);
  EXPECT_THAT(again.err, HasSubstr("is not empty"));
}

TEST_F(CheckpointCommand, AverageOfTheLastIsThatOfTheNamedOnes) {
  const Outcome last = RunTool({"average", Run(), "--last=2", "--output", Output()});
  EXPECT_EQ(last.code, 0) << last.err;
  const Outcome named =
      RunTool({"average", Run(), Step("best-bleu"), "--output", JoinPath(folder_, "other")});
  EXPECT_EQ(named.code, 0) << named.err;
  EXPECT_EQ(RunTool({"diff", Output(), JoinPath(folder_, "other")}).code, 0);
  EXPECT_THAT(RunTool({"inspect", Output()}).out, HasSubstr("mean of           "));
  EXPECT_EQ(RunTool({"average", Run(), "--last=4", "--output", Output() + "2"}).code, 5);
  const Outcome ema = RunTool({"average", Run(), "--ema", "--output", Output() + "3"});
  EXPECT_EQ(ema.code, 5);
  EXPECT_THAT(ema.err, HasSubstr("optim.ema_decay was off in that run"));
}

// An interrupted save leaves such folders beside the checkpoints.
TEST_F(CheckpointCommand, AverageAndVerifyPassOverFoldersThatAreNoCheckpointsOfTheirOwn) {
  for (const int64_t step : {15, 40}) ASSERT_TRUE(SaveSample(*fs_, Run(), step).ok());
  ASSERT_TRUE(fs_->Rename(Step("step-00000015"), Step("step-00000030.deepnet-replaced")).ok());
  ASSERT_TRUE(fs_->Rename(Step("step-00000040"), Step("step-00000040.deepnet-unfinished")).ok());
  EXPECT_EQ(RunTool({"average", Run(), "--last=2", "--output", Output()}).code, 0);
  const std::string other = JoinPath(folder_, "other");
  ASSERT_EQ(
      RunTool({"average", Step("step-00000020"), Step("step-00000030"), "--output", other}).code,
      0);
  EXPECT_EQ(RunTool({"diff", Output(), other}).code, 0);
  EXPECT_EQ(RunTool({"average", Run(), "--last=4", "--output", Output() + "4"}).code, 5);
  EXPECT_EQ(RunTool({"average", Run(), other, "--last=1", "--output", Output() + "1"}).code, 2);
  Damage(Step("step-00000040.deepnet-unfinished/tensors-00000-of-00001.bin"), 0);
  const Outcome verified = RunTool({"verify", Run()});
  EXPECT_EQ(verified.code, 0) << verified.out;
  EXPECT_THAT(verified.out, Not(HasSubstr("unfinished")));
}

TEST_F(CheckpointCommand, PruneSaysWhatItDoes) {
  const Outcome dry = RunTool({"prune", Run(), "--keep=1", "--dry-run"});
  EXPECT_EQ(dry.code, 0) << dry.err;
  EXPECT_THAT(dry.out, StartsWith("would delete step-00000010\n1 to delete, "));
  EXPECT_TRUE(*Exists(*fs_, Step("step-00000010")));
  EXPECT_THAT(RunTool({"prune", Run(), "--keep=1"}).out, StartsWith("deleted step-00000010\n"));
  EXPECT_FALSE(*Exists(*fs_, Step("step-00000010")));
}

TEST_F(CheckpointCommand, WhatAStrangersCheckpointIsCalledReachesNoTerminal) {
  const std::string run = JoinPath(folder_, "\x1b[2Jrun");
  Manifest manifest = testing::SampleManifest(40);
  manifest.mutable_run()->set_name("x\x1b]0;TITLE\a\x1b[2J\u009b\nrun é中");
  std::vector<testing::SampleTensor> tensors = testing::SampleTensors(40);
  tensors[0].name = "weight/\x1b[2J.weight";
  ASSERT_TRUE(SaveCheckpoint(*fs_, run, manifest, testing::Views(tensors)).ok());
  const std::vector<std::vector<std::string>> commands = {{"list", run},
                                                          {"inspect", run},
                                                          {"inspect", run, "--spec"},
                                                          {"verify", run},
                                                          {"diff", run, Run()},
                                                          {"prune", run, "--keep=1"},
                                                          {"average", run, "--output", run},
                                                          {"inspect", JoinPath(run, "none")},
                                                          {"inspect", run, "--json"},
                                                          {"diff", run, Run(), "--json"}};
  for (const std::vector<std::string>& words : commands) {
    const Outcome outcome = RunTool(words);
    for (const char* bad : {"\x1b", "\a", "\u009b"}) {
      EXPECT_THAT(outcome.out + outcome.err, Not(HasSubstr(bad))) << words[0];
    }
  }
  const std::string seen = RunTool({"inspect", run}).out;
  EXPECT_THAT(seen,
              HasSubstr("run               x\uFFFD]0;TITLE\uFFFD\uFFFD[2J\uFFFD\uFFFDrun é中\n"));
  EXPECT_THAT(seen, HasSubstr("\nweight/\uFFFD[2J.weight "));
  EXPECT_THAT(RunTool({"inspect", JoinPath(run, "none")}).err, HasSubstr("\uFFFD[2Jrun/none"));
  const std::string json = RunTool({"inspect", run, "--json"}).out;
  ExpectIsJson(json);
  EXPECT_THAT(json, HasSubstr("weight/\\u001b[2J.weight"));
}

TEST_F(CheckpointCommand, PruneKeepsEveryNthStep) {
  ASSERT_TRUE(SaveSample(*fs_, Run(), 40).ok());
  EXPECT_THAT(RunTool({"prune", Run(), "--keep=1", "--keep-every=0"}).err,
              HasSubstr("--keep-every: 0: must be from 1 to"));
  EXPECT_THAT(RunTool({"prune", Run(), "--keep=1", "--keep-every=10", "--dry-run"}).out,
              StartsWith("0 to delete"));
  EXPECT_THAT(RunTool({"prune", Run(), "--keep=1", "--keep-every=15"}).out,
              StartsWith("deleted step-00000010\n1 deleted"));
}

// The lock of a run in this very process: it is alive, and asked for by its number.
TEST_F(CheckpointCommand, PruneIsRefusedWhileARunIsAlive) {
  auto run = RunLock::Acquire(*fs_, Run(), MakeRunOwner("88"), {});
  ASSERT_TRUE(run.ok()) << run.status();
  const Outcome refused = RunTool({"prune", Run(), "--keep=1"});
  EXPECT_EQ(refused.code, 5);
  EXPECT_THAT(refused.err, HasSubstr("in use: process " + std::to_string(getpid()) + " on "));
  EXPECT_THAT(refused.err, HasSubstr("(job 88)"));
  EXPECT_TRUE(*Exists(*fs_, Step("step-00000010")));
  EXPECT_EQ(RunTool({"prune", Run(), "--keep=1", "--dry-run"}).code, 0);
  run->reset();
  EXPECT_EQ(RunTool({"prune", Run(), "--keep=1"}).code, 0);
  EXPECT_FALSE(*Exists(*fs_, Step("step-00000010")));
  EXPECT_FALSE(*Exists(*fs_, Step("lock")));
}

}  // namespace
}  // namespace deepnet

#include "trainer/telemetry/event_file.h"

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "proto/report.pb.h"
#include "tests/support/event_reader.h"

namespace deepnet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using testing::ReadEventFile;
using testing::ReadShownFigures;
using ::testing::UnorderedElementsAre;

namespace fs = std::filesystem;

// A folder of this test that does not exist yet.
std::string FreshFolder() {
  const auto* const test = ::testing::UnitTest::GetInstance()->current_test_info();
  const fs::path folder = fs::path(::testing::TempDir()) / "event_file_test" / test->name();
  fs::remove_all(folder);
  return folder;
}

std::vector<std::string> FilesOf(const std::string& folder) {
  std::vector<std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

StepRecord Train(int64_t step, double loss) {
  StepRecord record;
  record.set_kind("train");
  record.set_step(step);
  record.set_loss(loss);
  return record;
}

TEST(TfRecord, IsLengthBytesAndTheirMaskedChecksums) {
  // The CRC-32C of "123456789" is 0xE3069283; the mask makes ((x >> 15) | (x << 17)) + 0xA282EAD8
  // = 0xC78AB0E5 of it.
  const std::string record = ToTfRecord("123456789");
  ASSERT_EQ(record.size(), 8u + 4 + 9 + 4);
  EXPECT_EQ(record.substr(0, 8), std::string("\x09\0\0\0\0\0\0\0", 8));
  EXPECT_EQ(record.substr(12, 9), "123456789");
  EXPECT_EQ(record.substr(21), "\xE5\xB0\x8A\xC7");
}

TEST(EventWriter, FiguresComeBackByKindNameAndDirection) {
  const std::string folder = FreshFolder();
  EventWriter events(folder, /*last_step=*/0);
  ASSERT_TRUE(events.Write(Train(10, 4.5)).ok());
  EvalRecord scores;
  scores.set_kind("validation");
  scores.set_step(10);
  scores.set_bleu(12.5);
  DirectionScore& score = *scores.add_directions();
  score.set_direction("de-en");
  score.set_sentences(200);
  score.set_nll(2.25);
  ASSERT_TRUE(events.Write(scores).ok());
  score.clear_nll();  // no figure is no 0
  ASSERT_TRUE(events.Write(scores).ok());
  EXPECT_THAT(ReadShownFigures(folder),
              UnorderedElementsAre(Pair("train/loss", ElementsAre(Pair(10, 4.5f))),
                                   Pair("validation/bleu", ElementsAre(Pair(10, 12.5f))),
                                   Pair("nll/de-en", ElementsAre(Pair(10, 2.25f)))));
  const auto first = ReadEventFile(FilesOf(folder)[0]).at(0);
  EXPECT_EQ(first.file_version(), "brain.Event:2");
  EXPECT_GT(first.wall_time(), 1.7e9);
}

TEST(EventWriter, AZeroIsShownOnceTheFigureHasBeenSomethingElse) {
  const std::string folder = FreshFolder();
  EventWriter events(folder, 0);
  for (const int64_t step : {1, 2, 3}) ASSERT_TRUE(events.Write(Train(step, step == 2)).ok());
  EXPECT_THAT(ReadShownFigures(folder),
              ElementsAre(Pair("train/loss", ElementsAre(Pair(2, 1.0f), Pair(3, 0.0f)))));
}

TEST(EventWriter, SamplesAreTextThatMarkdownLeavesAlone) {
  const std::string folder = FreshFolder();
  EvalRecord scores;
  scores.set_kind("validation");
  SampleTranslation& sample = *scores.add_samples();
  sample.set_direction("de-en");
  sample.set_line(12);
  sample.set_source("1. *a* <b> & `c`");
  ASSERT_TRUE(EventWriter(folder, 0).Write(scores).ok());
  const auto events = ReadEventFile(FilesOf(folder).at(0));
  const auto& value = events.back().summary().value(0);
  EXPECT_EQ(value.tag(), "sample/de-en.12");
  EXPECT_EQ(value.metadata().plugin_data().plugin_name(), "text");
  EXPECT_EQ(value.tensor().tensor_shape().dim(0).size(), 3);
  EXPECT_THAT(value.tensor().string_val(), ElementsAre("**source** 1. \\*a\\* &lt;b> &amp; \\`c\\`",
                                                       "**reference** ", "**translation** "));
}

TEST(EventWriter, StepsAfterTheResumedOneAreNoLongerShown) {
  const std::string folder = FreshFolder();
  for (int start = 0; start < 11; ++start) {  // the eleventh file is read after the second
    EventWriter events(folder, /*last_step=*/start);
    ASSERT_TRUE(events.Write(Train(start + 1, start + 1)).ok());
    ASSERT_TRUE(events.Write(Train(start + 2, 100)).ok());
  }
  EventWriter events(folder, /*last_step=*/11);
  ASSERT_TRUE(events.Write(Train(12, 12)).ok());
  ASSERT_TRUE(events.Write(Train(13, 13)).ok());
  events.GoBack(3);
  ASSERT_TRUE(events.Write(Train(4, 5)).ok());
  EXPECT_THAT(ReadShownFigures(folder),
              ElementsAre(Pair("train/loss", ElementsAre(Pair(1, 1.0f), Pair(2, 2.0f),
                                                         Pair(3, 3.0f), Pair(4, 5.0f)))));
}

TEST(EventWriter, ACrashLosesTheRecordItTearsAndNoOther) {
  const std::string folder = FreshFolder();
  for (const int64_t step : {1, 2}) {
    ASSERT_TRUE(EventWriter(folder, step - 1).Write(Train(step, step)).ok());
    ASSERT_TRUE(EventWriter(folder, step - 1).Write(Train(step, step)).ok());
  }
  const std::string torn = FilesOf(folder)[2];  // that of the first record of step 2
  for (auto size = static_cast<int64_t>(fs::file_size(torn)); size > 0; --size) {
    fs::resize_file(torn, size - 1);
    EXPECT_THAT(ReadShownFigures(folder)["train/loss"], ElementsAre(Pair(1, 1.0f), Pair(2, 2.0f)));
  }
}

TEST(EventWriter, AFullDiskCostsTheRecordsThatDidNotFit) {
  const std::string folder = FreshFolder();
  EventWriter events(folder, 0);
  ASSERT_TRUE(events.Write(Train(1, 1)).ok());
  const auto size = fs::file_size(FilesOf(folder)[0]);
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit{};
  getrlimit(RLIMIT_FSIZE, &limit);
  const rlimit full{.rlim_cur = size + 20, .rlim_max = limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &full), 0);
  const absl::Status second = events.Write(Train(2, 2)), third = events.Write(Train(3, 3));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  EXPECT_THAT(std::string(second.message()), HasSubstr(FilesOf(folder)[0]));
  EXPECT_FALSE(third.ok());
  EXPECT_EQ(fs::file_size(FilesOf(folder)[0]), size + 20);  // torn
  ASSERT_TRUE(events.Write(Train(4, 4)).ok());
  EXPECT_THAT(ReadShownFigures(folder)["train/loss"], ElementsAre(Pair(1, 1.0f), Pair(4, 4.0f)));
}

TEST(EventWriter, AFolderThatCannotBeMadeIsNamed) {
  EventWriter events("/dev/null/tensorboard", 0);
  EXPECT_THAT(std::string(events.Write(Train(1, 1)).message()), HasSubstr("/dev/null/tensorboard"));
}

}  // namespace
}  // namespace deepnet

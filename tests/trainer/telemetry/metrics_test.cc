#include "trainer/telemetry/metrics.h"

#include <csignal>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>

#include <google/protobuf/util/json_util.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "proto/report.pb.h"
#include "proto/run.pb.h"

namespace deepnet {
namespace {

std::string FreshPath(const std::string& name) {
  const auto folder = std::filesystem::path(::testing::TempDir()) / "metrics_test";
  std::filesystem::create_directories(folder);
  std::filesystem::remove(folder / name);
  return folder / name;
}

std::string Content(const std::string& path) {
  std::stringstream content;
  content << std::ifstream(path).rdbuf();
  return content.str();
}

EvalRecord AnEvalRecord() {
  EvalRecord record;
  record.set_kind("validation");
  record.set_step(9007199254740993);  // more than a double holds
  record.set_bleu(12.5);
  record.set_checkpoint("a \"b\"\\\n\x01 \xC3\xA9");
  DirectionScore& score = *record.add_directions();
  score.set_direction("de-en");
  score.set_nll(0.1);
  return record;
}

TEST(ToJson, PrintsEveryFieldByItsProtoNameAndCountsAsNumbers) {
  DirectionScore score;
  score.set_direction("de-en");
  score.set_sentences(200);
  score.set_bleu(0.1);
  EXPECT_EQ(
      ToJson(score),
      R"({"direction":"de-en","sentences":200,"nll":null,"bleu":0.1,"chrf":null,"spbleu":null,"tokenizer":"","too_long":0})");
}

TEST(ToJson, ProtobufReadsItBack) {
  const EvalRecord record = AnEvalRecord();
  EvalRecord copy;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(ToJson(record), &copy).ok());
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(record, copy));

  RunSpec run;
  run.mutable_model()->set_residual(DEEPNORM);
  run.mutable_data()->add_directions("de-en");
  RunSpec run_copy;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(ToJson(run), &run_copy).ok());
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(run, run_copy));
}

TEST(ToJson, WhatIsNoNumberIsAString) {
  StepRecord record;
  record.set_loss(std::numeric_limits<double>::quiet_NaN());
  record.set_nll(std::numeric_limits<double>::infinity());
  record.set_learning_rate(-std::numeric_limits<double>::infinity());
  const std::string json = ToJson(record);
  EXPECT_NE(json.find(R"("loss":"NaN","nll":"Infinity")"), std::string::npos) << json;
  EXPECT_NE(json.find(R"("learning_rate":"-Infinity")"), std::string::npos) << json;
}

TEST(MetricsWriter, AppendsOneLineARecord) {
  const auto files = MakePosixFileSystem();
  const std::string path = FreshPath("append.jsonl");
  for (const int64_t step : {1, 2}) {
    auto writer = MetricsWriter::Open(*files, path, step - 1);
    ASSERT_TRUE(writer.ok()) << writer.status();
    DirectionScore score;
    score.set_sentences(step);
    ASSERT_TRUE((*writer)->Write(score).ok());
  }
  EXPECT_EQ(
      Content(path),
      R"({"direction":"","sentences":1,"nll":null,"bleu":null,"chrf":null,"spbleu":null,"tokenizer":"","too_long":0})"
      "\n"
      R"({"direction":"","sentences":2,"nll":null,"bleu":null,"chrf":null,"spbleu":null,"tokenizer":"","too_long":0})"
      "\n");
}

// The lines are a stranger's, and would be a program for whoever owns the link's target.
TEST(MetricsWriter, NeitherTheFileNorAnyOtherIsWrittenThroughALink) {
  const auto files = MakePosixFileSystem();
  const std::string path = FreshPath("linked.jsonl"), theirs = FreshPath("bashrc");
  for (const std::string& link : {path, path + ".new", path + ".tmp"}) {
    std::filesystem::remove(path);
    std::ofstream(theirs) << "theirs\n";
    std::ofstream(path) << "{ echo OWNED; }\n{\"step\":30}\n";
    std::filesystem::remove(link);
    std::filesystem::create_symlink(theirs, link);
    EXPECT_EQ(MetricsWriter::Open(*files, path, 20).ok(), link != path);
    EXPECT_EQ(Content(theirs), "theirs\n");
    std::filesystem::remove(link);
  }
}

TEST(MetricsWriter, ResumingDropsLaterStepsAndATornLine) {
  const auto files = MakePosixFileSystem();
  const std::string path = FreshPath("resume.jsonl");
  std::ofstream(path) << "{\"kind\":\"train\",\"step\":10}\n{\"step\":20,\"loss\":1}\n"
                      << "{\"kind\":\"other\"}\n{\"step\":30}\n{\"step\":1";
  ASSERT_TRUE(MetricsWriter::Open(*files, path, 20).ok());
  EXPECT_EQ(Content(path),
            "{\"kind\":\"train\",\"step\":10}\n{\"step\":20,\"loss\":1}\n{\"kind\":\"other\"}\n");
}

// A file of a few reads; lines of other programs stay if they are JSON of a few MiB.
TEST(MetricsWriter, GoingBackKeepsEveryOtherLineWhereverItLies) {
  const auto files = MakePosixFileSystem();
  const std::string path = FreshPath("long.jsonl");
  std::string text, kept;
  const auto add = [&](const std::string& line, bool stays) {
    text += line + "\n";
    if (stays) kept += line + "\n";
  };
  for (int i = 0; i < 30000; ++i) {
    const int step = i * 7919 % 100;
    add("{\"kind\":\"train\",\"step\":" + std::to_string(step) + ",\"loss\":" + std::to_string(i) +
            ".25,\"seconds\":1}",
        step <= 20);
  }
  add("", false);
  add("{\"step\":20", false);
  add("{\"step\":}", false);
  add("{\"step\":2x}", false);
  add("{\"text\":\"" + std::string(5 << 20, 'a') + "\"}", true);
  add("{\"text\":\"" + std::string(17 << 20, '}') + "\"}", false);
  add("{\"step\":20}", true);
  std::ofstream(path) << text;
  auto writer = MetricsWriter::Open(*files, path, 20);
  ASSERT_TRUE(writer.ok()) << writer.status();
  EXPECT_TRUE(Content(path) == kept);
  StepRecord record;
  record.set_step(21);
  ASSERT_TRUE((*writer)->Write(record).ok());
  ASSERT_TRUE((*writer)->GoBack(20).ok());
  EXPECT_TRUE(Content(path) == kept);
  record.set_step(20);
  ASSERT_TRUE((*writer)->Write(record).ok());
  EXPECT_TRUE(Content(path) == kept + ToJson(record) + "\n");
}

TEST(MetricsWriter, ResumingDropsATornLineAlone) {
  const auto files = MakePosixFileSystem();
  const std::string path = FreshPath("torn.jsonl");
  std::ofstream(path) << "{\"step\":10}\n{\"step\":1";
  ASSERT_TRUE(MetricsWriter::Open(*files, path, 20).ok());
  EXPECT_EQ(Content(path), "{\"step\":10}\n");
}

TEST(MetricsWriter, ALineThatDidNotFitOnTheDiskIsTornAndTheNextIsIntact) {
  const auto files = MakePosixFileSystem();
  const std::string path = FreshPath("full.jsonl");
  auto writer = MetricsWriter::Open(*files, path, 0);
  ASSERT_TRUE(writer.ok()) << writer.status();
  DirectionScore score;
  const std::string line = ToJson(score);
  ASSERT_TRUE((*writer)->Write(score).ok());
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit{};
  getrlimit(RLIMIT_FSIZE, &limit);
  const rlimit full{.rlim_cur = line.size() + 1 + 20, .rlim_max = limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &full), 0);
  const absl::Status second = (*writer)->Write(score), third = (*writer)->Write(score);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  EXPECT_NE(second.message().find(path), std::string::npos);
  EXPECT_FALSE(third.ok());
  ASSERT_TRUE((*writer)->Write(score).ok());
  EXPECT_EQ(Content(path), line + "\n" + line.substr(0, 20) + "\n" + line + "\n");

  // A run that goes back drops what is torn.
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &full), 0);
  EXPECT_FALSE((*writer)->Write(score).ok());
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  ASSERT_TRUE((*writer)->GoBack(0).ok());
  ASSERT_TRUE((*writer)->Write(score).ok());
  EXPECT_EQ(Content(path), line + "\n" + line + "\n" + line + "\n");
}

TEST(MetricsWriter, AMissingFolderIsNamed) {
  const auto files = MakePosixFileSystem();
  const auto writer = MetricsWriter::Open(*files, "/nonexistent/metrics.jsonl", 0);
  ASSERT_FALSE(writer.ok());
  EXPECT_NE(writer.status().message().find("/nonexistent/metrics.jsonl"), std::string::npos);
}

}  // namespace
}  // namespace deepnet

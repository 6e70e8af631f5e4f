#include "trainer/telemetry/prometheus_file.h"

#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "absl/strings/match.h"
#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

namespace deepnet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Reads Prometheus's text strictly: every family begins with HELP and TYPE, stands once, and its
// figures follow. Returns the figures by name and labels.
std::map<std::string, std::string> Parse(const std::string& text) {
  const std::regex help("# HELP ([a-z_]+) (.*\\.)"), type("# TYPE ([a-z_]+) (counter|gauge)"),
      figure(
          "([a-z_]+)(\\{(?:[a-z]+=\"(?:[^\"\\\\\\n]|\\\\[\\\\\"n])*\",?)+\\}) "
          "(NaN|[+-]Inf|[-+0-9.e]+)");
  std::map<std::string, std::string> figures;
  std::set<std::string> families;
  std::string family;
  std::smatch parts;
  std::istringstream lines(text);
  EXPECT_TRUE(text.empty() || text.back() == '\n');
  for (std::string line; std::getline(lines, line);) {
    if (std::regex_match(line, parts, help)) {
      family = parts[1];
      EXPECT_TRUE(families.insert(family).second) << line;
      EXPECT_TRUE(std::getline(lines, line) && std::regex_match(line, parts, type)) << line;
      EXPECT_EQ(parts[1], family);
      EXPECT_EQ(parts[2] == "counter", absl::EndsWith(family, "_total")) << line;
      continue;
    }
    EXPECT_TRUE(std::regex_match(line, parts, figure)) << line;
    EXPECT_EQ(parts[1], family) << line;
    EXPECT_TRUE(figures.emplace(std::string(parts[1]) + std::string(parts[2]), parts[3]).second);
  }
  return figures;
}

StepRecord Step(int64_t step) {
  StepRecord record;
  record.set_step(step);
  record.set_loss(std::numeric_limits<double>::infinity());
  record.set_target_tokens(9007199254740991);
  record.set_seconds_to_end(12.5);
  record.set_bubble(0.25);
  return record;
}

TEST(PrometheusFile, HasTheNewestFiguresOfEachKindWithTheirLabels) {
  PrometheusFile file("unused.prom", "a \"run\"\\\n");
  file.Remember(Step(10));
  file.Remember(Step(20));
  SaveRecord save;
  save.set_step(15);
  file.Remember(save);
  save.set_step(20);
  save.set_error("no space");
  save.set_failed_saves(1);
  file.Remember(save);
  EvalRecord scores;
  scores.set_bleu_signature("of sacreBLEU");
  for (const char* const name : {"de-en", "en-de"}) scores.add_directions()->set_direction(name);
  scores.mutable_directions(0)->set_nll(2.5);
  scores.mutable_directions(1)->set_bleu(12.5);
  file.Remember(scores);

  const auto figures = Parse(file.Text({.save = 70}));
  const std::string run = R"(run="a \"run\"\\\n")", only_run = "{" + run + "}";
  EXPECT_EQ(figures.at("deepnet_steps_total" + only_run), "20");
  EXPECT_EQ(figures.at("deepnet_target_tokens_total" + only_run), "9007199254740991");
  EXPECT_EQ(figures.at("deepnet_loss_nats" + only_run), "+Inf");
  EXPECT_EQ(figures.at("deepnet_remaining_seconds" + only_run), "12.5");
  EXPECT_EQ(figures.at("deepnet_next_save_seconds" + only_run), "70");
  EXPECT_EQ(figures.count("deepnet_next_validation_seconds" + only_run), 0u);
  EXPECT_EQ(figures.count("deepnet_mfu_ratio" + only_run), 0u) << "it is not known";
  EXPECT_EQ(figures.at("deepnet_bubble_ratio" + only_run), "0.25");
  EXPECT_EQ(figures.at("deepnet_saved_steps" + only_run), "15");
  EXPECT_EQ(figures.at("deepnet_failed_saves_total" + only_run), "1");
  EXPECT_EQ(figures.at("deepnet_validation_bleu{" + run + ",direction=\"en-de\"}"), "12.5");
  EXPECT_EQ(figures.at("deepnet_validation_nll_nats{" + run + ",direction=\"de-en\"}"), "2.5");
  EXPECT_EQ(figures.count("deepnet_validation_nll_nats{" + run + ",direction=\"en-de\"}"), 0u);
  EXPECT_EQ(figures.count("deepnet_validation_bleu{" + run + ",direction=\"de-en\"}"), 0u);
}

// Each figure is of its field.
TEST(PrometheusFile, HasAllFiguresOfARun) {
  PrometheusFile file("unused.prom", "r");
  EXPECT_FALSE(file.has_steps());
  StepRecord step;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(
      R"(step: 1 skipped_steps: 2 source_tokens: 3 target_tokens: 4 restarts: 5 seconds: 6.5 loss: 7
         nll: nan gradient_norm: -inf learning_rate: 10 tokens_per_second: 11 resident_bytes: 12
         mfu: 13 gemm_efficiency: 14 bubble: 15 loss_scale: 16 seconds_to_end: 17)",
      &step));
  file.Remember(step);
  EXPECT_TRUE(file.has_steps());
  SaveRecord save;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(
      "step: 18 seconds: 19 stall_seconds: 20 failed_saves: 21", &save));
  file.Remember(save);
  EvalRecord scores;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(
      "step: 22 directions { direction: 'a-b' nll: 0 bleu: 24 }", &scores));
  file.Remember(scores);
  const std::map<std::string, std::string> expected = {
      {"steps_total", "1"},         {"skipped_steps_total", "2"},
      {"source_tokens_total", "3"}, {"target_tokens_total", "4"},
      {"restarts_total", "5"},      {"train_seconds_total", "6.5"},
      {"loss_nats", "7"},           {"nll_nats", "NaN"},
      {"gradient_norm", "-Inf"},    {"learning_rate", "10"},
      {"tokens_per_second", "11"},  {"resident_memory_peak_bytes", "12"},
      {"mfu_ratio", "13"},          {"gemm_efficiency_ratio", "14"},
      {"bubble_ratio", "15"},       {"loss_scale", "16"},
      {"remaining_seconds", "17"},  {"saved_steps", "18"},
      {"save_seconds", "19"},       {"save_stall_seconds", "20"},
      {"failed_saves_total", "21"}, {"validated_steps", "22"},
      {"next_save_seconds", "25"},  {"next_validation_seconds", "26"}};
  std::map<std::string, std::string> named = {
      {"deepnet_validation_nll_nats{run=\"r\",direction=\"a-b\"}", "0"},
      {"deepnet_validation_bleu{run=\"r\",direction=\"a-b\"}", "24"}};
  for (const auto& [name, value] : expected) named["deepnet_" + name + "{run=\"r\"}"] = value;
  EXPECT_EQ(Parse(file.Text({.save = 25, .validation = 26})), named);
}

TEST(PrometheusFile, IsMadeBelowTheRootForTheNameOrElseTheFolderOfTheRun) {
  RunSpec run;
  EXPECT_EQ(MakePrometheusFile(run, "/root"), nullptr);
  run.mutable_train()->set_prometheus_file("no/such.prom");
  run.set_folder("runs/a");
  auto file = MakePrometheusFile(run, "/nowhere");
  EXPECT_THAT(std::string(file->Write({}).message()), HasSubstr("/nowhere/no/such.prom"));
  EXPECT_THAT(file->Text({}), AllOf(HasSubstr("deepnet_steps_total{run=\"runs/a\"} 0\n"),
                                    Not(HasSubstr("saved_")), Not(HasSubstr("validat"))));
  run.set_name("b");
  EXPECT_THAT(MakePrometheusFile(run, "")->Text({}), HasSubstr("_steps_total{run=\"b\"} 0\n"));
}

TEST(PrometheusFile, IsReplacedAndLeavesNothingBeside) {
  const auto folder = std::filesystem::path(::testing::TempDir()) / "prometheus_file_test";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  PrometheusFile file(folder / "run.prom", "run");
  for (const int64_t step : {1, 2}) {
    file.Remember(Step(step));
    ASSERT_TRUE(file.Write({}).ok());
    std::stringstream text;
    text << std::ifstream(folder / "run.prom").rdbuf();
    EXPECT_EQ(text.str(), file.Text({}));
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1);
}

TEST(PrometheusFile, AFolderThatDoesNotExistIsNamed) {
  const absl::Status status = PrometheusFile("/no/such/run.prom", "run").Write({});
  EXPECT_THAT(std::string(status.message()), HasSubstr("/no/such/run.prom"));
}

}  // namespace
}  // namespace deepnet

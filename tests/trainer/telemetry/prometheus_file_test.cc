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
#include <gtest/gtest.h>

namespace deepnet {
namespace {

using ::testing::HasSubstr;

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

#include "trainer/telemetry/run_recorder.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace deepnet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(RunRecorder, WhatComesAfterTheEndIsNotAnnounced) {
  const std::string path =
      (std::filesystem::path(::testing::TempDir()) / absl::StrCat("recorder_", getpid(), ".prom"))
          .string();
  RunFiles files;
  files.prometheus = std::make_unique<PrometheusFile>(path, "a run");
  std::ostringstream text;
  Logger log({.stream = &text});
  TrainSpec train;
  train.set_log_every_steps(1);
  RunRecorder recorder(std::move(files), train, 0, log);
  StepRecord record;
  record.set_step(1);
  record.set_seconds_to_end(10);
  recorder.Record(record, {.save = 12, .validation = 3}, "");
  std::stringstream figures;
  figures << std::ifstream(path).rdbuf();
  EXPECT_THAT(figures.str(), AllOf(HasSubstr("deepnet_next_validation_seconds{run=\"a run\"} 3\n"),
                                   Not(HasSubstr("deepnet_next_save_seconds{"))));
  EXPECT_THAT(text.str(), Not(HasSubstr("save")));
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace deepnet

#include "trainer/telemetry/run_recorder.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel/base/host.h"
#include "parallel/base/status_macros.h"
#include "tests/support/event_reader.h"
#include "tests/support/forwarding_communicator.h"
#include "tests/support/memory_file_system.h"
#include "tests/support/run_ranks.h"
#include "trainer/telemetry/spikes.h"

namespace deepnet {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;

constexpr char kMetrics[] = "metrics.jsonl";

std::string PathOf(const std::string& name) {
  return (std::filesystem::path(::testing::TempDir()) /
          absl::StrCat("recorder_", getpid(), "_", name))
      .string();
}

// A recorder and what it has logged; every line begins with "T".
struct Recording {
  explicit Recording(RunFiles files, int restarts = 0)
      : recorder(std::move(files), train, restarts, log) {}

  std::ostringstream text;
  Logger log{{.stream = &text, .time_of_day = [] { return "T"; }}};
  TrainSpec train;
  RunRecorder recorder;
};

TEST(RunRecorder, WhatComesAfterTheEndIsNotAnnounced) {
  const std::string path = PathOf("end.prom");
  RunFiles files;
  files.prometheus = std::make_unique<PrometheusFile>(path, "a run");
  Recording recording(std::move(files));
  StepRecord record;
  record.set_step(1);
  record.set_seconds_to_end(10);
  for (const auto& [save, seen] : {std::pair(12, false), {10, false}, {9, true}}) {
    recording.text.str("");
    recording.recorder.Record(record, {.save = double(save), .validation = 3}, "  figures");
    std::stringstream figures;
    figures << std::ifstream(path).rdbuf();
    EXPECT_THAT(figures.str(), HasSubstr("deepnet_next_validation_seconds{run=\"a run\"} 3\n"));
    EXPECT_EQ(figures.str().find("deepnet_next_save_seconds{") != std::string::npos, seen);
    EXPECT_EQ(recording.text.str(),
              absl::StrCat("T train  step 1  loss 0.000  nll 0.000  0 tokens/s",
                           seen ? "  save in 0:09" : "",
                           "  validation in 0:03  norm 0.00  rate 0.00e+00  figures\n"));
  }
  record.clear_seconds_to_end();  // not known
  recording.recorder.Record(record, {.save = 12, .validation = 3}, "");
  EXPECT_THAT(recording.text.str(), HasSubstr("  save in 0:12  validation in 0:03"));
  recording.recorder.End({});
  std::stringstream figures;
  figures << std::ifstream(path).rdbuf();
  EXPECT_THAT(figures.str(), AllOf(HasSubstr("deepnet_steps_total{run=\"a run\"} 1\n"),
                                   Not(HasSubstr("deepnet_next_"))));
  std::filesystem::remove(path);
}

TEST(RunRecorder, AStartWithoutAStepLeavesThePrometheusFileAsItIs) {
  const std::string path = PathOf("before.prom");
  std::ofstream(path) << "of an earlier start";
  RunFiles files;
  files.prometheus = std::make_unique<PrometheusFile>(path, "a run");
  Recording recording(std::move(files));
  recording.recorder.End({});
  std::stringstream figures;
  figures << std::ifstream(path).rdbuf();
  EXPECT_EQ(figures.str(), "of an earlier start");
  std::filesystem::remove(path);
}

TEST(RunRecorder, EveryRecordIsALineOfTheFileAndOneForPeople) {
  testing::MemoryFileSystem fs;
  RunFiles files;
  files.metrics = *MetricsWriter::Open(fs, kMetrics, 0);
  Recording recording(std::move(files), /*restarts=*/3);
  RunRecorder& recorder = recording.recorder;
  std::string lines;
  const auto expect = [&](const google::protobuf::Message& record, const std::string& line) {
    EXPECT_EQ(recording.text.str(), line.empty() ? "" : "T " + line + "\n");
    absl::StrAppend(&lines, ToJson(record), "\n");
    EXPECT_EQ(*ReadWholeFile(fs, kMetrics, 1 << 20), lines);
    recording.text.str("");
  };
  StepRecord step;
  step.set_step(1199);
  recorder.Record(step, {}, "");
  step.set_restarts(3);
  expect(step, "train  step 1,199  loss 0.000  nll 0.000  0 tokens/s  norm 0.00  rate 0.00e+00");
  SaveRecord save;
  save.set_step(1200);
  save.set_bytes(3 << 20);
  save.set_seconds(1.5);
  save.set_stall_seconds(0.25);
  recorder.Record(save);
  expect(save, "saved step 1,200: 3.0 MiB in 1.50 s, of which training stood still 0.250 s");
  save.set_error("no space");
  save.set_failed_saves(1234);
  recorder.Record(save);
  expect(save, "warning: step 1,200 could not be saved (1,234 so far): no space");
  SpikeRecord spike;
  spike.set_spike_step(1201);
  recorder.Record(spike);
  expect(spike, "warning: " + SpikeLine(spike));
  NonFiniteRecord non_finite;
  non_finite.set_step(1202);
  non_finite.set_pass("forward");
  non_finite.set_value("sum of losses");
  recorder.Record(non_finite);
  expect(non_finite, "warning: step 1202: first in the sum of losses");
  EvalRecord scores;
  scores.set_step(1203);
  recorder.Record(scores);
  expect(scores, "");
  InstrumentRecord instruments;
  instruments.set_step(1204);
  recorder.Record(instruments);
  expect(instruments, "");

  Manifest state;
  state.set_step(1300);
  state.set_source_tokens(5000);
  state.set_target_tokens(6000);
  state.set_train_seconds(125);
  recorder.End(state);
  EXPECT_EQ(recording.text.str(),
            "T done: step 1,300, 5,000 source and 6,000 target tokens in 2:05 of training\n");
}

// Lets rank 1 be on another host, "!" in place of the first letter.
class OtherHost final : public ForwardingCommunicator {
 public:
  explicit OtherHost(Communicator& inner) : ForwardingCommunicator(inner) {}

  TransferOr AllGather(Buffer mine, std::span<const Buffer> all) override {
    ASSIGN_OR_RETURN(auto transfer, inner().AllGather(mine, all));
    RETURN_IF_ERROR(transfer->Wait());
    char* const name = static_cast<char*>(all[1].data);
    if (std::string_view(name, static_cast<size_t>(all[1].bytes)) == HostName()) *name = '!';
    return transfer;
  }
};

// Only rank 0 writes and logs; it says nothing more of a rank that was slow before.
TEST(RunRecorder, AStragglerIsNamedWithItsHostAndANewOneIsAWarning) {
  testing::MemoryFileSystem fs;
  std::vector<std::string> logs(2);
  const absl::Status status = FirstError(RunRanks(2, [&](Communicator& world) -> absl::Status {
    RunFiles files;
    if (world.rank() == 0) {
      ASSIGN_OR_RETURN(files.metrics, MetricsWriter::Open(fs, kMetrics, 0));
    }
    Recording recording(std::move(files));
    std::vector<Straggler> found(2);
    for (int i = 0; i < 2; ++i) {
      found[i].record.set_rank(1 - i);
      found[i].record.set_compute_seconds(3);
      found[i].record.set_expected_seconds(2);
      found[i].is_new = i == 0;
    }
    OtherHost hosts(world);
    RETURN_IF_ERROR(recording.recorder.Record(found, 70, hosts));
    RETURN_IF_ERROR(recording.recorder.Record(std::vector<Straggler>(), 80, hosts));
    logs[world.rank()] = recording.text.str();
    return absl::OkStatus();
  }));
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(logs, (std::vector<std::string>{
                      absl::StrCat("T warning: straggler: rank 1 on !", HostName().substr(1),
                                   " computes 3.000 s a step, 1.50 times as long as expected\n"),
                      ""}));
  std::string lines;
  for (const int rank : {1, 0}) {
    StragglerRecord record;
    record.set_step(70);
    record.set_rank(rank);
    record.set_host(rank == 1 ? "!" + HostName().substr(1) : HostName());
    record.set_compute_seconds(3);
    record.set_expected_seconds(2);
    absl::StrAppend(&lines, ToJson(record), "\n");
  }
  EXPECT_EQ(*ReadWholeFile(fs, kMetrics, 1 << 20), lines);
}

TEST(RunRecorder, ARunThatGoesBackDropsWhatItToldInEveryFile) {
  testing::MemoryFileSystem fs;
  const std::string folder = PathOf("events");
  RunFiles files;
  files.metrics = *MetricsWriter::Open(fs, kMetrics, 0);
  files.events = std::make_unique<EventWriter>(folder, 0);
  Recording recording(std::move(files));
  const auto record = [&](int64_t step, double loss) {
    StepRecord it;
    it.set_kind("train");
    it.set_step(step);
    it.set_loss(loss);
    recording.recorder.Record(it, {}, "");
    return ToJson(it) + "\n";
  };
  const std::string first = record(1, 5);
  for (const int64_t step : {2, 3}) record(step, 6);
  recording.recorder.GoBack(1);
  const std::string second = record(2, 7);
  EXPECT_EQ(*ReadWholeFile(fs, kMetrics, 1 << 20), first + second);
  EXPECT_THAT(testing::ReadShownFigures(folder),
              ElementsAre(Pair("train/loss", ElementsAre(Pair(1, 5.0f), Pair(2, 7.0f)))));
  std::filesystem::remove_all(folder);
}

TEST(RunRecorder, AFileThatCannotBeWrittenIsAWarningEachTimeAndForPrometheusOnce) {
  testing::MemoryFileSystem fs;
  RunFiles files;
  files.metrics = *MetricsWriter::Open(fs, kMetrics, 0);
  files.events = std::make_unique<EventWriter>("/dev/null/events", 0);
  files.prometheus = std::make_unique<PrometheusFile>("/no/such/run.prom", "a run");
  Recording recording(std::move(files));
  fs.StopAfter(0);
  StepRecord record;
  record.set_step(1);
  for (int i = 0; i < 2; ++i) recording.recorder.Record(record, {}, "");
  const std::string text = recording.text.str();
  const auto count = [&text](const std::string& part) {
    int found = 0;
    for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++found;
    return found;
  };
  EXPECT_EQ(count("T warning: "), 5) << text;
  EXPECT_EQ(count("T warning: the world has stopped"), 2) << text;
  EXPECT_EQ(count("/dev/null/events"), 2) << text;
  EXPECT_EQ(count("T warning: train.prometheus_file: cannot write '/no/such/run.prom'"), 1) << text;
  EXPECT_EQ(count("T train  step 1  "), 2) << text;
}

}  // namespace
}  // namespace deepnet

// Tells the world how a run goes, one call for each event: a line of metrics.jsonl, figures for
// TensorBoard and Prometheus, a line of the log.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include <google/protobuf/message.h>

#include "parallel/base/clock.h"
#include "parallel/base/logging.h"
#include "parallel/comm/communicator.h"
#include "proto/checkpoint.pb.h"
#include "proto/report.pb.h"
#include "proto/run.pb.h"
#include "trainer/telemetry/event_file.h"
#include "trainer/telemetry/intervals.h"
#include "trainer/telemetry/metrics.h"
#include "trainer/telemetry/prometheus_file.h"
#include "trainer/telemetry/stragglers.h"

namespace deepnet {

// Rank 0 writes these files. A member is null where the run does not ask for it.
struct RunFiles {
  std::unique_ptr<MetricsWriter> metrics;
  std::unique_ptr<EventWriter> events;
  std::unique_ptr<PrometheusFile> prometheus = nullptr;
};

// A file that cannot be written is only a warning, Prometheus's once: a disk that is full now may
// have room later.
class RunRecorder {
 public:
  // `train` and `log` outlive this. `restarts` are those of the job.
  RunRecorder(RunFiles files, const TrainSpec& train, int restarts, Logger& log)
      : files_(std::move(files)), train_(train), restarts_(restarts), log_(log) {}

  // Logs how long the beginning took, unless that was quick.
  void Begin(const PhaseClock& resolving, const PhaseClock& building);

  // The log shows it as the run's progress, with `figures` at the end. What of `next` comes after
  // the run's end is not shown.
  void Record(StepRecord record, NextTimes next, const std::string& figures);
  void Record(const SaveRecord& record);
  void Record(const SpikeRecord& record);
  void Record(const NonFiniteRecord& record);
  // Gives the records `step` and the names of the hosts. Collective over `world`.
  absl::Status Record(std::vector<Straggler> stragglers, int64_t step, Communicator& world);
  void Record(const InstrumentRecord& record) { Write(record); }
  void Record(const EvalRecord& record) { Write(record); }  // Validate has logged it

  // Drops what was told of later steps, for a run that goes back to `step`.
  void GoBack(int64_t step);

  // Tells that the run is done.
  void End(const Manifest& state);

 private:
  void Write(const google::protobuf::Message& record);
  void WarnUnlessOk(const absl::Status& status);
  void WritePrometheus(const NextTimes& next);

  const RunFiles files_;
  const TrainSpec& train_;
  const int restarts_;
  Logger& log_;
  bool prometheus_failed_ = false;  // the warning was given
};

}  // namespace deepnet

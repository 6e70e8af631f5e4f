// A run's newest figures in Prometheus's text format, for the textfile collector of node_exporter:
// a file NAME.prom in a folder that the collector watches. Every figure has the label run="NAME";
// scores have direction="de-en" too.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include <google/protobuf/message.h>

#include "parallel/base/file_system.h"
#include "proto/report.pb.h"
#include "proto/run.pb.h"
#include "trainer/telemetry/intervals.h"

namespace deepnet {

class PrometheusFile {
 public:
  // Nothing is written yet. `run` is the value of the label.
  PrometheusFile(std::string path, std::string run)
      : path_(std::move(path)), run_(std::move(run)) {}

  // Keeps `record` if it is the newest of a kind whose figures the file has.
  void Remember(const google::protobuf::Message& record);

  // Returns true once there is a step to show: a run that is done already keeps the file as it is.
  bool has_steps() const { return step_.step() > 0; }

  // Replaces the file atomically; its folder must exist. Does not wait for the disk.
  absl::Status Write(const NextTimes& next);

  // Returns what Write writes.
  std::string Text(const NextTimes& next) const;

 private:
  const std::string path_, run_;
  const std::unique_ptr<FileSystem> fs_ = MakePosixFileSystem(Durability::kProcessEnd);
  StepRecord step_;
  SaveRecord save_;  // of the last save that ended well, but for failed_saves
  EvalRecord validation_;
};

// Returns the file that train.prometheus_file asks for, below `root`; null if it asks for none.
std::unique_ptr<PrometheusFile> MakePrometheusFile(const RunSpec& run, const std::string& root);

}  // namespace deepnet

// The standing benchmark of a training step: four shapes, real sentence lengths, one process.
#pragma once

#include <string>

#include "absl/status/statusor.h"

#include "parallel/plan/recompute_choice.h"
#include "proto/plan.pb.h"
#include "proto/report.pb.h"
#include "proto/run.pb.h"

namespace deepnet {

struct StepBenchOptions {
  std::string shape;         // "A" 6-6 d=256, "B" 18-18 d=256, "C" 100-100 d=64, "D" 500-500 d=64
  std::string lengths_file;  // JSON: [[source, target], ...] tokens of real sentences
  int steps = 8;             // timed, after one that is not
  ComputeSpec compute;       // open fields are decided as for a run
  // Of all layers. Unless it is NONE, a twin that keeps everything takes each step too, in turns,
  // so that a busy machine is busy for both.
  RecomputeChoice recompute;
};

// The run that a shape stands for: model, microbatch, Adam with smoothing 0.1 and dropout 0.1.
absl::StatusOr<RunSpec> BenchRun(const std::string& shape);

// Trains `steps` steps on made-up tokens of real lengths and reports tokens per second, GFLOP/s,
// the product ceiling measured in the same process and the peak memory of a first step (without the
// twin); with recomputation, how much longer its steps take than the twin's.
absl::StatusOr<BenchRecord> BenchStep(const StepBenchOptions& options);

}  // namespace deepnet

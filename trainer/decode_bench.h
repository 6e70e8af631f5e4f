// The standing benchmark of decoding: beam search with a 6+6 model of width 256, one process.
#pragma once

#include <string>

#include "absl/status/statusor.h"

#include "proto/plan.pb.h"
#include "proto/report.pb.h"

namespace deepnet {

struct DecodeBenchOptions {
  std::string lengths_file;  // as StepBenchOptions::lengths_file
  int sentences = 200;       // the first of that file; >= 1
  int beam_size = 5;         // >= 1
  int batch_tokens = 2000;   // source tokens decoded together, as `translate` does
  ComputeSpec compute;       // open fields are decided as for a run
};

// Searches each sentence once, after a short search that is not timed, and reports sentences per
// second, source and target tokens per second (</s> counted), and the GFLOP/s of the products that
// a beam of full width needs. Weights and source ids are random, so what the model would emit says
// nothing: each search is made to end at the length of the pair's target.
absl::StatusOr<BenchRecord> BenchDecode(const DecodeBenchOptions& options);

}  // namespace deepnet

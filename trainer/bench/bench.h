// The standing benchmarks of a training step and of decoding, in one process, on the lengths of
// real sentences.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

#include "parallel/plan/inventory.h"
#include "proto/model.pb.h"
#include "proto/plan.pb.h"
#include "proto/report.pb.h"
#include "proto/run.pb.h"

namespace deepnet {

// Returns the {source, target} tokens of each sentence pair in `file`: JSON, [[source, target],
// ...]. Fails with ExitCode::kData naming the file and the entry.
absl::StatusOr<std::vector<std::pair<int, int>>> ReadBenchLengths(const std::string& file);

// Changes of a shape; 0 and unspecified: as it is.
struct BenchSize {
  int layers = 0;  // of each stack
  int width = 0;   // the inner width and the number of heads change with it
  int tokens = 0;  // of each side of a microbatch
  Residual residual = RESIDUAL_UNSPECIFIED;
};

// Says what to measure and how. Each benchmark reads the fields that it needs.
struct BenchOptions {
  // "A" 6-6 d=256, "B" 18-18 d=256, "C" 100-100 d=64, "D" 500-500 d=64; "paper" 500-500 and
  // "paper-100" 100-100 d=512, with 250,002 pieces. Decoding is of "A".
  std::string shape;
  BenchSize size;
  std::string lengths_file;  // JSON: [[source, target], ...] tokens of real sentences
  ComputeSpec compute;       // open fields are decided as for a run
  std::string device_model;  // as cluster.device_model, for MFU and rooflines; empty: the GPU's own
  int steps = 8;             // timed, after one that is not
  int microbatches = 1;      // of a step
  // The recompute level of all layers. Unless it is NONE, a twin that recomputes nothing takes each
  // step too, in turns, so that other load of the machine slows both alike.
  RecomputeChoice recompute;
  int repeats = 50;      // of the fastest way to do a product, for its bits; >= 1
  int sentences = 200;   // that are searched, the first of `lengths_file`; >= 1
  int beam_size = 5;     // >= 1
  int batch_tokens = 0;  // source tokens decoded together; 0: as `translate` does
};

// Returns the run of a shape: model, microbatch, Adam with smoothing 0.1 and dropout 0.1.
absl::StatusOr<RunSpec> BenchRun(const std::string& shape, const BenchSize& size = {});

// Trains `steps` steps on random tokens of real lengths and reports tokens per second, GFLOP/s,
// the product ceiling measured in the same process on the same device and the peak memory of a
// first step (without the twin); with recomputation, how much longer its steps take than the
// twin's. A step on a GPU ends when the device has done all of it. Sentences that are longer than a
// microbatch are left out.
absl::StatusOr<BenchRecord> BenchStep(const BenchOptions& options);

// Takes the steps of BenchStep and reports the time of each kernel; on a CPU, of each function of
// Ops. On a GPU also what the roofline (parallel/plan/roofline.h) predicts for a full microbatch,
// without what is around the passes.
absl::StatusOr<KernelsRecord> BenchKernels(const BenchOptions& options);

// Times the ways to do each matrix product of a full microbatch (TimeProduct in
// trainer/kernels/compute.h). The work table (trainer/model/work.h) lists them, on a CPU too.
absl::StatusOr<ProductsRecord> BenchProducts(const BenchOptions& options);

// Beam search with a 6+6 model of width 256. Searches each sentence once, after a short search that
// is not timed, and reports sentences per second, source and target tokens per second (</s>
// counted), and the GFLOP/s of the products that a beam of full width needs. Weights and source ids
// are random, so the model's own output is meaningless: each search is made to end at the length of
// the pair's target.
absl::StatusOr<BenchRecord> BenchDecode(const BenchOptions& options);

}  // namespace deepnet

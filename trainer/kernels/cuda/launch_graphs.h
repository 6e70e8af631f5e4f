// Launches that go to a GPU as CUDA graphs: one call of CUDA for many kernels.
//
// Between Begin and End the launches of a stream are noted instead of made. Flush makes those that
// wait: by the graph of the very same launches if there is one, else one after the other. Launches
// are the same if their kernels, grids and all bytes of their arguments are, so a graph can neither
// be launched with arguments of another pass nor with memory that its caller has given back. What
// differs from pass to pass therefore lies in device memory; where it is an argument instead, no
// graph is ever found.
//
// Launches without a graph are recorded where Begin says kRecord. Prepare makes graphs of them, for
// which CUDA may wait until the device is idle. Where Begin says kTry such a graph is launched for
// the first time: its results are compared with those of single launches, and Judge says what came
// of it.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"

#include "trainer/kernels/cuda/gpu_stream.h"

namespace deepnet::cuda {

class LaunchGraphs : public LaunchGatherer {
 public:
  enum class Use {
    kNone,    // launches are made at once
    kProved,  // graphs that Judge has found right
    kRecord,  // the same, and what has none is recorded
    kTry,     // those that Prepare has made, too
  };

  explicit LaunchGraphs(GpuStream& gpu);  // which must outlive it
  ~LaunchGraphs() override;
  LaunchGraphs(const LaunchGraphs&) = delete;
  LaunchGraphs& operator=(const LaunchGraphs&) = delete;

  void Begin(Use use);
  void Add(std::function<void()> launch) override;
  void Flush() override;
  // Flushes, and makes launches at once from now on. Returns whether some since Begin were made one
  // by one because they had no graph.
  bool End();
  // Makes graphs of all that was recorded.
  void Prepare();
  // Judges the graphs that were tried since the last call: whether their results had the bits of
  // the same launches one by one. If not, they are not used again.
  void Judge(bool equal);

 private:
  enum class State { kNew, kProved, kWrong };
  struct Graph {
    cudaGraph_t recorded = nullptr;  // until Prepare
    cudaGraphExec_t exec = nullptr;  // from then on
    State state = State::kNew;
  };

  GpuStream& gpu_;
  Use use_ = Use::kNone;
  bool missed_ = false;
  std::vector<std::function<void()>> waiting_;
  absl::flat_hash_map<std::string, Graph> graphs_;
  std::vector<std::string> tried_;  // keys
};

// Launches are made at once while it lives: those that only the host knows the sizes of, and what
// is not this project's.
class WithoutGraphs {
 public:
  explicit WithoutGraphs(GpuStream& gpu) : gpu_(gpu), graphs_(gpu.graphs()) {
    if (graphs_ == nullptr) return;
    graphs_->Flush();
    gpu_.Gather(nullptr);
  }
  ~WithoutGraphs() { gpu_.Gather(graphs_); }
  WithoutGraphs(const WithoutGraphs&) = delete;
  WithoutGraphs& operator=(const WithoutGraphs&) = delete;

 private:
  GpuStream& gpu_;
  LaunchGatherer* const graphs_;
};

}  // namespace deepnet::cuda

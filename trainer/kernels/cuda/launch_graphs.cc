#include "trainer/kernels/cuda/launch_graphs.h"

#include <utility>

namespace deepnet::cuda {
namespace {

// Launches of a graph, at most: the GPU begins with a pass while the host notes the rest of it.
constexpr size_t kMaxLaunches = 256;

}  // namespace

LaunchGraphs::LaunchGraphs(GpuStream& gpu) : gpu_(gpu) {}

LaunchGraphs::~LaunchGraphs() {
  for (const auto& [key, graph] : graphs_) {
    if (graph.recorded != nullptr) cudaGraphDestroy(graph.recorded);
    if (graph.exec != nullptr) cudaGraphExecDestroy(graph.exec);
  }
}

void LaunchGraphs::Begin(Use use) {
  use_ = use;
  missed_ = false;
  if (use != Use::kNone) gpu_.Gather(this);
}

void LaunchGraphs::Add(std::function<void()> launch) {
  waiting_.push_back(std::move(launch));
  if (waiting_.size() == kMaxLaunches) Flush();
}

void LaunchGraphs::Flush() {
  if (waiting_.empty()) return;
  gpu_.Gather(nullptr);
  const auto found = graphs_.find(key_);
  const bool is_new = found == graphs_.end() || found->second.state == State::kNew;
  const bool is_tried =
      use_ == Use::kTry && found != graphs_.end() && is_new && found->second.exec != nullptr;
  if (is_tried || (found != graphs_.end() && found->second.state == State::kProved)) {
    gpu_.Launching();
    gpu_.Launched("CudaGraph", cudaGraphLaunch(found->second.exec, gpu_.get()));
    if (is_tried) tried_.push_back(key_);
  } else {
    for (const std::function<void()>& launch : waiting_) launch();
    missed_ = missed_ || is_new;
    if (use_ == Use::kRecord && found == graphs_.end()) {
      gpu_.BeginCapture();  // of what was just launched: kernels are loaded, algorithms chosen
      for (const std::function<void()>& launch : waiting_) launch();
      graphs_.emplace(key_, Graph{.recorded = gpu_.EndCapture()});
    }
  }
  waiting_.clear();
  key_.clear();
  gpu_.Gather(this);
}

void LaunchGraphs::Prepare() {
  for (auto& [key, graph] : graphs_) {
    if (graph.recorded == nullptr) continue;
    gpu_.Check("cudaGraphInstantiate", cudaGraphInstantiate(&graph.exec, graph.recorded, 0));
    gpu_.Check("cudaGraphUpload", cudaGraphUpload(graph.exec, gpu_.get()));
    gpu_.Check("cudaGraphDestroy", cudaGraphDestroy(std::exchange(graph.recorded, nullptr)));
  }
}

bool LaunchGraphs::End() {
  if (use_ == Use::kNone) return false;
  Flush();
  gpu_.Gather(nullptr);
  use_ = Use::kNone;
  return missed_;
}

void LaunchGraphs::Judge(bool equal) {
  for (const std::string& key : tried_) {
    graphs_[key].state = equal ? State::kProved : State::kWrong;
  }
  tried_.clear();
}

}  // namespace deepnet::cuda

#include "parallel/exec/timed_stage.h"

#include <algorithm>
#include <chrono>
#include <span>
#include <thread>

#include "parallel/base/check.h"
#include "parallel/base/clock.h"
#include "parallel/base/status_macros.h"

namespace deepnet {

TimedStage::TimedStage(TimedStageOptions options, const RankTrace& trace)
    : options_(std::move(options)), trace_(trace) {
  DEEPNET_CHECK_EQ(options_.costs.size(), options_.crossings.size());
}

absl::Status TimedStage::Forward(int chunk, int microbatch) {
  absl::Status status = Work(options_.costs[chunk].forward);
  Release(Boundary::kInput, chunk, microbatch);
  return status;
}

absl::Status TimedStage::Backward(int chunk, int microbatch) {
  const ChunkCost& cost = options_.costs[chunk];
  absl::Status status =
      WorkOnWeights(cost.backward_input + cost.backward_weight, chunk, microbatch);
  Release(Boundary::kOutputGradient, chunk, microbatch);
  return status;
}

absl::Status TimedStage::BackwardInput(int chunk, int microbatch) {
  absl::Status status = Work(options_.costs[chunk].backward_input);
  Release(Boundary::kOutputGradient, chunk, microbatch);
  return status;
}

absl::Status TimedStage::BackwardWeight(int chunk, int microbatch) {
  return WorkOnWeights(options_.costs[chunk].backward_weight, chunk, microbatch);
}

// Weight gradients of a chunk come in the order of microbatches.
absl::Status TimedStage::WorkOnWeights(double seconds, int chunk, int microbatch) {
  const double began = SecondsNow();
  RETURN_IF_ERROR(Work(seconds));
  if (options_.gradient_done == nullptr || microbatch + 1 < options_.num_microbatches) {
    return absl::OkStatus();
  }
  return options_.gradient_done(chunk, began);
}

bool TimedStage::WaitedSinceLastWork() const {
  for (auto event = trace_.events.rbegin(); event != trace_.events.rend(); ++event) {
    if (event->kind == TraceKind::kCompute) return false;
    if (event->kind == TraceKind::kWait) return true;
  }
  return true;  // the first action: nothing to make up for
}

absl::Status TimedStage::Work(double seconds) {
  const double late = WaitedSinceLastWork() ? 0.0 : overslept_;
  const double deadline = SecondsNow() + seconds * options_.time_scale - late;
  const double left = deadline - SecondsNow();
  if (left > 0) std::this_thread::sleep_for(std::chrono::duration<double>(left));
  overslept_ = std::max(0.0, SecondsNow() - deadline);
  lateness_ += overslept_;
  ++worked_;
  return absl::OkStatus();
}

TimedStage::Memory TimedStage::Allocate(Boundary boundary, int chunk) const {
  const bool before = boundary == Boundary::kInput || boundary == Boundary::kInputGradient;
  const bool forward = boundary == Boundary::kInput || boundary == Boundary::kOutput;
  const StageMessages& crossing = options_.crossings.at(before ? chunk : chunk + 1);
  Memory memory;
  for (const BoundaryTensor& tensor : forward ? crossing.forward : crossing.backward) {
    memory.emplace_back(std::min(BytesOf(tensor), options_.payload_limit_bytes));
  }
  return memory;
}

std::vector<Buffer> TimedStage::Buffers(Boundary boundary, int chunk, int microbatch) {
  const auto [at, is_new] = live_.try_emplace({boundary, chunk, microbatch});
  if (is_new) {
    std::vector<Memory>& pool = free_[{boundary, chunk}];
    if (pool.empty()) {
      at->second = Allocate(boundary, chunk);
    } else {
      at->second = std::move(pool.back());
      pool.pop_back();
    }
  }
  std::vector<Buffer> buffers;
  for (std::vector<char>& tensor : at->second) buffers.push_back(Buffer::Of(std::span(tensor)));
  return buffers;
}

void TimedStage::Release(Boundary boundary, int chunk, int microbatch) {
  const auto at = live_.find({boundary, chunk, microbatch});
  if (at == live_.end()) return;  // nothing crossed here
  free_[{boundary, chunk}].push_back(std::move(at->second));
  live_.erase(at);
}

}  // namespace deepnet

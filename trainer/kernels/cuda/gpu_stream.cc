#include "trainer/kernels/cuda/gpu_stream.h"

#include <utility>

#include "parallel/base/clock.h"

namespace deepnet::cuda {
namespace {

// The difference of two events comes in float32: it is taken from an event that is not farther
// away than this.
constexpr double kLongestMilliseconds = 500.0;

}  // namespace

// cudaFree waits for the kernels that use what is given back.
GpuStream::GpuStream(bool check_launches, Allocator allocator)
    : check_launches_(check_launches), allocator_(std::move(allocator)) {
  if (!allocator_) {
    allocator_ = [this](int64_t bytes) {
      void* memory = nullptr;
      Check("cudaMalloc", cudaMalloc(&memory, static_cast<size_t>(bytes)));
      return std::shared_ptr<void>(memory, [](void* p) { cudaFree(p); });
    };
  }
  Check("cudaStreamCreateWithFlags", cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
}

// Errors have been thrown by the calls before, or belong to a rank that ends.
GpuStream::~GpuStream() {
  cudaStreamSynchronize(stream_);
  scratch_ = nullptr;
  cudaStreamDestroy(stream_);
}

GpuStream::Event GpuStream::MakeEvent() const {
  cudaEvent_t made = nullptr;
  Check("cudaEventCreateWithFlags", cudaEventCreateWithFlags(&made, cudaEventDefault));
  return Event(made);
}

GpuStream::Event GpuStream::RecordEvent() const {
  Event event = MakeEvent();
  Check("cudaEventRecord", cudaEventRecord(event.get(), stream_));
  return event;
}

void GpuStream::StartClock() {
  if (clocked_ == clock_.size()) clock_.push_back({MakeEvent(), MakeEvent()});
  Check("cudaEventRecord", cudaEventRecord(clock_[clocked_].begin.get(), stream_));
}

void GpuStream::StopClock() {
  Check("cudaEventRecord", cudaEventRecord(clock_[clocked_].end.get(), stream_));
  ++clocked_;
}

double GpuStream::ClockedSeconds() {
  double seconds = 0.0;
  for (size_t i = 0; i < clocked_; ++i) {
    float milliseconds = 0.0f;
    Check("cudaEventElapsedTime",
          cudaEventElapsedTime(&milliseconds, clock_[i].begin.get(), clock_[i].end.get()));
    seconds += 1e-3 * static_cast<double>(milliseconds);
  }
  clocked_ = 0;
  return seconds;
}

void GpuStream::StartTiming() {
  Wait();
  timed_.clear();
  first_ = RecordEvent();
  Wait();
  first_at_ = SecondsNow();
  timing_ = true;
}

void GpuStream::BeginTime() {
  timed_.push_back({.launch = {.name = last_, .asked = SecondsNow()}, .begin = RecordEvent()});
}

std::vector<TimedKernel> GpuStream::StopTiming() {
  timing_ = false;
  Wait();
  std::vector<TimedKernel> times;
  cudaEvent_t from = first_.get();
  double from_at = first_at_;
  const auto at = [&](cudaEvent_t event) {
    float milliseconds = 0.0f;
    Check("cudaEventElapsedTime", cudaEventElapsedTime(&milliseconds, from, event));
    const double time = from_at + 1e-3 * static_cast<double>(milliseconds);
    if (milliseconds > kLongestMilliseconds) {
      from = event;
      from_at = time;
    }
    return time;
  };
  for (Pair& pair : timed_) {
    if (pair.end == nullptr) continue;  // its launch failed
    pair.launch.start = at(pair.begin.get());
    pair.launch.end = at(pair.end.get());
    times.push_back(pair.launch);
  }
  timed_.clear();
  return times;
}

void* GpuStream::Scratch(int64_t bytes) {
  if (bytes > scratch_bytes_) {
    if (graphs_ != nullptr) graphs_->Flush();  // what waits uses the memory
    scratch_ = nullptr;
    scratch_bytes_ = 0;
    scratch_ = Allocate(bytes);
    scratch_bytes_ = bytes;
  }
  return scratch_.get();
}

void GpuStream::BeginCapture() {
  Check("cudaStreamBeginCapture",
        cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
  capturing_ = true;
}

cudaGraph_t GpuStream::EndCapture() {
  capturing_ = false;
  cudaGraph_t graph = nullptr;
  Check("cudaStreamEndCapture", cudaStreamEndCapture(stream_, &graph));
  return graph;
}

void GpuStream::Wait() { Check("cudaStreamSynchronize", cudaStreamSynchronize(stream_)); }

void GpuStream::Launched(const char* what, cudaError_t error, const ProductShape& product) {
  Check(what, error);
  if (capturing_) return;
  last_ = what;
  if (timing_) {
    timed_.back().launch.name = what;
    timed_.back().launch.product = product;
    timed_.back().end = RecordEvent();
  }
  if (!check_launches_) return;
  Check(what, cudaStreamSynchronize(stream_));
}

void GpuStream::Check(const char* what, cudaError_t error) const {
  if (error == cudaSuccess) return;
  throw GpuError(std::string("CUDA error in ") + what + ": " + cudaGetErrorString(error) + " (" +
                 cudaGetErrorName(error) + "); last launched before: " + last_);
}

}  // namespace deepnet::cuda

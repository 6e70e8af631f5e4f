// The stream that a rank computes on: kernels are launched on it one after another, and it owns the
// scratch memory that they share.
//
// No launch waits. An error of CUDA is thrown as GpuError, by the call that saw it: kernels run
// later than they are launched, so it may belong to an earlier launch. With `check_launches`
// (compute.check_launches) every launch is waited for, and the error is its own.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "trainer/kernels/kernel_times.h"

namespace deepnet::cuda {

// Its text holds what CUDA says, the call or kernel that it said it to, and the last kernel that
// was launched before.
class GpuError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Makes the bytes between the members of `value` zeros: equal values then have equal bytes. Does
// nothing where the compiler cannot; graphs are then found less often.
template <typename T>
void ClearPadding([[maybe_unused]] T& value) {
#ifdef __has_builtin
#if __has_builtin(__builtin_clear_padding)
  __builtin_clear_padding(&value);
#endif
#endif
}

// Notes the launches of a stream instead of their being made (LaunchGraphs).
class LaunchGatherer {
 public:
  virtual ~LaunchGatherer() = default;

  // Notes a launch, which `launch` makes; AddToKey takes everything in which it may differ from
  // others.
  virtual void Add(std::function<void()> launch) = 0;
  template <typename T>
  void AddToKey(T value) {
    static_assert(std::is_trivially_copyable_v<T>);
    ClearPadding(value);
    key_.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }
  // Makes the launches that wait; must stand before anything else is put on the stream.
  virtual void Flush() = 0;

 protected:
  std::string key_;  // of what waits
};

// Used by one thread. Must be made and used with its device current (cudaSetDevice).
class GpuStream {
 public:
  // Returns device memory of at least so many bytes, for use in the order of the stream.
  using Allocator = std::function<std::shared_ptr<void>(int64_t bytes)>;
  // Makes a stream. Without `allocator`, memory is CUDA's.
  explicit GpuStream(bool check_launches = false, Allocator allocator = {});
  ~GpuStream();  // waits for everything on the stream
  GpuStream(const GpuStream&) = delete;
  GpuStream& operator=(const GpuStream&) = delete;

  cudaStream_t get() const { return stream_; }
  // The name of the last kernel or copy put on the stream; "none".
  const char* last_launch() const { return last_; }

  // Returns device memory of at least `bytes`, aligned to 256, with unspecified contents, for use
  // in the order of this stream until the last handle is dropped.
  std::shared_ptr<void> Allocate(int64_t bytes) { return allocator_(bytes); }

  // The same, but it belongs to the kernels of one operation: the next call returns the same
  // memory. Allocates only where an operation needs more than any before it.
  void* Scratch(int64_t bytes);
  float* ScratchFloats(int64_t count) {
    return static_cast<float*>(Scratch(count * int64_t{sizeof(float)}));
  }

  // Waits for everything on the stream.
  void Wait();

  // Launches are noted by `graphs` instead of made; null: made.
  void Gather(LaunchGatherer* graphs) { graphs_ = graphs; }
  LaunchGatherer* graphs() const { return graphs_; }
  // What is launched becomes a graph, without being run, counted or timed.
  void BeginCapture();
  cudaGraph_t EndCapture();

  // Where dropout reads the step of a pass: two words on the device, DropoutStream::counter0 and
  // the step's bits of counter2. Null: it is told.
  void SetStep(const uint32_t* step) { step_ = step; }
  const uint32_t* step() const { return step_; }

  // Begins to time launches, by a pair of events each. Waits once, to compare the clocks.
  void StartTiming();
  // Ends it, waits, and returns the launches since StartTiming in order.
  std::vector<TimedKernel> StopTiming();

  // The time from StartClock to StopClock, as the stream comes to them, is added up.
  void StartClock();
  void StopClock();
  // Returns the seconds since the last call. The stream must be behind the last StopClock.
  double ClockedSeconds();

  // For trainer/kernels/cuda/launch.h and callers of CUDA, before and after what they launch. The
  // second throws GpuError unless `error` is cudaSuccess, and so does Check. `what` names a kernel
  // or a call, a literal.
  void Launching() {
    if (timing_ && !capturing_) BeginTime();
  }
  void Launched(const char* what, cudaError_t error, const ProductShape& product = {});
  void Check(const char* what, cudaError_t error) const;

 private:
  struct DestroyEvent {
    void operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
  };
  using Event = std::unique_ptr<CUevent_st, DestroyEvent>;
  struct Pair {
    TimedKernel launch;
    Event begin, end;
  };

  Event MakeEvent() const;
  Event RecordEvent() const;
  void BeginTime();

  const bool check_launches_;
  cudaStream_t stream_ = nullptr;
  const char* last_ = "none";  // launched
  Allocator allocator_;
  std::shared_ptr<void> scratch_;
  int64_t scratch_bytes_ = 0;
  LaunchGatherer* graphs_ = nullptr;
  bool capturing_ = false;
  const uint32_t* step_ = nullptr;
  bool timing_ = false;
  Event first_;  // of StartTiming
  double first_at_ = 0.0;
  std::vector<Pair> timed_;  // of the last one the end may be missing
  struct Interval {
    Event begin, end;
  };
  std::vector<Interval> clock_;  // events are used again
  size_t clocked_ = 0;           // intervals since ClockedSeconds
};

}  // namespace deepnet::cuda

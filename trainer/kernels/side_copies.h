// Copies of much of a GPU's memory to the host beside what the GPU computes, for saves.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

namespace deepnet {

// A part of a copy: numbers of the device, and where they go.
struct SideCopy {
  const float* from = nullptr;
  float* to = nullptr;  // pinned memory
  int64_t count = 0;
};

// One copy is under way at a time. Errors of CUDA are thrown (trainer/kernels/device_errors.h).
class SideCopies {
 public:
  virtual ~SideCopies() = default;  // waits for a copy that is under way

  // Returns pinned memory of the host, whose pages `threads` threads make, or null where so much
  // cannot be had. To pin memory may wait until the device is idle, so it is done before the first
  // step.
  virtual std::shared_ptr<float[]> Pin(int64_t bytes, int threads) = 0;

  // Begins to copy `parts` as they are when all that is on the stream now has run.
  virtual void Begin(std::span<const SideCopy> parts) = 0;

  // Lets what is put on the stream from now on run only when the copy has ended. Does not wait.
  virtual void HoldStream() = 0;

  // Waits until the copy is on the host. May run in any thread.
  virtual void Wait() = 0;
};

// `stream` is DeviceSession::stream() on the current device. It and what is copied outlive the
// result.
std::unique_ptr<SideCopies> MakeSideCopies(void* stream);

}  // namespace deepnet

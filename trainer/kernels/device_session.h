// A DeviceSession takes memory of a rank's device, sends rows there, runs passes and reads results
// back; arithmetic is Ops'. Every Ops has one (Ops::session).
//
// The base class is the session of a CPU, on which most of this is nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include <ATen/core/Tensor.h>

#include "trainer/kernels/native/matrix.h"

namespace deepnet {

// Holds what an implementation has made of the rows of a side for itself, with
// DeviceSession::Upload.
class RowIndex {
 public:
  virtual ~RowIndex() = default;
};

// The rows of a microbatch. A side without rows has a count of 0.
struct MicrobatchRows {
  PackedRows source, target;
  int64_t step = 0;                    // DropoutSite::step of passes on these rows
  const int32_t* labels = nullptr;     // [target.count]; -1: no loss; null: there are none
  std::shared_ptr<const void> memory;  // keeps the arrays; null: somebody else does
};

// A pass of a microbatch through some layers. It can be run again from the same `state`.
struct DevicePass {
  std::pair<int, int> kind;  // equal for passes that do the same with other microbatches
  std::string name;          // of the kind: "chunk 0, the forward pass"
  int microbatch = 0;
  const MicrobatchRows& rows;     // as DeviceSession::Upload returned them
  std::vector<at::Tensor> state;  // what the pass changes in place
  // Runs it on `rows`. With `provisional` it may be run again: nothing of it may leave the rank
  // before RunPass returns.
  absl::FunctionRef<void(const MicrobatchRows& rows, bool provisional)> run;
  absl::FunctionRef<std::vector<at::Tensor>()> outputs;  // what it wrote beside `state`
  bool watched = false;  // something else reads tensors between its operations
};

class DeviceSession {
 public:
  virtual ~DeviceSession() = default;

  // Bytes held now that are not LibTorch's: working copies of living weights, scratch.
  virtual int64_t OwnBytes() const { return 0; }

  // Takes `bytes` of the device's memory at once, 32 MiB of them for small blocks, from which later
  // allocations are served, and pinned memory for the Upload of `num_batches` microbatches of at
  // most `batch_bytes`: to allocate stops a GPU, and peers that wait for it. Throws
  // c10::OutOfMemoryError. Does nothing on a CPU.
  virtual void Reserve(int64_t /*bytes*/, int /*num_batches*/, int64_t /*batch_bytes*/) {}

  // Copies the rows of a microbatch from host memory to the memory that operations read, without
  // waiting. On a CPU the result is `host` itself, which must then outlive it. Offsets that do not
  // rise from 0 to the rows, and numbers below their range, end the process; numbers above it do in
  // the operation that reads them.
  virtual MicrobatchRows Upload(const MicrobatchRows& host) { return host; }
  // The same for other arrays, such as the indices of DecodeAttention. Aligned to 16 bytes.
  virtual std::shared_ptr<const std::byte> Upload(std::span<const std::byte> host) {
    return {std::shared_ptr<const void>(), host.data()};
  }

  // Waits until what earlier calls write to host memory is there.
  virtual void ReadBack() {}

  // True if the device repeats passes that it has learnt (docs/design/gpu.md). Rows are then
  // uploaded at their capacity, which is the `count` of both sides; those behind the last sentence
  // have token 0 or any other, no label, and belong to no sentence; and a pass has the same
  // operations on the same tensors whatever ran before it.
  virtual bool RepeatsPasses() const { return false; }
  // Begins a step: no message is under way, and the device may be waited for.
  virtual void BeginStep() {}
  // Runs a pass once, or several times where the device learns it; the bits are those of one run.
  // Its operations take effect in their order, but perhaps not before Flush or the end of the pass.
  virtual void RunPass(const DevicePass& pass) { pass.run(pass.rows, /*provisional=*/false); }
  // Whoever puts work on stream() otherwise than by operations calls this first.
  virtual void Flush() {}
  // Returns the device's seconds in passes since the last call. A device has to be through with
  // them. 0 on a CPU, where the time of the calls is that of the work.
  virtual double PassSeconds() { return 0.0; }
  // Returns what a user should know, said since the last call: sentences that name a pass.
  virtual std::vector<std::string> TakeWarnings() { return {}; }

  // The queue of the device in whose order calls take effect (Device::stream); null on a CPU.
  virtual void* stream() const { return nullptr; }
  // The name of the last kernel or copy put on that queue.
  virtual const char* LastLaunch() const { return "none"; }
};

}  // namespace deepnet

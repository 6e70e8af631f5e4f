// The DeviceSession of a GPU: its stream, what goes there and comes back, and passes that it
// repeats as CUDA graphs (trainer/kernels/cuda/launch_graphs.h).
//
// A pass of a kind runs eagerly at first, its launches being recorded. The next time the same
// microbatch comes it runs twice, eagerly and by the graphs of what was recorded; if both have the
// same bits, graphs serve whatever passes have those launches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "trainer/kernels/cuda/gpu_stream.h"
#include "trainer/kernels/cuda/host_copies.h"
#include "trainer/kernels/cuda/kernels.h"
#include "trainer/kernels/cuda/launch_graphs.h"
#include "trainer/kernels/device_session.h"
#include "trainer/kernels/native/sorted_rows.h"

namespace deepnet {

// Holds what the host knows of uploaded rows, and the rows of each token and of each position, for
// the gradients of embeddings.
struct GpuRowIndex : public RowIndex {
  int64_t rows = 0;  // of sentences; further ones are padding
  cuda::SortedRows tokens, positions;
  int32_t last_token = -1, last_position = -1, last_label = -1;  // the largest
  at::Tensor offsets;                                            // a view of PackedRows::offsets
  int64_t longest = 0;                                           // rows of a sentence
  int num_sentences = 0;                                         // up to the last with rows
};

// Returns the index of uploaded rows.
inline const GpuRowIndex& IndexOf(const PackedRows& rows) {
  return static_cast<const GpuRowIndex&>(*rows.index);
}

// The bytes that `numbers` of 32 bits take in an upload, or among results.
inline int64_t UploadBytes(int64_t numbers) {
  return cuda::UploadBlock::Padded(numbers * int64_t{sizeof(int32_t)});
}

// Makes `stream` LibTorch's current one of this thread while it lives, so that its copies and ours
// are in one order and its memory is kept for that order. A stream of LibTorch's pool would bring
// all others of the pool with it, which take hardware queues from the lanes between GPUs.
class CurrentStream {
 public:
  CurrentStream(at::Device device, cudaStream_t stream);
  ~CurrentStream();
  CurrentStream(const CurrentStream&) = delete;
  CurrentStream& operator=(const CurrentStream&) = delete;

 private:
  const c10::impl::VirtualGuardImpl guard_;
  const c10::Stream stream_;
};

class CudaSession : public DeviceSession {
 public:
  CudaSession(at::Device device, bool check_launches, bool graphs);

  at::Device device() const { return device_; }
  cuda::GpuStream& gpu() { return gpu_; }
  cuda::ResultQueue& results() { return results_; }
  // `work` is called before every pass that may be repeated: launches that belong to no pass.
  void BeforePass(std::function<void()> work) { before_pass_ = std::move(work); }

  void Reserve(int64_t bytes, int num_batches, int64_t batch_bytes) override;
  MicrobatchRows Upload(const MicrobatchRows& host) override;
  std::shared_ptr<const std::byte> Upload(std::span<const std::byte> host) override;
  void ReadBack() override { results_.Wait(); }
  bool RepeatsPasses() const override { return repeats_; }
  void BeginStep() override { graphs_.Prepare(); }
  void RunPass(const DevicePass& pass) override;
  void Flush() override { graphs_.Flush(); }
  double PassSeconds() override { return gpu_.ClockedSeconds(); }
  std::vector<std::string> TakeWarnings() override { return std::exchange(warnings_, {}); }
  void* stream() const override { return gpu_.get(); }
  const char* LastLaunch() const override { return gpu_.last_launch(); }

 private:
  using Use = cuda::LaunchGraphs::Use;
  // Comparisons of the passes of a kind.
  struct Trial {
    int microbatch = -1;  // whose next pass is compared with eager launches; -1: none
    int tries = 0;        // comparisons so far
  };

  void AddIndex(cuda::UploadBlock& block, const PackedRows& host, GpuRowIndex& index,
                PackedRows& sent);
  void RunRepeatable(const DevicePass& pass);
  void Compare(const DevicePass& pass, int slot);
  bool RunOnce(const DevicePass& pass, Use use, bool provisional);
  MicrobatchRows MoveIntoPass(const MicrobatchRows& rows);

  const at::Device device_;
  const bool repeats_;
  const bool check_launches_;
  cuda::GpuStream gpu_;
  const CurrentStream current_;
  cuda::LaunchGraphs graphs_;
  cuda::UploadPool uploads_;
  cuda::ResultQueue results_;
  std::function<void()> before_pass_ = [] {};
  std::shared_ptr<void> pass_;  // what a pass reads of its microbatch
  int64_t pass_bytes_ = 0;
  int64_t in_pass_ = 0;  // the upload that lies there
  int64_t num_uploads_ = 0;
  native::RowsByIndex sorted_;                   // of Upload
  std::map<std::pair<int, int>, Trial> trials_;  // by kind
  std::vector<std::string> warnings_;
};

}  // namespace deepnet

// One rank's messages while its pipeline decodes: boundary activations between chunks, the
// encoder's output, and the driver's commands.
//
// Only real rows are sent, no padding. Sends run in the background, a few at once; receives block.
// Rows of a GPU go through pinned memory of the host, which waits for them.
//
// The first error ends the job and stays: it is printed, Communicator::Abort is called with its
// exit code, and where that returns (ranks are threads, or one rank is alone) every later call does
// nothing and status() has it. So the caller may compute on until it checks status(); its numbers
// are invalid then. DeadlineExceeded (ExitCode::kHang) and Unavailable (ExitCode::kPeerLost) name
// rank, peer and message; Aborted: another rank ended the job.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include <ATen/core/Tensor.h>

#include "parallel/comm/communicator.h"
#include "parallel/plan/inventory.h"
#include "parallel/plan/partition.h"

namespace deepnet {

// The places of chunks and roles in a pipeline that decodes: a function of the plan, the same on
// every rank but for `rank` and `chunks`. Ranks count within the pipeline.
struct PipelineRoute {
  int rank = 0;                        // whose route this is
  std::vector<int> chunks;             // its chunks, by their numbers along the chain
  std::vector<int> rank_of_chunk;      // of all chunks of the chain
  int driver = 0;                      // has the output layer
  int encoder_end = 0;                 // has the last encoder layer, if there is one
  std::vector<int> encoder_output_to;  // the others with decoder layers that read its output
  std::vector<int> steppers;           // all with layers behind the encoder, except the driver
  std::vector<int> followers;          // all except the driver

  friend bool operator==(const PipelineRoute&, const PipelineRoute&) = default;
};

// Makes the route of `rank`. `inventory` describes the complete model; chunk c ends before layer
// chunk_ends[c] and is on the rank that `placement` says. Lists ascend.
PipelineRoute MakePipelineRoute(const Inventory& inventory, std::span<const int> chunk_ends,
                                const Placement& placement, int rank);

// The longest waits for a peer.
struct LinkLimits {
  absl::Duration rows = absl::Seconds(1200);     // of a rank that computes
  absl::Duration command = absl::Seconds(4800);  // of the driver, which may wait for other replicas
};

class PipelineLink {
 public:
  // `comm`, of the ranks of one pipeline and used by nobody else, must outlive the link.
  PipelineLink(PipelineRoute route, Communicator& comm, const LinkLimits& limits)
      : route_(std::move(route)), comm_(comm), limits_(limits) {}

  const PipelineRoute& route() const { return route_; }
  const absl::Status& status() const { return status_; }

  // Transfers the first `rows` rows of `x_RD` (any type and device, rows without gaps) over the
  // boundary before or behind chunk i of this rank. Does nothing where both chunks are on this
  // rank: they share the tensor.
  void ReceiveBefore(int i, int64_t rows, const at::Tensor& x_RD);
  void SendBehind(int i, int64_t rows, const at::Tensor& x_RD);

  // Transfers the encoder's output, once to every rank that needs it: Send is called on
  // route().encoder_end, Receive on each of route().encoder_output_to.
  void SendEncoderOutput(int64_t rows, const at::Tensor& encoder_output_RD);
  void ReceiveEncoderOutput(int64_t rows, const at::Tensor& encoder_output_RD);

  // Commands from the driver to others, in order; empty after an error.
  void SendCommand(std::span<const int32_t> command, std::span<const int> ranks);
  std::vector<int32_t> ReceiveCommand();

  // Waits for all sends. Returns the first error.
  absl::Status Finish();

 private:
  struct Sending {
    at::Tensor data;  // on the host
    std::unique_ptr<Transfer> transfer;
    std::string what;  // "command to rank 2"
  };

  void Send(const at::Tensor& data, int peer, int tag, const std::string& what);
  void ReceiveRows(int64_t rows, const at::Tensor& x_RD, int peer, int tag,
                   const std::string& what);
  void Receive(const Buffer& into, int peer, int tag, absl::Duration limit,
               const std::string& what);
  void AwaitOldestSend();
  void Await(Transfer& transfer, absl::Duration limit, const std::string& what);
  void Fail(const absl::Status& status, absl::Duration limit, const std::string& what);

  const PipelineRoute route_;
  Communicator& comm_;
  const LinkLimits limits_;
  absl::Status status_;
  std::deque<Sending> sends_;  // under way, oldest first
};

}  // namespace deepnet

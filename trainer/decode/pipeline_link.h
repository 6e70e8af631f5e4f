// One rank's messages while its pipeline decodes: rows over the cuts between chunks, the encoder's
// memory, and what the driver tells the others.
//
// Rows travel as many as are real. Sends run in the background, a few at once; receives block.
//
// The first error ends the job and stays: it is printed, Communicator::Abort is called with its
// exit code, and where that returns (ranks are threads, or one rank is alone) every later call does
// nothing and status() has it. So whoever computes in between may go on until it looks at status():
// its numbers are worth nothing then. DeadlineExceeded (ExitCode::kHang) names rank, peer and
// message; Unavailable (ExitCode::kPeerLost) likewise; Aborted: another rank ended the job.
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
#include "trainer/decode/pipeline_route.h"

namespace deepnet {

// The longest waits for a peer.
struct LinkLimits {
  absl::Duration rows = absl::Seconds(1200);   // that computes
  absl::Duration order = absl::Seconds(4800);  // the driver, that may wait for other replicas
};

class PipelineLink {
 public:
  // `comm`, of the ranks of one pipeline and used by nobody else, must outlive the link.
  PipelineLink(PipelineRoute route, Communicator& comm, const LinkLimits& limits)
      : route_(std::move(route)), comm_(comm), limits_(limits) {}

  const PipelineRoute& route() const { return route_; }
  const absl::Status& status() const { return status_; }

  // The first `rows` rows of `x_RD` (any type and device, rows without gaps) over the cut before or
  // behind chunk i of this rank. Nothing where both sides of the cut are on this rank: then they
  // share the tensor.
  void ReceiveBefore(int i, int64_t rows, const at::Tensor& x_RD);
  void SendBehind(int i, int64_t rows, const at::Tensor& x_RD);

  // The memory, once to every rank that needs it: the first on route().encoder_end, the second on
  // each of route().memory_to.
  void SendMemory(int64_t rows, const at::Tensor& memory_RD);
  void ReceiveMemory(int64_t rows, const at::Tensor& memory_RD);

  // From the driver to others, in order; empty after an error.
  void SendOrder(std::span<const int32_t> order, std::span<const int> ranks);
  std::vector<int32_t> ReceiveOrder();

  // Waits until everything sent is gone; the first error.
  absl::Status Finish();

 private:
  struct Sending {
    std::vector<char> bytes;
    std::unique_ptr<Transfer> transfer;
    std::string what;  // "order to rank 2"
  };

  void Send(std::vector<char> bytes, int peer, int tag, const std::string& what);
  void ReceiveRows(int64_t rows, const at::Tensor& x_RD, int peer, int tag,
                   const std::string& what);
  void Receive(void* data, int64_t bytes, int peer, int tag, absl::Duration limit,
               const std::string& what);
  void Await(Transfer& transfer, absl::Duration limit, const std::string& what);
  void Fail(const absl::Status& status, absl::Duration limit, const std::string& what);

  const PipelineRoute route_;
  Communicator& comm_;
  const LinkLimits limits_;
  absl::Status status_;
  std::deque<Sending> sends_;  // under way, oldest first
};

}  // namespace deepnet

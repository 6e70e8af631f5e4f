// One NCCL communicator with a stream and a queue of its own (private to nccl_communicator.cc).
//
// All of it is a state machine that somebody has to look at: exchange the id, connect, launch the
// next operation, see that it has ended. No step blocks.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "parallel/comm/communicator.h"

namespace deepnet {

// InternalError with CUDA's or NCCL's text, naming `call`; OK on success.
absl::Status CudaStatus(const char* call, cudaError_t error);

// Something launched on a lane. Fields but `text` and `launch` are the lane's.
struct NcclOperation {
  using Launch = std::function<ncclResult_t(ncclComm_t comm, cudaStream_t stream)>;

  NcclOperation(std::string text, Launch launch)
      : text(std::move(text)), launch(std::move(launch)) {}
  ~NcclOperation();

  const std::string text;  // "Send to rank 1, 8 B"
  const Launch launch;
  cudaEvent_t inputs_ready = nullptr;  // recorded in the buffers' stream
  cudaEvent_t ended = nullptr;         // recorded in the lane's stream once `launched`
  bool launched = false;
  bool finished = false;
  absl::Status result;
};

class NcclLane {
 public:
  // `members` are ranks of `control`, in the lane's order, this rank at `index`; the first one
  // sends the id to the others with `tag`. Members make their lanes at any time.
  NcclLane(Communicator& control, std::vector<int> members, int index, int tag, int device);
  ~NcclLane();
  NcclLane(const NcclLane&) = delete;
  NcclLane& operator=(const NcclLane&) = delete;

  // Queues the operation, ordered after what `inputs` (a CUDA stream) holds now.
  void Push(const std::shared_ptr<NcclOperation>& operation, void* inputs);

  // Does what can be done now.
  void Advance();

  // Ends the GPU's work on this lane, so that memory may be freed; operations fail with `why`.
  void Abort(const absl::Status& why);

 private:
  enum class Phase { kExchanging, kConnecting, kReady, kFailed };

  absl::Status StartExchange(Communicator& control, const std::vector<int>& members, int tag);
  void Connect();
  void LaunchNext();
  void RecordEnd();
  void SeeEnds();
  ncclResult_t State();  // of the communicator; ncclInProgress while it works

  const int index_;
  const int size_;
  Phase phase_ = Phase::kExchanging;
  absl::Status error_;
  ncclUniqueId id_ = {};
  std::vector<std::unique_ptr<Transfer>> id_transfers_;
  ncclComm_t comm_ = nullptr;
  cudaStream_t stream_ = nullptr;
  bool launching_ = false;                               // the first of queued_ is in NCCL's hands
  std::deque<std::shared_ptr<NcclOperation>> queued_;    // not launched
  std::deque<std::shared_ptr<NcclOperation>> launched_;  // not ended
};

}  // namespace deepnet

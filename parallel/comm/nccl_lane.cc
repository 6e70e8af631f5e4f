#include "parallel/comm/nccl_lane.h"

#include <chrono>
#include <future>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"

#include "parallel/base/status_macros.h"

namespace deepnet {
namespace {

// How long NCCL may take to end a communicator before it is left behind.
constexpr std::chrono::seconds kEndLimit(5);

// Few thread blocks: messages leave the GPU to the computation.
constexpr int kMaxThreadBlocks = 2;

absl::Status NcclStatus(const char* call, ncclResult_t result) {
  if (result == ncclSuccess || result == ncclInProgress) return absl::OkStatus();
  const std::string text = absl::StrCat(call, ": ", ncclGetErrorString(result));
  return result == ncclRemoteError || result == ncclSystemError ? absl::UnavailableError(text)
                                                                : absl::InternalError(text);
}

// NCCL's documentation lets ncclCommAbort and ncclCommDestroy wait for peers.
void EndInBackground(std::function<void()> end) {
  std::packaged_task<void()> task(std::move(end));
  std::future<void> ended = task.get_future();
  std::thread(std::move(task)).detach();
  ended.wait_for(kEndLimit);
}

}  // namespace

absl::Status CudaStatus(const char* call, cudaError_t error) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(call, ": ", cudaGetErrorString(error)));
}

NcclOperation::~NcclOperation() {
  if (inputs_ready != nullptr) cudaEventDestroy(inputs_ready);
  if (ended != nullptr) cudaEventDestroy(ended);
}

NcclLane::NcclLane(Communicator& control, std::vector<int> members, int index, int tag, int device)
    : index_(index), size_(static_cast<int>(members.size())) {
  absl::Status status = CudaStatus("cudaSetDevice", cudaSetDevice(device));
  if (status.ok()) {
    status = CudaStatus("cudaStreamCreateWithFlags",
                        cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }
  if (status.ok()) status = StartExchange(control, members, tag);
  if (!status.ok()) Abort(status);
}

NcclLane::~NcclLane() {
  if (!queued_.empty() || !launched_.empty() || phase_ == Phase::kConnecting) {
    Abort(absl::AbortedError("the communicator is gone"));
  }
  if (comm_ != nullptr) {
    EndInBackground([comm = comm_] {
      ncclCommFinalize(comm);
      ncclResult_t state = ncclInProgress;
      while (ncclCommGetAsyncError(comm, &state) == ncclSuccess && state == ncclInProgress) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      ncclCommDestroy(comm);
    });
  }
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

absl::Status NcclLane::StartExchange(Communicator& control, const std::vector<int>& members,
                                     int tag) {
  const Buffer buffer = Buffer::Of(std::span<char>(id_.internal));
  if (index_ != 0) {
    ASSIGN_OR_RETURN(id_transfers_.emplace_back(), control.Receive(buffer, members[0], tag));
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(NcclStatus("ncclGetUniqueId", ncclGetUniqueId(&id_)));
  for (int member = 1; member < size_; ++member) {
    ASSIGN_OR_RETURN(id_transfers_.emplace_back(), control.Send(buffer, members[member], tag));
  }
  return absl::OkStatus();
}

void NcclLane::Push(const std::shared_ptr<NcclOperation>& operation, void* inputs) {
  if (phase_ == Phase::kFailed) {
    operation->finished = true;
    operation->result = error_;
    return;
  }
  absl::Status status;
  for (cudaEvent_t* event : {&operation->inputs_ready, &operation->ended}) {
    if (!status.ok()) break;
    status = CudaStatus("cudaEventCreateWithFlags",
                        cudaEventCreateWithFlags(event, cudaEventDisableTiming));
  }
  if (status.ok()) {
    status = CudaStatus("cudaEventRecord", cudaEventRecord(operation->inputs_ready,
                                                           static_cast<cudaStream_t>(inputs)));
  }
  queued_.push_back(operation);
  if (!status.ok()) Abort(status);
  Advance();
}

void NcclLane::Advance() {
  if (phase_ == Phase::kExchanging) Connect();
  if (phase_ == Phase::kConnecting || (phase_ == Phase::kReady && launching_)) {
    const ncclResult_t state = State();
    if (state == ncclInProgress) return;
    const absl::Status status = NcclStatus("NCCL", state);
    if (!status.ok()) return Abort(status);
    phase_ = Phase::kReady;
    if (launching_) RecordEnd();
  }
  while (phase_ == Phase::kReady && !launching_ && !queued_.empty()) LaunchNext();
  if (phase_ == Phase::kReady) SeeEnds();
}

void NcclLane::Connect() {
  for (const auto& transfer : id_transfers_) {
    if (!transfer->Done()) return;
    const absl::Status status = transfer->Wait();
    if (!status.ok()) return Abort(status);
  }
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.minCTAs = 1;
  config.maxCTAs = kMaxThreadBlocks;
  const absl::Status status = NcclStatus(
      "ncclCommInitRankConfig", ncclCommInitRankConfig(&comm_, size_, id_, index_, &config));
  if (!status.ok()) return Abort(status);
  phase_ = Phase::kConnecting;
}

void NcclLane::LaunchNext() {
  const NcclOperation& operation = *queued_.front();
  absl::Status status =
      CudaStatus("cudaStreamWaitEvent", cudaStreamWaitEvent(stream_, operation.inputs_ready, 0));
  ncclResult_t result = ncclSuccess;
  if (status.ok()) {
    result = operation.launch(comm_, stream_);
    status = NcclStatus("NCCL", result);
  }
  if (!status.ok()) return Abort(status);
  launching_ = true;
  if (State() == ncclSuccess) RecordEnd();
}

// The first launch between two ranks waits for the peer inside of NCCL; only after it does the
// stream hold the operation, and an event behind it means something.
void NcclLane::RecordEnd() {
  launching_ = false;
  const absl::Status status =
      CudaStatus("cudaEventRecord", cudaEventRecord(queued_.front()->ended, stream_));
  if (!status.ok()) return Abort(status);
  queued_.front()->launched = true;
  launched_.push_back(std::move(queued_.front()));
  queued_.pop_front();
}

void NcclLane::SeeEnds() {
  while (!launched_.empty()) {
    const cudaError_t state = cudaEventQuery(launched_.front()->ended);
    if (state == cudaErrorNotReady) break;
    if (state != cudaSuccess) return Abort(CudaStatus("cudaEventQuery", state));
    launched_.front()->finished = true;
    launched_.pop_front();
  }
  const absl::Status status = NcclStatus("NCCL", State());
  if (!status.ok()) Abort(status);
}

void NcclLane::Abort(const absl::Status& why) {
  if (comm_ != nullptr) EndInBackground([comm = comm_] { ncclCommAbort(comm); });
  comm_ = nullptr;
  phase_ = Phase::kFailed;
  error_ = why;
  launching_ = false;
  for (auto* operations : {&queued_, &launched_}) {
    for (const auto& operation : *operations) {
      operation->finished = true;
      operation->result =
          absl::Status(why.code(), absl::StrCat(operation->text, ": ", why.message()));
    }
    operations->clear();
  }
}

ncclResult_t NcclLane::State() {
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = ncclCommGetAsyncError(comm_, &state);
  return asked == ncclSuccess ? state : asked;
}

}  // namespace deepnet

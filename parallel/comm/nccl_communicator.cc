// A lane is one NCCL communicator with a stream and a queue of its own: a state machine that
// exchanges the id, connects, launches the next operation and sees that it has ended. Any call of
// this rank's communicator advances all lanes; no step blocks.
#include "parallel/comm/nccl_communicator.h"

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/agreement.h"

namespace deepnet {
namespace {

// Limit for NCCL to end a communicator; then it is left behind.
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

// Returns InternalError with CUDA's text, naming `call`; OK on success.
absl::Status CudaStatus(const char* call, cudaError_t error) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("CUDA error in ", call, ": ", cudaGetErrorString(error),
                                          " (", cudaGetErrorName(error), ")"));
}

// Something launched on a lane. Fields but `text` and `launch` are the lane's.
struct NcclOperation {
  using Launch = std::function<ncclResult_t(ncclComm_t comm, cudaStream_t stream)>;

  NcclOperation(std::string text, Launch launch)
      : text(std::move(text)), launch(std::move(launch)) {}
  ~NcclOperation() {
    if (inputs_ready != nullptr) cudaEventDestroy(inputs_ready);
    if (ended != nullptr) cudaEventDestroy(ended);
  }

  const std::string text;  // "Send to rank 1, 8 B"
  const Launch launch;
  cudaEvent_t inputs_ready = nullptr;  // recorded in the buffers' stream
  cudaEvent_t ended = nullptr;         // recorded in the lane's stream once launched
  bool finished = false;
  absl::Status result;
};

class NcclLane {
 public:
  // `members` are ranks of `control`, in the lane's order, this rank at `index`; the first one
  // sends the id to the others with `tag`. Members make their lanes at any time.
  NcclLane(Communicator& control, std::vector<int> members, int index, int tag, int device)
      : index_(index), size_(static_cast<int>(members.size())) {
    absl::Status status = CudaStatus("cudaSetDevice", cudaSetDevice(device));
    if (status.ok()) {
      status = CudaStatus("cudaStreamCreateWithFlags",
                          cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    }
    if (status.ok()) status = StartExchange(control, members, tag);
    if (!status.ok()) Abort(status);
  }

  ~NcclLane() {
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
  NcclLane(const NcclLane&) = delete;
  NcclLane& operator=(const NcclLane&) = delete;

  // Queues the operation, ordered after what `inputs` (a CUDA stream) holds now.
  void Push(const std::shared_ptr<NcclOperation>& operation, void* inputs) {
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

  // Does what can be done now.
  void Advance() {
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

  // Ends the GPU's work on this lane, so that memory may be freed; operations fail with `why`.
  void Abort(const absl::Status& why) {
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

 private:
  enum class Phase { kExchanging, kConnecting, kReady, kFailed };

  absl::Status StartExchange(Communicator& control, const std::vector<int>& members, int tag) {
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

  void Connect() {
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

  void LaunchNext() {
    const NcclOperation& operation = *queued_.front();
    absl::Status status =
        CudaStatus("cudaStreamWaitEvent", cudaStreamWaitEvent(stream_, operation.inputs_ready, 0));
    if (status.ok()) status = NcclStatus("NCCL", operation.launch(comm_, stream_));
    if (!status.ok()) return Abort(status);
    launching_ = true;
    if (State() == ncclSuccess) RecordEnd();
  }

  // The first launch between two ranks waits for the peer inside of NCCL; only after it does the
  // stream hold the operation, and an event behind it means something.
  void RecordEnd() {
    launching_ = false;
    const absl::Status status =
        CudaStatus("cudaEventRecord", cudaEventRecord(queued_.front()->ended, stream_));
    if (!status.ok()) return Abort(status);
    launched_.push_back(std::move(queued_.front()));
    queued_.pop_front();
  }

  void SeeEnds() {
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

  // Returns the state of the communicator; ncclInProgress while it works.
  ncclResult_t State() {
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = ncclCommGetAsyncError(comm_, &state);
    return asked == ncclSuccess ? state : asked;
  }

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

// Tags of the group that exchanges ids.
constexpr int kMessageTag = 0;
constexpr int kLaneOfAllTag = 1;

constexpr absl::Duration kShortestPause = absl::Microseconds(20);
constexpr absl::Duration kLongestPause = absl::Microseconds(500);

bool OnDevice(const Buffer& buffer) { return buffer.device.kind == Device::Kind::kCuda; }

// The lanes of one rank in one group.
class Lanes {
 public:
  Lanes(std::unique_ptr<Communicator> control, int device)
      : control_(std::move(control)), device_(device) {}

  NcclLane& Message(int from, int to) {
    auto& lane = lanes_[{from, to}];
    if (lane == nullptr) {
      lane = std::make_unique<NcclLane>(*control_, std::vector<int>{from, to},
                                        control_->rank() == from ? 0 : 1, kMessageTag, device_);
    }
    return *lane;
  }

  NcclLane& OfAll() {
    auto& lane = lanes_[{-1, -1}];
    if (lane == nullptr) {
      std::vector<int> members(control_->size());
      std::iota(members.begin(), members.end(), 0);
      lane =
          std::make_unique<NcclLane>(*control_, members, control_->rank(), kLaneOfAllTag, device_);
    }
    return *lane;
  }

  void Advance() {
    cudaSetDevice(device_);
    for (auto& [ends, lane] : lanes_) lane->Advance();
  }

  int device() const { return device_; }

 private:
  const std::unique_ptr<Communicator> control_;
  const int device_;
  std::map<std::pair<int, int>, std::unique_ptr<NcclLane>> lanes_;  // by (sender, receiver)
};

class NcclTransfer final : public Transfer {
 public:
  NcclTransfer(std::shared_ptr<Lanes> lanes, NcclLane& lane,
               std::shared_ptr<NcclOperation> operation)
      : lanes_(std::move(lanes)), lane_(lane), operation_(std::move(operation)) {}

  ~NcclTransfer() override {
    if (Done()) return;
    lane_.Abort(absl::AbortedError(absl::StrCat("this rank gave up ", operation_->text)));
  }

  // Sleeps between two looks for an eighth of the time waited, as the thread of MPI does.
  absl::Status Wait(absl::Duration limit) override {
    const absl::Time begin = absl::Now();
    while (!Done()) {
      const absl::Duration waited = absl::Now() - begin;
      if (waited >= limit) {
        return absl::DeadlineExceededError(
            absl::StrCat(operation_->text, ": not finished after ", absl::FormatDuration(limit)));
      }
      absl::SleepFor(
          std::min(std::clamp(waited / 8, kShortestPause, kLongestPause), limit - waited));
    }
    return operation_->result;
  }

  bool Done() override {
    lanes_->Advance();
    return operation_->finished;
  }

 private:
  const std::shared_ptr<Lanes> lanes_;
  NcclLane& lane_;
  const std::shared_ptr<NcclOperation> operation_;
};

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(Communicator& host, std::unique_ptr<Communicator> owned_host,
                   std::unique_ptr<Communicator> control, int device)
      : owned_host_(std::move(owned_host)),
        host_(host),
        lanes_(std::make_shared<Lanes>(std::move(control), device)) {}

  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }

  TransferOr Send(Buffer buffer, int peer, int tag) override {
    RETURN_IF_ERROR(CheckMessage("Send to", *this, peer, tag));
    if (!OnDevice(buffer)) return host_.Send(buffer, peer, tag);
    return Start(lanes_->Message(rank(), peer), absl::StrCat("Send to rank ", peer), buffer,
                 [buffer](ncclComm_t comm, cudaStream_t stream) {
                   return ncclSend(buffer.data, buffer.bytes, ncclUint8, 1, comm, stream);
                 });
  }

  TransferOr Receive(Buffer buffer, int peer, int tag) override {
    RETURN_IF_ERROR(CheckMessage("Receive from", *this, peer, tag));
    if (!OnDevice(buffer)) return host_.Receive(buffer, peer, tag);
    return Start(lanes_->Message(peer, rank()), absl::StrCat("Receive from rank ", peer), buffer,
                 [buffer](ncclComm_t comm, cudaStream_t stream) {
                   return ncclRecv(buffer.data, buffer.bytes, ncclUint8, 0, comm, stream);
                 });
  }

  TransferOr AllToAll(std::span<const Buffer> send, std::span<const Buffer> receive) override;
  TransferOr AllGather(Buffer mine, std::span<const Buffer> all) override;
  absl::StatusOr<std::unique_ptr<Communicator>> Split(int color, int key) override;

  void Abort(int exit_code) override { host_.Abort(exit_code); }

 private:
  TransferOr Start(NcclLane& lane, const std::string& call, const Buffer& buffer,
                   NcclOperation::Launch launch);

  const std::unique_ptr<Communicator> owned_host_;  // of a group that Split made
  Communicator& host_;
  const std::shared_ptr<Lanes> lanes_;
};

Communicator::TransferOr NcclCommunicator::Start(NcclLane& lane, const std::string& call,
                                                 const Buffer& buffer,
                                                 NcclOperation::Launch launch) {
  if (buffer.device.index != lanes_->device()) {
    return absl::InvalidArgumentError(absl::StrCat(call, ": memory of GPU ", buffer.device.index,
                                                   ", but this rank's is ", lanes_->device()));
  }
  auto operation = std::make_shared<NcclOperation>(absl::StrCat(call, ", ", buffer.bytes, " B"),
                                                   std::move(launch));
  lane.Push(operation, buffer.device.stream);
  return std::make_unique<NcclTransfer>(lanes_, lane, std::move(operation));
}

Communicator::TransferOr NcclCommunicator::AllToAll(std::span<const Buffer> send,
                                                    std::span<const Buffer> receive) {
  const auto on_device = [](std::span<const Buffer> buffers) {
    return std::find_if(buffers.begin(), buffers.end(), OnDevice);
  };
  const bool all_given = std::ssize(send) == size() && std::ssize(receive) == size();
  if (!all_given || (on_device(send) == send.end() && on_device(receive) == receive.end())) {
    return host_.AllToAll(send, receive);
  }
  if (send[rank()].bytes != receive[rank()].bytes) {
    return absl::InvalidArgumentError("AllToAll: the own part differs in size");
  }
  const Buffer& any = on_device(send) != send.end() ? *on_device(send) : *on_device(receive);
  const auto launch = [rank = rank(), send = std::vector(send.begin(), send.end()),
                       receive = std::vector(receive.begin(), receive.end())](ncclComm_t comm,
                                                                              cudaStream_t stream) {
    const Buffer& own = send[rank];
    if (own.bytes > 0 && own.data != receive[rank].data) {
      const cudaError_t copied = cudaMemcpyAsync(receive[rank].data, own.data, own.bytes,
                                                 cudaMemcpyDeviceToDevice, stream);
      if (copied != cudaSuccess) return ncclUnhandledCudaError;
    }
    ncclResult_t result = ncclGroupStart();
    const auto keep_error = [&result](ncclResult_t next) {
      if (result == ncclSuccess || result == ncclInProgress) result = next;
    };
    for (int peer = 0; peer < static_cast<int>(send.size()); ++peer) {
      if (peer == rank) continue;
      if (send[peer].bytes > 0) {
        keep_error(ncclSend(send[peer].data, send[peer].bytes, ncclUint8, peer, comm, stream));
      }
      if (receive[peer].bytes > 0) {
        keep_error(
            ncclRecv(receive[peer].data, receive[peer].bytes, ncclUint8, peer, comm, stream));
      }
    }
    keep_error(ncclGroupEnd());
    return result;
  };
  return Start(lanes_->OfAll(), "AllToAll", any, launch);
}

Communicator::TransferOr NcclCommunicator::AllGather(Buffer mine, std::span<const Buffer> all) {
  if (std::ssize(all) != size() || !OnDevice(mine)) return host_.AllGather(mine, all);
  return AllToAll(std::vector<Buffer>(size(), mine), all);
}

absl::StatusOr<std::unique_ptr<Communicator>> NcclCommunicator::Split(int color, int key) {
  ASSIGN_OR_RETURN(auto host, host_.Split(color, key));
  if (host == nullptr) return nullptr;
  ASSIGN_OR_RETURN(auto control, host->Split(0, host->rank()));
  Communicator& part = *host;
  return std::make_unique<NcclCommunicator>(part, std::move(host), std::move(control),
                                            lanes_->device());
}

// Any error means that there is no such GPU: without a driver the count is not even written.
absl::Status CheckDevice(int device) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && device >= 0 && device < count) return absl::OkStatus();
  const std::string why = error == cudaSuccess ? absl::StrCat("there are ", count)
                                               : std::string(cudaGetErrorString(error));
  return WithExitCode(absl::FailedPreconditionError(absl::StrCat("no GPU ", device, ": ", why)),
                      ExitCode::kPreflight);
}

// A library that is older than the header does not know what communicators are made with.
absl::Status CheckVersion() {
  int loaded = 0;
  ncclGetVersion(&loaded);
  constexpr int kMinor = 100;  // 2.27.5 is 22705
  if (loaded / kMinor >= NCCL_VERSION_CODE / kMinor) return absl::OkStatus();
  return WithExitCode(
      absl::FailedPreconditionError(absl::StrCat(
          "NCCL ", loaded / 10000, ".", loaded / kMinor % 100, " is loaded, this build needs ",
          NCCL_MAJOR, ".", NCCL_MINOR, " or newer (LD_LIBRARY_PATH)")),
      ExitCode::kPreflight);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> MakeNcclCommunicator(Communicator& bootstrap,
                                                                   int device) {
  RETURN_IF_ERROR(AgreeOnStatus(bootstrap, CheckDevice(device)));
  RETURN_IF_ERROR(AgreeOnStatus(bootstrap, CheckVersion()));
  ASSIGN_OR_RETURN(auto control, bootstrap.Split(0, bootstrap.rank()));
  return std::make_unique<NcclCommunicator>(bootstrap, nullptr, std::move(control), device);
}

}  // namespace deepnet

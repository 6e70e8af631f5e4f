#include "parallel/comm/nccl_communicator.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/agreement.h"
#include "parallel/comm/collectives.h"
#include "parallel/comm/nccl_lane.h"

namespace deepnet {
namespace {

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
          std::min({std::clamp(waited / 8, kShortestPause, kLongestPause), limit - waited}));
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

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> MakeNcclCommunicator(Communicator& bootstrap,
                                                                   int device) {
  RETURN_IF_ERROR(AgreeOnStatus(bootstrap, CheckDevice(device)));
  ASSIGN_OR_RETURN(auto control, bootstrap.Split(0, bootstrap.rank()));
  return std::make_unique<NcclCommunicator>(bootstrap, nullptr, std::move(control), device);
}

}  // namespace deepnet

// Each pair and direction has an NCCL communicator and a stream of its own (a lane), so that a
// receive that was posted early holds nothing up; collectives have one more. Connect makes them and
// moves a few bytes over each, because the first message between two ranks takes memory and waits
// for the device and for the peer. The tensors of a message are one launch, and events say when it
// has ended. An error of one lane, or a transfer that is dropped, ends all lanes of the group on
// this rank (ncclCommAbort). Lanes want hardware queues of their own: CUDA_DEVICE_MAX_CONNECTIONS,
// which SetCudaDefaults (launch/device_group.h) sets. Calls of NCCL that wait for peers run in
// threads of their own, so that a limit holds for them.
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <numeric>
#include <thread>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "parallel/base/exit_code.h"
#include "parallel/base/host.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/agreement.h"
#include "parallel/comm/backends.h"
#include "parallel/comm/pending_message.h"

namespace deepnet {
namespace {

// Limit for NCCL to end a communicator; then it is left behind.
constexpr absl::Duration kEndLimit = absl::Seconds(5);
// Thread blocks of a message between two ranks: few, because it moves beside the computation.
constexpr int kMessageThreadBlocks = 2;

absl::Status NcclStatus(const char* call, ncclResult_t result) {
  if (result == ncclSuccess) return absl::OkStatus();
  const std::string text = absl::StrCat(call, ": ", ncclGetErrorString(result));
  return result == ncclRemoteError || result == ncclSystemError ? absl::UnavailableError(text)
                                                                : absl::InternalError(text);
}

absl::Status CudaStatus(const char* call, cudaError_t error) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("CUDA error in ", call, ": ", cudaGetErrorString(error),
                                          " (", cudaGetErrorName(error), ")"));
}

// Returns what `call` returns in a thread of its own for `device`, or DeadlineExceeded after
// `limit`; then `call` goes on alone.
absl::Status CallWithin(absl::Duration limit, int device, std::function<absl::Status()> call) {
  const auto task =
      std::make_shared<std::packaged_task<absl::Status()>>([device, call = std::move(call)] {
        cudaSetDevice(device);  // an error of the device must not keep `call` from ending anything
        return call();
      });
  std::future<absl::Status> result = task->get_future();
  ASSIGN_OR_RETURN(std::thread thread, StartThread([task] { (*task)(); }));
  thread.detach();
  if (limit == absl::InfiniteDuration() ||
      result.wait_for(absl::ToChronoNanoseconds(limit)) == std::future_status::ready) {
    return result.get();
  }
  return absl::DeadlineExceededError(
      absl::StrCat("not finished after ", absl::FormatDuration(limit)));
}

// Launches something on a lane.
using NcclLaunch = std::function<ncclResult_t(ncclComm_t comm, cudaStream_t stream)>;

// Several calls of NCCL that begin at once.
class NcclGroup {
 public:
  NcclGroup() : result_(ncclGroupStart()) {}
  void Add(ncclResult_t call) {
    if (result_ == ncclSuccess) result_ = call;
  }
  ncclResult_t End() {
    Add(ncclGroupEnd());
    return result_;
  }

 private:
  ncclResult_t result_;
};

// Stands for what has been launched on a lane.
struct NcclOperation {
  explicit NcclOperation(std::string text) : text(std::move(text)) {}
  ~NcclOperation() {
    if (inputs_ready != nullptr) cudaEventDestroy(inputs_ready);
    if (ended != nullptr) cudaEventDestroy(ended);
  }

  const std::string text;              // "Send to rank 1, 8 B"
  cudaEvent_t inputs_ready = nullptr;  // recorded in the buffers' stream
  cudaEvent_t ended = nullptr;         // recorded in the lane's stream
  bool finished = false;
  absl::Status result;
};

// A lane as NCCL knows it. The thread that connects it may outlive the lane.
struct NcclEnd {
  int device = 0;
  int index = 0, size = 0;  // this rank among the members
  int thread_blocks = 0;    // at most; 0: as many as NCCL likes
  ncclUniqueId id = {};
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;

  // Returns the first error of the communicator.
  absl::Status State() const {
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = ncclCommGetAsyncError(comm, &state);
    return NcclStatus("NCCL", asked == ncclSuccess ? state : asked);
  }
};

class NcclLane {
 public:
  // `members` are ranks of the group, in the lane's order.
  NcclLane(std::vector<int> members, NcclEnd end)
      : members_(std::move(members)), end_(std::make_shared<NcclEnd>(end)) {}

  ~NcclLane() {
    if (!launched_.empty()) Abort(absl::AbortedError("the communicator is gone"));
    if (made_) {
      CallWithin(kEndLimit, end_->device, [comm = end_->comm] {
        ncclCommFinalize(comm);
        return NcclStatus("ncclCommDestroy", ncclCommDestroy(comm));
      }).IgnoreError();
    }
    if (end_->stream != nullptr) cudaStreamDestroy(end_->stream);
  }
  NcclLane(const NcclLane&) = delete;
  NcclLane& operator=(const NcclLane&) = delete;

  // Makes the stream and begins to exchange the id, which the first member sends with `tag`.
  absl::Status StartExchange(Communicator& control, int tag,
                             std::vector<std::unique_ptr<Transfer>>& transfers) {
    RETURN_IF_ERROR(CudaStatus("cudaStreamCreateWithFlags",
                               cudaStreamCreateWithFlags(&end_->stream, cudaStreamNonBlocking)));
    const Buffer buffer = Buffer::Of(std::span<char>(end_->id.internal));
    if (end_->index != 0) {
      ASSIGN_OR_RETURN(transfers.emplace_back(), control.Receive(buffer, members_[0], tag));
      return absl::OkStatus();
    }
    RETURN_IF_ERROR(NcclStatus("ncclGetUniqueId", ncclGetUniqueId(&end_->id)));
    for (size_t member = 1; member < members_.size(); ++member) {
      ASSIGN_OR_RETURN(transfers.emplace_back(), control.Send(buffer, members_[member], tag));
    }
    return absl::OkStatus();
  }

  const std::shared_ptr<NcclEnd>& end() const { return end_; }
  const absl::Status& error() const { return error_; }  // why it has been aborted
  void SetMade() { made_ = true; }                      // NCCL has a communicator

  // Launches the operation, ordered after what `inputs` (a CUDA stream) holds now.
  void Start(const std::shared_ptr<NcclOperation>& operation, void* inputs,
             const NcclLaunch& launch) {
    launched_.push_back(operation);
    const absl::Status status =
        error_.ok() ? Launch(*operation, static_cast<cudaStream_t>(inputs), launch) : error_;
    if (!status.ok()) Abort(status);
  }

  // Sees what has ended.
  void Advance() {
    if (!made_) return;
    while (!launched_.empty()) {
      const cudaError_t state = cudaEventQuery(launched_.front()->ended);
      if (state == cudaErrorNotReady) break;
      if (state != cudaSuccess) return Abort(CudaStatus("cudaEventQuery", state));
      launched_.front()->finished = true;
      launched_.pop_front();
    }
    const absl::Status status = end_->State();
    if (!status.ok()) Abort(status);
  }

  // Ends the GPU's work on this lane, so that memory may be freed; operations fail with `why`.
  void Abort(const absl::Status& why) {
    if (made_) {
      CallWithin(kEndLimit, end_->device, [comm = end_->comm] {
        return NcclStatus("ncclCommAbort", ncclCommAbort(comm));
      }).IgnoreError();
    }
    made_ = false;
    if (error_.ok()) error_ = why;
    for (const auto& operation : launched_) {
      operation->finished = true;
      operation->result =
          absl::Status(why.code(), absl::StrCat(operation->text, ": ", why.message()));
    }
    launched_.clear();
  }

 private:
  absl::Status Launch(NcclOperation& operation, cudaStream_t inputs, const NcclLaunch& launch) {
    for (cudaEvent_t* event : {&operation.inputs_ready, &operation.ended}) {
      RETURN_IF_ERROR(CudaStatus("cudaEventCreateWithFlags",
                                 cudaEventCreateWithFlags(event, cudaEventDisableTiming)));
    }
    RETURN_IF_ERROR(CudaStatus("cudaEventRecord", cudaEventRecord(operation.inputs_ready, inputs)));
    RETURN_IF_ERROR(CudaStatus("cudaStreamWaitEvent",
                               cudaStreamWaitEvent(end_->stream, operation.inputs_ready, 0)));
    RETURN_IF_ERROR(NcclStatus("NCCL", launch(end_->comm, end_->stream)));
    return CudaStatus("cudaEventRecord", cudaEventRecord(operation.ended, end_->stream));
  }

  const std::vector<int> members_;
  const std::shared_ptr<NcclEnd> end_;
  bool made_ = false;
  absl::Status error_;                                   // the lane has been aborted
  std::deque<std::shared_ptr<NcclOperation>> launched_;  // not ended
};

bool OnDevice(const Buffer& buffer) { return buffer.device.kind == Device::Kind::kCuda; }

// Messages over a lane, whose first member is the sender.
NcclLaunch MessagesOf(Communicator::Direction direction, std::vector<Buffer> buffers) {
  const bool sends = direction == Communicator::Direction::kSend;
  return [buffers = std::move(buffers), sends](ncclComm_t comm, cudaStream_t stream) {
    NcclGroup group;
    for (const Buffer& b : buffers) {
      const auto bytes = static_cast<size_t>(b.bytes);
      group.Add(sends ? ncclSend(b.data, bytes, ncclUint8, /*peer=*/1, comm, stream)
                      : ncclRecv(b.data, bytes, ncclUint8, /*peer=*/0, comm, stream));
    }
    return group.End();
  };
}

NcclLaunch AllToAllOf(std::vector<Buffer> send, std::vector<Buffer> receive, size_t rank) {
  return [send = std::move(send), receive = std::move(receive), rank](ncclComm_t comm,
                                                                      cudaStream_t stream) {
    const Buffer& own = send[rank];
    if (own.bytes > 0 && own.data != receive[rank].data) {
      const cudaError_t copied =
          cudaMemcpyAsync(receive[rank].data, own.data, static_cast<size_t>(own.bytes),
                          cudaMemcpyDeviceToDevice, stream);
      if (copied != cudaSuccess) return ncclUnhandledCudaError;
    }
    NcclGroup group;
    for (size_t r = 0; r < send.size(); ++r) {
      const int peer = static_cast<int>(r);
      const auto out = static_cast<size_t>(send[r].bytes),
                 in = static_cast<size_t>(receive[r].bytes);
      if (r == rank) continue;
      if (out > 0) group.Add(ncclSend(send[r].data, out, ncclUint8, peer, comm, stream));
      if (in > 0) group.Add(ncclRecv(receive[r].data, in, ncclUint8, peer, comm, stream));
    }
    return group.End();
  };
}

// Equal parts that lie one behind the other.
bool IsRegular(std::span<const Buffer> parts) {
  const auto* next = static_cast<const char*>(parts[0].data);
  for (const Buffer& part : parts) {
    if (part.data != next || part.bytes != parts[0].bytes) return false;
    next += part.bytes;
  }
  return true;
}

// Parts that are not regular are a group of broadcasts, which move over the same links.
NcclLaunch AllGatherOf(Buffer mine, std::vector<Buffer> all) {
  return [mine, all = std::move(all)](ncclComm_t comm, cudaStream_t stream) {
    if (IsRegular(all)) {
      return ncclAllGather(mine.data, all[0].data, static_cast<size_t>(mine.bytes), ncclUint8, comm,
                           stream);
    }
    NcclGroup group;
    for (size_t r = 0; r < all.size(); ++r) {
      if (all[r].bytes == 0) continue;
      group.Add(ncclBroadcast(mine.data, all[r].data, static_cast<size_t>(all[r].bytes), ncclUint8,
                              static_cast<int>(r), comm, stream));
    }
    return group.End();
  };
}

// In place: a block is a rank's, and it ends with the sum of the block in all ranks' memory.
NcclLaunch ReduceScatterOf(Buffer blocks, int rank, int size) {
  const size_t count =
      static_cast<size_t>(blocks.bytes) / sizeof(float) / static_cast<size_t>(size);
  float* const data = static_cast<float*>(blocks.data);
  return [=](ncclComm_t comm, cudaStream_t stream) {
    return ncclReduceScatter(data, data + static_cast<size_t>(rank) * count, count, ncclFloat32,
                             ncclSum, comm, stream);
  };
}

// Something to be launched on a lane before the first step.
struct Trial {
  std::shared_ptr<NcclEnd> end;
  NcclLaunch launch;
};

// Makes NCCL's communicators of all lanes at once; waits for the other members.
absl::Status MakeCommunicators(const std::vector<std::shared_ptr<NcclEnd>>& ends) {
  NcclGroup group;
  for (const auto& end : ends) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 1;
    if (end->thread_blocks > 0) {
      config.minCTAs = 1;
      config.maxCTAs = end->thread_blocks;
    }
    group.Add(ncclCommInitRankConfig(&end->comm, end->size, end->id, end->index, &config));
  }
  return NcclStatus("ncclCommInitRankConfig", group.End());
}

// The first message between two ranks connects them: it takes memory of the device and waits for
// it, so one trial has ended before the next one begins.
absl::Status RunTrials(const std::vector<Trial>& trials, const std::atomic<bool>& given_up) {
  for (const auto& [end, launch] : trials) {
    RETURN_IF_ERROR(NcclStatus("NCCL", launch(end->comm, end->stream)));
    cudaError_t state = cudaErrorNotReady;
    while (state == cudaErrorNotReady) {
      if (given_up) return absl::AbortedError("given up");
      RETURN_IF_ERROR(end->State());
      absl::SleepFor(absl::Microseconds(50));
      state = cudaStreamQuery(end->stream);
    }
    RETURN_IF_ERROR(CudaStatus("cudaStreamQuery", state));
  }
  return absl::OkStatus();
}

constexpr int64_t kTrialBytes = 16;
// The time in which RunTrials sees that it has been given up.
constexpr absl::Duration kLeaveTime = absl::Milliseconds(10);

// Adds every collective of `connections`, in the forms and the extreme sizes that NCCL connects
// apart.
void AddTrialsOfAll(const Communicator::Connections& connections,
                    const std::shared_ptr<NcclEnd>& end, std::vector<Trial>& trials) {
  const int size = end->size, rank = end->index;
  const auto add = [&](NcclLaunch launch) { trials.push_back({end, std::move(launch)}); };
  const auto parts = [&](int64_t bytes) {
    std::vector<Buffer> all;
    for (int r = 0; r < size; ++r) all.push_back(connections.scratch.Part(r * bytes, bytes));
    return all;
  };
  const int64_t most = connections.scratch.bytes / size / kTrialBytes * kTrialBytes;
  if (connections.all_to_all) {
    add(AllToAllOf(parts(kTrialBytes / 2), parts(kTrialBytes / 2), static_cast<size_t>(rank)));
  }
  for (const int64_t bytes : {kTrialBytes, most}) {
    if (connections.reduce_scatter) {
      add(ReduceScatterOf(connections.scratch.Part(0, bytes * size), rank, size));
    }
    if (!connections.all_gather) continue;
    std::vector<Buffer> all = parts(bytes);
    add(AllGatherOf(all[static_cast<size_t>(rank)], all));
    all.back().bytes -= 4;
    add(AllGatherOf(all[static_cast<size_t>(rank)], all));
  }
}

// Tags of the group that exchanges ids.
constexpr int kMessageTag = 0;
constexpr int kLaneOfAllTag = 1;

// The lanes of one rank in one group.
class Lanes {
 public:
  Lanes(std::unique_ptr<Communicator> control, int device)
      : control_(std::move(control)), device_(device) {}

  // Each returns null where Connect has not been told.
  NcclLane* Message(int from, int to) const { return Find({from, to}); }
  NcclLane* OfAll(bool Communicator::Connections::*use) const {
    return connected_.*use ? Find(kAll) : nullptr;
  }

  absl::Status Connect(const Communicator::Connections& connections, absl::Duration limit) {
    if (control_->size() == 1) return absl::OkStatus();
    if (connections.scratch.bytes < 2 * kTrialBytes * control_->size()) {
      return InvalidArgument("Connect: ", connections.scratch.bytes, " B of scratch memory");
    }
    absl::Status status = CudaStatus("cudaSetDevice", cudaSetDevice(device_));
    if (status.ok()) status = ConnectLanes(connections, AddLanes(connections), absl::Now() + limit);
    if (!status.ok()) {
      Abort(status);
      return status;
    }
    for (bool Communicator::Connections::*use :
         {&Communicator::Connections::all_to_all, &Communicator::Connections::all_gather,
          &Communicator::Connections::reduce_scatter}) {
      connected_.*use |= connections.*use;
    }
    return absl::OkStatus();
  }

  // An error of one lane ends all: whatever waits for the same peer may never see it.
  void Advance() {
    cudaSetDevice(device_);
    for (const auto& [ends, lane] : lanes_) {
      lane->Advance();
      if (!lane->error().ok()) return Abort(lane->error());
    }
  }
  void Abort(const absl::Status& why) {
    for (const auto& [ends, lane] : lanes_) {
      if (lane->error().ok()) lane->Abort(why);
    }
  }

  int device() const { return device_; }

 private:
  using Ends = std::pair<int, int>;  // sender, receiver
  static constexpr Ends kAll = {-1, -1};

  // The order in which lanes are tried, the same for all ranks, so that none waits for ever. Along
  // a pipeline most lanes of a kind (from even or odd ranks, up or down) are tried at once.
  struct ByTurn {
    bool operator()(const Ends& a, const Ends& b) const { return Key(a) < Key(b); }
    static std::tuple<bool, int, bool, Ends> Key(const Ends& ends) {
      return {ends == kAll, ends.first % 2, ends.second < ends.first, ends};
    }
  };

  NcclLane* Find(const Ends& ends) const {
    const auto found = lanes_.find(ends);
    return found == lanes_.end() ? nullptr : found->second.get();
  }

  // Makes the lanes that `connections` needs and that are not there; returns them in their order.
  std::vector<Ends> AddLanes(const Communicator::Connections& connections) {
    const int rank = control_->rank();
    std::vector<Ends> wanted;
    for (const int peer : connections.to) wanted.emplace_back(rank, peer);
    for (const int peer : connections.from) wanted.emplace_back(peer, rank);
    if (connections.all_to_all || connections.all_gather || connections.reduce_scatter)
      wanted.push_back(kAll);
    std::sort(wanted.begin(), wanted.end(), ByTurn());
    std::vector<Ends> added;
    for (const Ends& ends : wanted) {
      auto& lane = lanes_[ends];
      if (lane != nullptr) continue;
      std::vector<int> members = {ends.first, ends.second};
      if (ends == kAll) {
        members.resize(static_cast<size_t>(control_->size()));
        std::iota(members.begin(), members.end(), 0);
      }
      const auto me = std::find(members.begin(), members.end(), rank);
      const NcclEnd end{.device = device_,
                        .index = static_cast<int>(me - members.begin()),
                        .size = static_cast<int>(members.size()),
                        .thread_blocks = ends == kAll ? 0 : kMessageThreadBlocks};
      lane = std::make_unique<NcclLane>(std::move(members), end);
      added.push_back(ends);
    }
    return added;
  }

  absl::Status ConnectLanes(const Communicator::Connections& connections,
                            const std::vector<Ends>& added, absl::Time deadline) {
    RETURN_IF_ERROR(ExchangeIds(added, deadline));
    std::vector<std::shared_ptr<NcclEnd>> ends;
    for (const Ends& lane : added) ends.push_back(lanes_[lane]->end());
    RETURN_IF_ERROR(
        CallWithin(deadline - absl::Now(), device_, [ends] { return MakeCommunicators(ends); }));
    for (const Ends& lane : added) lanes_[lane]->SetMade();
    RETURN_IF_ERROR(control_->Barrier(deadline - absl::Now()));
    const auto given_up = std::make_shared<std::atomic<bool>>(false);
    absl::Status tried = CallWithin(
        deadline - absl::Now(), device_,
        [trials = TrialsOf(connections, added), given_up] { return RunTrials(trials, *given_up); });
    if (!tried.ok()) {  // the thread leaves NCCL's communicators alone before they are aborted
      *given_up = true;
      absl::SleepFor(kLeaveTime);
      return tried;
    }
    return control_->Barrier(deadline - absl::Now());
  }

  absl::Status ExchangeIds(const std::vector<Ends>& added, absl::Time deadline) {
    for (const Ends& ends : added) {
      const int tag = ends == kAll ? kLaneOfAllTag : kMessageTag;
      RETURN_IF_ERROR(lanes_[ends]->StartExchange(*control_, tag, id_transfers_));
    }
    for (const auto& transfer : id_transfers_) {
      RETURN_IF_ERROR(transfer->Wait(deadline - absl::Now()));
    }
    id_transfers_.clear();
    return control_->Barrier(deadline - absl::Now());
  }

  std::vector<Trial> TrialsOf(const Communicator::Connections& connections,
                              const std::vector<Ends>& added) {
    std::vector<Trial> trials;
    for (const Ends& ends : added) {
      if (ends == kAll) continue;
      const bool sends = ends.first == control_->rank();
      const auto direction =
          sends ? Communicator::Direction::kSend : Communicator::Direction::kReceive;
      const Buffer message = connections.scratch.Part(sends ? 0 : kTrialBytes, kTrialBytes);
      trials.push_back({lanes_[ends]->end(), MessagesOf(direction, {message})});
    }
    if (const NcclLane* const all = Find(kAll)) AddTrialsOfAll(connections, all->end(), trials);
    return trials;
  }

  const std::unique_ptr<Communicator> control_;
  const int device_;
  std::map<Ends, std::unique_ptr<NcclLane>, ByTurn> lanes_;
  // Kept when one fails: dropped before the job ends, it would end it with another code.
  std::vector<std::unique_ptr<Transfer>> id_transfers_;
  Communicator::Connections connected_;  // the collectives that have been connected
};

class NcclTransfer final : public Transfer {
 public:
  NcclTransfer(std::shared_ptr<Lanes> lanes, std::shared_ptr<NcclOperation> operation)
      : lanes_(std::move(lanes)), operation_(std::move(operation)) {}

  ~NcclTransfer() override {
    if (Done()) return;
    lanes_->Abort(absl::AbortedError(absl::StrCat("this rank gave up ", operation_->text)));
  }

  absl::Status Wait(absl::Duration limit) override {
    const absl::Time begin = absl::Now();
    while (!Done()) {
      const absl::Duration waited = absl::Now() - begin;
      if (waited >= limit) {
        return absl::DeadlineExceededError(
            absl::StrCat(operation_->text, ": not finished after ", absl::FormatDuration(limit)));
      }
      absl::SleepFor(std::min(PauseAfter(waited), limit - waited));
    }
    return operation_->result;
  }

  bool Done() override {
    lanes_->Advance();
    return operation_->finished;
  }

 private:
  const std::shared_ptr<Lanes> lanes_;
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

  absl::Status Connect(const Connections& connections, absl::Duration limit) override {
    return WithPrefix("connecting GPUs by NCCL", lanes_->Connect(connections, limit));
  }

  TransferOr StartMessages(Direction direction, std::span<const Buffer> buffers, int peer,
                           int tag) override {
    RETURN_IF_ERROR(CheckMessage(direction, *this, peer, tag));
    if (buffers.empty() || !OnDevice(buffers[0])) {
      return host_.StartMessages(direction, buffers, peer, tag);
    }
    const bool sends = direction == Direction::kSend;
    return Start(sends ? lanes_->Message(rank(), peer) : lanes_->Message(peer, rank()),
                 MessageText(direction, peer), buffers,
                 MessagesOf(direction, {buffers.begin(), buffers.end()}));
  }

  TransferOr AllToAll(std::span<const Buffer> send, std::span<const Buffer> receive) override {
    std::vector<Buffer> buffers(send.begin(), send.end());
    buffers.insert(buffers.end(), receive.begin(), receive.end());
    const bool all_given = std::ssize(send) == size() && std::ssize(receive) == size();
    if (!all_given || std::none_of(buffers.begin(), buffers.end(), OnDevice)) {
      return host_.AllToAll(send, receive);
    }
    const auto own = static_cast<size_t>(rank());
    if (send[own].bytes != receive[own].bytes) {
      return absl::InvalidArgumentError("AllToAll: the own part differs in size");
    }
    return Start(lanes_->OfAll(&Connections::all_to_all), "AllToAll", buffers,
                 AllToAllOf({send.begin(), send.end()}, {receive.begin(), receive.end()}, own));
  }

  TransferOr AllGather(Buffer mine, std::span<const Buffer> all) override {
    if (std::ssize(all) != size() || !OnDevice(mine)) return host_.AllGather(mine, all);
    std::vector<Buffer> buffers = {mine};
    buffers.insert(buffers.end(), all.begin(), all.end());
    return Start(lanes_->OfAll(&Connections::all_gather), "AllGather", buffers,
                 AllGatherOf(mine, {all.begin(), all.end()}));
  }

  TransferOr ReduceScatter(Buffer blocks) override {
    if (!OnDevice(blocks)) return host_.ReduceScatter(blocks);
    if (blocks.bytes % (static_cast<int64_t>(sizeof(float)) * size()) != 0) {
      return InvalidArgument("ReduceScatter: ", blocks.bytes, " B are no ", size(),
                             " blocks of floats");
    }
    return Start(lanes_->OfAll(&Connections::reduce_scatter), "ReduceScatter",
                 std::span(&blocks, 1), ReduceScatterOf(blocks, rank(), size()));
  }

  absl::StatusOr<std::unique_ptr<Communicator>> Split(int color, int key) override {
    ASSIGN_OR_RETURN(auto host, host_.Split(color, key));
    if (host == nullptr) return nullptr;
    ASSIGN_OR_RETURN(auto control, host->Split(0, host->rank()));
    Communicator& part = *host;
    return std::make_unique<NcclCommunicator>(part, std::move(host), std::move(control),
                                              lanes_->device());
  }

  void Abort(int exit_code) override { host_.Abort(exit_code); }

 private:
  TransferOr Start(NcclLane* lane, const std::string& call, std::span<const Buffer> buffers,
                   const NcclLaunch& launch) {
    int64_t bytes = 0;
    for (const Buffer& buffer : buffers) {
      bytes += buffer.bytes;
      if (buffer.bytes == 0 || (OnDevice(buffer) && buffer.device.index == lanes_->device())) {
        continue;
      }
      return InvalidArgument(call, ": memory of GPU ", OnDevice(buffer) ? buffer.device.index : -1,
                             ", but this rank's is ", lanes_->device());
    }
    if (lane == nullptr) {
      return FailedPrecondition(call, ", ", bytes,
                                " B of a GPU: these ranks were not connected for it");
    }
    auto operation = std::make_shared<NcclOperation>(absl::StrCat(call, ", ", bytes, " B"));
    cudaSetDevice(lanes_->device());
    lane->Start(operation, buffers[0].device.stream, launch);
    return std::make_unique<NcclTransfer>(lanes_, std::move(operation));
  }

  const std::unique_ptr<Communicator> owned_host_;  // of a group that Split made
  Communicator& host_;
  const std::shared_ptr<Lanes> lanes_;
};

// Any error means that there is no such GPU: without a driver the count is not even written.
absl::Status CheckDevice(int device) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && device >= 0 && device < count) return absl::OkStatus();
  const std::string why = error == cudaSuccess ? absl::StrCat("there are ", count)
                                               : std::string(cudaGetErrorString(error));
  return PreflightError("no GPU ", device, ": ", why);
}

// A library that is older than the header does not know what communicators are made with.
absl::Status CheckVersion() {
  int loaded = 0;
  ncclGetVersion(&loaded);
  constexpr int kMinor = 100;  // 2.27.5 is 22705
  if (loaded / kMinor >= NCCL_VERSION_CODE / kMinor) return absl::OkStatus();
  return PreflightError("NCCL ", loaded / 10000, ".", loaded / kMinor % 100,
                        " is loaded, this build needs ", NCCL_MAJOR, ".", NCCL_MINOR,
                        " or newer (LD_LIBRARY_PATH)");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> MakeNcclCommunicator(Communicator& bootstrap,
                                                                   int device) {
  RETURN_IF_ERROR(AgreeOnStatus(bootstrap, CheckDevice(device)));
  RETURN_IF_ERROR(AgreeOnStatus(bootstrap, CheckVersion()));
  ASSIGN_OR_RETURN(auto control, bootstrap.Split(0, bootstrap.rank()));
  return std::make_unique<NcclCommunicator>(bootstrap, nullptr, std::move(control), device);
}

std::string NcclVersion() {
  int loaded = 0;
  ncclGetVersion(&loaded);
  return absl::StrCat(loaded / 10000, ".", loaded / 100 % 100, ".", loaded % 100);
}

}  // namespace deepnet

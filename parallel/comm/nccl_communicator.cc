// Each pair and direction has an NCCL communicator and a stream of its own (a lane), so that a
// receive that was posted early holds nothing up; collectives have one more. Connect makes them and
// moves a few bytes over each, because the first message between two ranks takes memory and waits
// for the device and for the peer. The tensors of a message are one launch, and events say when it
// has ended. An error of one lane fails what is under way on all; a transfer that is dropped early
// aborts them. Lanes want hardware queues of their own (launch/device_group.cc). Calls of NCCL that
// wait for peers run in threads, which have a limit.
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <thread>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
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
// Few thread blocks, as they run beside the computation and take memory (ReplicasBytes, memory.h).
constexpr int kMessageThreadBlocks = 2, kCollectiveThreadBlocks = 8;

// NCCL keeps its last warning, whether or not it prints any. The system refuses at the next start
// too what it refuses while ranks connect.
absl::Status NcclStatus(const std::string& call, ncclResult_t result, bool connecting = false) {
  if (result == ncclSuccess) return absl::OkStatus();
  const std::string warning = ncclGetLastError(nullptr);
  const std::string text = absl::StrCat(call, ": ", ncclGetErrorString(result),
                                        warning.empty() ? "" : "; last warning: ", warning);
  if (result != ncclRemoteError &&
      (absl::StrContains(warning, "out of memory") || absl::StrContains(warning, "to CUDA"))) {
    size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    return DoesNotFitError(text, "; ", free >> 20, " MiB of the GPU are free");
  }
  if (connecting && (result == ncclSystemError || result == ncclInvalidUsage)) {
    return PreflightError(text);
  }
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
  return NotFinished("NCCL", limit);
}

// Launches something on a lane.
using NcclLaunch = std::function<ncclResult_t(ncclComm_t comm, cudaStream_t stream)>;

// Calls of NCCL that begin at once: those whose results `calls` gives to its argument.
template <typename Calls>
ncclResult_t Together(const Calls& calls) {
  ncclResult_t first = ncclGroupStart();
  const auto add = [&](ncclResult_t call) { first = first == ncclSuccess ? call : first; };
  calls(add);
  add(ncclGroupEnd());
  return first;
}

class Lanes;

// Stands for what has been launched on a lane; all lanes end where it is dropped before it has
// ended well.
class NcclTransfer final : public Transfer {
 public:
  NcclTransfer(std::shared_ptr<Lanes> lanes, std::string text)
      : text(std::move(text)), lanes_(std::move(lanes)) {}
  ~NcclTransfer() override;

  absl::Status Wait(absl::Duration limit) override {
    const absl::Time begin = absl::Now();
    while (!Done()) {
      const absl::Duration waited = absl::Now() - begin;
      if (waited >= limit) return NotFinished(text, limit);
      absl::SleepFor(std::min(PauseAfter(waited), limit - waited));
    }
    return result;
  }
  bool Done() override;
  void Fail(const absl::Status& why) {
    finished = true;
    result = WithPrefix(text, why);
  }

  // The lane uses these.
  const std::string text;              // "Send to rank 1, 8 B"
  cudaEvent_t inputs_ready = nullptr;  // recorded in the buffers' stream
  cudaEvent_t ended = nullptr;         // recorded in the lane's stream
  bool finished = false;
  absl::Status result;

 private:
  const std::shared_ptr<Lanes> lanes_;
};

// Sender and receiver of a lane's messages.
using Ends = std::pair<int, int>;
constexpr Ends kAll = {-1, -1};  // those of the lane of collectives

// A lane as NCCL knows it. The thread that connects it may outlive the lane.
struct NcclEnd {
  Ends ends;
  int device = 0;
  int index = 0, size = 0;  // this rank among the members
  ncclUniqueId id = {};
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  bool connected = false;

  absl::Status Check(ncclResult_t result) const {
    return NcclStatus(ends == kAll
                          ? "NCCL of all ranks"
                          : absl::StrCat("NCCL from rank ", ends.first, " to ", ends.second),
                      result, /*connecting=*/!connected);
  }

  // Returns the first error of the communicator.
  absl::Status State() const {
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = ncclCommGetAsyncError(comm, &state);
    return Check(asked == ncclSuccess ? state : asked);
  }
};

class NcclLane {
 public:
  explicit NcclLane(const NcclEnd& end) : end_(std::make_shared<NcclEnd>(end)) {}
  ~NcclLane() {
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

  // Makes the stream and begins to exchange the id, which the first member sends.
  absl::Status StartExchange(Communicator& control,
                             std::vector<std::unique_ptr<Transfer>>& transfers) {
    const bool all = end_->ends == kAll;
    int least = 0, greatest = 0;  // messages go before products that wait for a multiprocessor
    cudaDeviceGetStreamPriorityRange(&least, &greatest);
    RETURN_IF_ERROR(CudaStatus(
        "cudaStreamCreateWithPriority",
        cudaStreamCreateWithPriority(&end_->stream, cudaStreamNonBlocking, all ? 0 : greatest)));
    const Buffer buffer = Buffer::Of(std::span<char>(end_->id.internal));
    const int tag = all ? 1 : 0;
    if (end_->index != 0) {
      ASSIGN_OR_RETURN(transfers.emplace_back(),
                       control.Receive(buffer, all ? 0 : end_->ends.first, tag));
      return absl::OkStatus();
    }
    RETURN_IF_ERROR(end_->Check(ncclGetUniqueId(&end_->id)));
    for (int member = 1; member < end_->size; ++member) {
      ASSIGN_OR_RETURN(transfers.emplace_back(),
                       control.Send(buffer, all ? member : end_->ends.second, tag));
    }
    return absl::OkStatus();
  }

  const std::shared_ptr<NcclEnd>& end() const { return end_; }
  void SetMade() { made_ = true; }  // NCCL has a communicator
  // Returns the communicator, to be aborted; null where there is none.
  ncclComm_t Take() { return std::exchange(made_, false) ? end_->comm : nullptr; }

  // Launches the operation, ordered after what `inputs` (a CUDA stream) holds now.
  absl::Status Launch(NcclTransfer& operation, void* inputs, const NcclLaunch& launch) {
    launched_.push_back(&operation);
    for (cudaEvent_t* event : {&operation.inputs_ready, &operation.ended}) {
      RETURN_IF_ERROR(CudaStatus("cudaEventCreateWithFlags",
                                 cudaEventCreateWithFlags(event, cudaEventDisableTiming)));
    }
    RETURN_IF_ERROR(
        CudaStatus("cudaEventRecord",
                   cudaEventRecord(operation.inputs_ready, static_cast<cudaStream_t>(inputs))));
    RETURN_IF_ERROR(CudaStatus("cudaStreamWaitEvent",
                               cudaStreamWaitEvent(end_->stream, operation.inputs_ready, 0)));
    RETURN_IF_ERROR(end_->Check(launch(end_->comm, end_->stream)));
    return CudaStatus("cudaEventRecord", cudaEventRecord(operation.ended, end_->stream));
  }

  // Sees what has ended; returns the lane's error.
  absl::Status Advance() {
    if (!made_) return absl::OkStatus();
    while (!launched_.empty()) {
      const cudaError_t state = cudaEventQuery(launched_.front()->ended);
      if (state == cudaErrorNotReady) break;
      RETURN_IF_ERROR(CudaStatus("cudaEventQuery", state));
      launched_.front()->finished = true;
      launched_.pop_front();
    }
    return end_->State();
  }

  // Nobody waits any more for what is under way.
  void Fail(const absl::Status& why) {
    for (NcclTransfer* const operation : launched_) operation->Fail(why);
    launched_.clear();
  }

 private:
  const std::shared_ptr<NcclEnd> end_;
  bool made_ = false;
  std::deque<NcclTransfer*> launched_;  // not ended
};

bool OnDevice(const Buffer& buffer) { return buffer.device.kind == Device::Kind::kCuda; }

// Messages over a lane, whose first member is the sender.
NcclLaunch MessagesOf(bool sends, std::vector<Buffer> buffers) {
  return [buffers = std::move(buffers), sends](ncclComm_t comm, cudaStream_t stream) {
    return Together([&](const auto& add) {
      for (const Buffer& b : buffers) {
        const auto bytes = static_cast<size_t>(b.bytes);
        add(sends ? ncclSend(b.data, bytes, ncclUint8, /*peer=*/1, comm, stream)
                  : ncclRecv(b.data, bytes, ncclUint8, /*peer=*/0, comm, stream));
      }
    });
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
    return Together([&](const auto& add) {
      for (size_t r = 0; r < send.size(); ++r) {
        const int peer = static_cast<int>(r);
        const auto out = static_cast<size_t>(send[r].bytes),
                   in = static_cast<size_t>(receive[r].bytes);
        if (r == rank) continue;
        if (out > 0) add(ncclSend(send[r].data, out, ncclUint8, peer, comm, stream));
        if (in > 0) add(ncclRecv(receive[r].data, in, ncclUint8, peer, comm, stream));
      }
    });
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

// Parts that are not regular are messages, as many bytes as round a ring, and all at once.
NcclLaunch AllGatherOf(std::vector<Buffer> all, Buffer mine, size_t rank) {
  if (!IsRegular(all)) return AllToAllOf(std::vector<Buffer>(all.size(), mine), all, rank);
  return [mine, to = all[0].data](ncclComm_t comm, cudaStream_t stream) {
    return ncclAllGather(mine.data, to, static_cast<size_t>(mine.bytes), ncclUint8, comm, stream);
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

// Launches on lanes, before the first step.
using Trials = std::vector<std::pair<std::shared_ptr<NcclEnd>, NcclLaunch>>;

// Makes NCCL's communicators of all lanes at once; waits for the other members.
absl::Status MakeCommunicators(const std::vector<std::shared_ptr<NcclEnd>>& ends) {
  const auto make = [](NcclEnd& end) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 1;
    config.minCTAs = 1;
    config.maxCTAs = end.ends == kAll ? kCollectiveThreadBlocks : kMessageThreadBlocks;
    return ncclCommInitRankConfig(&end.comm, end.size, end.id, end.index, &config);
  };
  const ncclResult_t made = Together([&](const auto& add) {
    for (const auto& end : ends) add(make(*end));
  });
  return NcclStatus("ncclCommInitRankConfig", made, /*connecting=*/true);
}

// The first message between two ranks connects them: it takes memory of the device and waits for
// it, so one trial has ended before the next one begins.
absl::Status RunTrials(const Trials& trials, const std::atomic<bool>& given_up) {
  for (const auto& [end, launch] : trials) {
    RETURN_IF_ERROR(end->Check(launch(end->comm, end->stream)));
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

// Adds every collective of `connections`, in the extreme sizes, which NCCL connects apart.
void AddTrialsOfAll(const Communicator::Connections& connections,
                    const std::shared_ptr<NcclEnd>& end, Trials& trials) {
  const int size = end->size, rank = end->index;
  const auto add = [&](NcclLaunch launch) { trials.push_back({end, std::move(launch)}); };
  const auto parts = [&](int64_t bytes) {
    std::vector<Buffer> all;
    for (int r = 0; r < size; ++r) all.push_back(connections.scratch.Part(r * bytes, bytes));
    return all;
  };
  const int64_t most = connections.scratch.bytes / size / kTrialBytes * kTrialBytes;
  if (connections.all_to_all || connections.all_gather) {
    add(AllToAllOf(parts(kTrialBytes / 2), parts(kTrialBytes / 2), static_cast<size_t>(rank)));
  }
  for (const int64_t bytes : {kTrialBytes, most}) {
    if (connections.reduce_scatter) {
      add(ReduceScatterOf(connections.scratch.Part(0, bytes * size), rank, size));
    }
    if (connections.all_gather) {
      add(AllGatherOf(parts(bytes), connections.scratch.Part(rank * bytes, bytes),
                      static_cast<size_t>(rank)));
    }
  }
}

// The lanes of one rank in one group.
class Lanes {
 public:
  Lanes(std::unique_ptr<Communicator> control, int device)
      : control_(std::move(control)), device_(device) {}
  ~Lanes() {
    if (!error_.ok()) GiveUp(error_);
  }

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
    RETURN_IF_ERROR(CudaStatus("cudaSetDevice", cudaSetDevice(device_)));
    error_ = ConnectLanes(connections, AddLanes(connections), absl::Now() + limit);
    if (absl::IsDeadlineExceeded(error_)) {  // a thread may be inside of NCCL: it is left behind
      for (const auto& [ends, lane] : lanes_) lane->Take();
    }
    RETURN_IF_ERROR(error_);
    connected_.all_to_all |= connections.all_to_all;
    connected_.all_gather |= connections.all_gather;
    connected_.reduce_scatter |= connections.reduce_scatter;
    return absl::OkStatus();
  }

  // Launches the operation on a lane; an error is told where it is waited for.
  void Start(NcclLane& lane, NcclTransfer& operation, void* inputs, const NcclLaunch& launch) {
    cudaSetDevice(device_);
    if (!error_.ok()) return operation.Fail(error_);
    Fail(lane, lane.Launch(operation, inputs, launch));
  }

  // Sees what has ended.
  void Advance() {
    cudaSetDevice(device_);
    for (const auto& [ends, lane] : lanes_) {
      if (error_.ok()) Fail(*lane, lane->Advance());
    }
  }

  // Ends the GPU's work on all lanes, so that memory may be freed; operations fail with `why`. The
  // communicators are aborted at once: each frees memory, which waits for the others' work.
  void GiveUp(const absl::Status& why) {
    error_.Update(why);
    std::vector<ncclComm_t> comms;
    for (const auto& [ends, lane] : lanes_) {
      lane->Fail(error_);
      if (ncclComm_t comm = lane->Take()) comms.push_back(comm);
    }
    if (comms.empty()) return;
    CallWithin(kEndLimit, device_, [comms] {
      const auto abort_all = [&](const auto& add) {
        for (ncclComm_t comm : comms) add(ncclCommAbort(comm));
      };
      return NcclStatus("ncclCommAbort", Together(abort_all));
    }).IgnoreError();
  }

  int device() const { return device_; }

 private:
  // The order in which lanes are tried, the same for all ranks, so that none waits for ever. Along
  // a pipeline most lanes of a kind (from even or odd ranks, up or down) are tried at once.
  struct ByTurn {
    bool operator()(const Ends& a, const Ends& b) const { return Key(a) < Key(b); }
    static std::tuple<bool, int, bool, Ends> Key(const Ends& ends) {
      return {ends == kAll, ends.first % 2, ends.second < ends.first, ends};
    }
  };

  // An error of one lane ends all: whatever waits for the same peer may never see it. Only what is
  // under way on the two lanes of that peer says that it is lost.
  void Fail(NcclLane& lane, const absl::Status& status) {
    if (status.ok()) return;
    const auto [from, to] = lane.end()->ends;
    lane.Fail(status);
    if (NcclLane* const back = Find({to, from})) back->Fail(status);
    error_.Update(absl::IsUnavailable(status)
                      ? absl::CancelledError(absl::StrCat("given up: ", status.message()))
                      : status);
    for (const auto& [ends, other] : lanes_) other->Fail(error_);
  }

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
      const bool all = ends == kAll;
      lane = std::make_unique<NcclLane>(
          NcclEnd{.ends = ends,
                  .device = device_,
                  .index = all ? rank : static_cast<int>(rank == ends.second),
                  .size = all ? control_->size() : 2});
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
    const absl::Status tried = CallWithin(
        deadline - absl::Now(), device_,
        [trials = TrialsOf(connections, added), given_up] { return RunTrials(trials, *given_up); });
    *given_up = true;
    RETURN_IF_ERROR(tried);
    for (const Ends& lane : added) lanes_[lane]->end()->connected = true;
    return control_->Barrier(deadline - absl::Now());
  }

  absl::Status ExchangeIds(const std::vector<Ends>& added, absl::Time deadline) {
    for (const Ends& ends : added) {
      RETURN_IF_ERROR(lanes_[ends]->StartExchange(*control_, id_transfers_));
    }
    for (const auto& transfer : id_transfers_) {
      RETURN_IF_ERROR(transfer->Wait(deadline - absl::Now()));
    }
    id_transfers_.clear();
    return control_->Barrier(deadline - absl::Now());
  }

  Trials TrialsOf(const Communicator::Connections& connections, const std::vector<Ends>& added) {
    Trials trials;
    for (const Ends& ends : added) {
      if (ends == kAll) continue;
      const bool sends = ends.first == control_->rank();
      const Buffer message = connections.scratch.Part(sends ? 0 : kTrialBytes, kTrialBytes);
      trials.push_back({lanes_[ends]->end(), MessagesOf(sends, {message})});
    }
    if (const NcclLane* const all = Find(kAll)) AddTrialsOfAll(connections, all->end(), trials);
    return trials;
  }

  const std::unique_ptr<Communicator> control_;
  const int device_;
  std::map<Ends, std::unique_ptr<NcclLane>, ByTurn> lanes_;
  // Kept when one fails: dropped before the job ends, it would end it with another code.
  std::vector<std::unique_ptr<Transfer>> id_transfers_;
  absl::Status error_;                   // the group is given up
  Communicator::Connections connected_;  // the collectives that have been connected
};

NcclTransfer::~NcclTransfer() {
  if (!Done() || !result.ok()) {
    lanes_->GiveUp(absl::AbortedError(absl::StrCat("this rank gave up ", text)));
  }
  if (inputs_ready != nullptr) cudaEventDestroy(inputs_ready);
  if (ended != nullptr) cudaEventDestroy(ended);
}

bool NcclTransfer::Done() {
  lanes_->Advance();
  return finished;
}

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
                 MessagesOf(sends, {buffers.begin(), buffers.end()}));
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
                 AllGatherOf({all.begin(), all.end()}, mine, static_cast<size_t>(rank())));
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
      const int gpu = OnDevice(buffer) ? buffer.device.index : -1, own = lanes_->device();
      if (buffer.bytes == 0 || gpu == own) continue;
      return InvalidArgument(call, ": memory of GPU ", gpu, ", but this rank's is ", own);
    }
    if (lane == nullptr) {
      return FailedPrecondition(call, ", ", bytes,
                                " B of a GPU: these ranks were not connected for it");
    }
    auto started = std::make_unique<NcclTransfer>(lanes_, absl::StrCat(call, ", ", bytes, " B"));
    lanes_->Start(*lane, *started, buffers[0].device.stream, launch);
    return started;
  }

  const std::unique_ptr<Communicator> owned_host_;  // of a group that Split made
  Communicator& host_;
  const std::shared_ptr<Lanes> lanes_;
};

// A library that is older than the header does not know what communicators are made with.
static_assert(NCCL_VERSION_CODE >= 22809, "before NCCL 2.28.9 large jobs may hang");
absl::Status CheckDeviceAndVersion(int device) {
  const cudaError_t set = cudaSetDevice(device);
  if (set != cudaSuccess) return PreflightError("no GPU ", device, ": ", cudaGetErrorString(set));
  int loaded = 0;
  ncclGetVersion(&loaded);
  if (loaded >= NCCL_VERSION_CODE) return absl::OkStatus();
  return PreflightError("NCCL ", NcclVersion(), " is loaded, this build needs ", NCCL_MAJOR, ".",
                        NCCL_MINOR, ".", NCCL_PATCH, " or newer (LD_LIBRARY_PATH)");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> MakeNcclCommunicator(Communicator& bootstrap,
                                                                   int device) {
  RETURN_IF_ERROR(AgreeOnStatus(bootstrap, CheckDeviceAndVersion(device)));
  ASSIGN_OR_RETURN(auto control, bootstrap.Split(0, bootstrap.rank()));
  return std::make_unique<NcclCommunicator>(bootstrap, nullptr, std::move(control), device);
}

std::string NcclVersion() {
  int loaded = 0;
  ncclGetVersion(&loaded);
  return absl::StrCat(loaded / 10000, ".", loaded / 100 % 100, ".", loaded % 100);
}

}  // namespace deepnet

// NCCL's calls among threads and processes of one host.
//
// Every operation becomes one piece of work on its stream, which spins until its messages are
// through. Messages of a communicator match in order for each ordered pair of ranks; a sender is
// done when the receiver has taken everything. What the two ends say of count, type and call must
// be equal, or the process ends with both sides' words. As with NCCL, the first message between two
// ranks connects them, which needs both; meanwhile a non-blocking communicator is in progress.
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "tests/gpu/emulated/element.h"
#include "tests/gpu/emulated/machine.h"
#include "tests/gpu/emulated/shared_group.h"

namespace emulated_gpu {
namespace {

// One end of a message: the descriptor and then the bytes go through the ring.
struct Part {
  Descriptor descriptor;
  bool send = false;
  int peer = 0;
  char* data = nullptr;
  uint64_t moved = 0;  // of sizeof(Descriptor) + descriptor.bytes
  Descriptor other;    // received
  bool done = false;
};

// Messages that are launched at once on one stream.
struct Operation {
  std::string name;
  std::vector<Part> parts;
  std::function<void()> begin;   // before the messages
  std::function<void()> finish;  // after them
  Work work;                     // its blocks
};

// The last warning of the process, as ncclGetLastError tells it to any thread.
std::string LastText(const std::string* next = nullptr) {
  static std::mutex mutex;
  static std::string text;
  const std::lock_guard lock(mutex);
  if (next != nullptr) text = *next;
  return text;
}

ncclResult_t Refuse(ncclResult_t result, const std::string& why) {
  LastText(&why);
  std::fprintf(stderr, "emulated GPU: NCCL: %s\n", why.c_str());
  return result;
}

// The error that a test has asked for, else success.
ncclResult_t Injected(const char* call) {
  const int error = TheMachine().Injected(call);
  if (error == 0) return ncclSuccess;
  return Refuse(static_cast<ncclResult_t>(error), std::string("a test makes ") + call + " fail");
}

int FromEnvironment(const char* name, int otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr || *text == '\0' ? otherwise : std::atoi(text);
}

// The channels of a communicator: minimums of the environment go above all.
int ChannelsOf(const ncclConfig_t* config) {
  constexpr int kAll = 32;
  const bool limited = config != nullptr && config->maxCTAs != NCCL_CONFIG_UNDEF_INT;
  const int most = FromEnvironment("NCCL_MAX_CTAS", limited ? config->maxCTAs : kAll);
  return std::max({most, FromEnvironment("NCCL_MIN_NCHANNELS", 1),
                   FromEnvironment("NCCL_MIN_P2P_NCHANNELS", 1)});
}

size_t SizeOf(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
      return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
      return 8;
    default:
      return 0;
  }
}

// The state of a communicator; work on streams keeps it alive after the handle is gone.
struct CommState {
  CommState(std::unique_ptr<SharedGroup> given, int rank, int device, bool blocking, int channels)
      : group(std::move(given)),
        rank(rank),
        device(device),
        blocking(blocking),
        channels(channels) {}

  ~CommState() { group->SetOwnState(aborted ? SharedGroup::State::kAborted : State::kLeft); }

  // Takes so much memory for each channel.
  ncclResult_t TakeMemory(size_t mib) {
    Machine& machine = TheMachine();
    if (!machine.settings.nccl_memory) return ncclSuccess;
    const size_t bytes = (mib << 20) * static_cast<size_t>(channels);
    const Machine::Lock lock(machine.mutex);
    if (!machine.memory.Take(device, bytes)) {
      return Refuse(ncclUnhandledCudaError,
                    "Failed to CUDA calloc " + std::to_string(bytes) + " bytes");
    }
    memory += bytes;
    return ncclSuccess;
  }
  void GiveMemoryBack() {
    Machine& machine = TheMachine();
    const Machine::Lock lock(machine.mutex);
    machine.memory.GiveBack(device, std::exchange(memory, 0));
  }
  using State = SharedGroup::State;

  std::string Who() const {
    return "rank " + std::to_string(rank) + " of " + std::to_string(group->size());
  }

  const std::unique_ptr<SharedGroup> group;
  const int rank;
  const int device;
  const bool blocking;
  const int channels;
  size_t memory = 0;                           // of the device
  std::set<std::pair<int, bool>> with_memory;  // peers and directions; -1: collectives
  ncclUniqueId id = {};
  std::atomic<bool> aborted = false;
  std::atomic<bool> left = false;
  std::atomic<bool> launching = false;  // the last operation waits for peers to connect
  std::atomic<int> polls_left = 0;
  bool ready = false;
  ncclResult_t error = ncclSuccess;  // stays
  std::chrono::steady_clock::time_point looked_for_dead;
  uint64_t issued = 0;  // operations; under the machine's lock, as what follows
  uint64_t ended = 0;
};

}  // namespace
}  // namespace emulated_gpu

struct ncclComm {
  explicit ncclComm(std::shared_ptr<emulated_gpu::CommState> given) : state(std::move(given)) {
    ++open;
  }
  ~ncclComm() { --open; }

  std::shared_ptr<emulated_gpu::CommState> state;
  static inline std::atomic<int> open = 0;
};

namespace emulated_gpu {

int OpenCommunicators() { return ncclComm::open; }

namespace {

[[noreturn]] void Mismatch(const CommState& comm, const Part& part) {
  const auto side = [](const Descriptor& d, int rank, const char* verb) {
    const bool message = std::strcmp(d.call, "ncclSend") == 0;
    return "rank " + std::to_string(rank) + (message ? " " : " is in ") +
           (message ? verb : d.call + std::string(" with")) + " " + d.Text();
  };
  Fail("NCCL: " + side(part.other, part.peer, "sends") + ", but " +
       side(part.descriptor, comm.rank, "expects") + " from it, in a communicator of " +
       std::to_string(comm.group->size()) + " ranks");
}

// Moves what can be moved; returns true if anything was.
bool Step(CommState& comm, Part& part) {
  SharedGroup& group = *comm.group;
  constexpr uint64_t kHead = sizeof(Descriptor);
  const uint64_t before = part.moved;
  const bool was_done = part.done;
  char* const head = reinterpret_cast<char*>(part.send ? &part.descriptor : &part.other);
  if (part.moved < kHead) {
    part.moved += part.send ? group.Write(part.peer, head + part.moved, kHead - part.moved)
                            : group.Read(part.peer, head + part.moved, kHead - part.moved);
    if (!part.send && part.moved == kHead && part.other != part.descriptor) Mismatch(comm, part);
  }
  if (part.moved >= kHead) {
    const uint64_t at = part.moved - kHead, left = part.descriptor.bytes - at;
    if (left > 0) {
      part.moved += part.send ? group.Write(part.peer, part.data + at, left)
                              : group.Read(part.peer, part.data + at, left);
    }
    const bool through = part.moved == kHead + part.descriptor.bytes;
    part.done = through && (!part.send || group.AllRead(part.peer));
  }
  return part.moved != before || part.done != was_done;
}

std::string Waits(const CommState& comm, const std::vector<Part>& parts) {
  std::string text;
  for (const Part& part : parts) {
    if (part.done) continue;
    if (!text.empty()) text += ", ";
    text += std::string("rank ") + std::to_string(part.peer) + " to " +
            (part.send ? "receive " : "send ") + part.descriptor.Text();
  }
  return text + " (" + comm.Who() + ")";
}

// The first part that is not done of each peer and direction.
bool StepAll(CommState& comm, std::vector<Part>& parts) {
  bool moved = false;
  std::map<std::pair<int, bool>, bool> busy;
  for (Part& part : parts) {
    if (part.done) continue;
    bool& taken = busy[{part.peer, part.send}];
    if (taken) continue;
    moved |= Step(comm, part);
    taken = !part.done;
  }
  return moved;
}

// The body of an operation, on its stream's thread.
void RunOperation(CommState& comm, Operation& operation) {
  if (comm.aborted) return;
  if (operation.begin != nullptr) operation.begin();
  const auto all_done = [&] {
    return std::all_of(operation.parts.begin(), operation.parts.end(),
                       [](const Part& part) { return part.done; });
  };
  while (!all_done()) {
    if (comm.aborted) return;
    const uint32_t seen = comm.group->Moves();
    if (StepAll(comm, operation.parts)) {
      comm.group->Moved();
    } else {
      if (!Spin(Waits(comm, operation.parts))) return;
      comm.group->WaitForMove(seen);
    }
  }
  if (operation.finish != nullptr) operation.finish();
}

bool Connected(const CommState& comm, const Operation& operation) {
  return std::all_of(operation.parts.begin(), operation.parts.end(), [&](const Part& part) {
    if (std::strcmp(part.descriptor.call, "ncclSend") != 0) return true;  // since the start
    return part.send ? comm.group->Connected(comm.rank, part.peer)
                     : comm.group->Connected(part.peer, comm.rank);
  });
}

void PushOperation(const std::shared_ptr<CommState>& comm, cudaStream_t stream,
                   const std::shared_ptr<Operation>& operation) {
  Machine& machine = TheMachine();
  Machine::Lock lock(machine.mutex);
  CUstream_st* const on = machine.Find(stream);
  if (on == nullptr) Fail("NCCL: the stream of an operation is gone");
  // NCCL loads its kernels when it is initialised.
  machine.devices[on->device].loaded.insert(operation->name);
  const uint64_t turn = comm->issued++;
  Work work = std::move(operation->work);
  work.multiprocessors = comm->channels;
  work.name = operation->name;
  work.ready = [comm, turn] { return comm->ended == turn; };
  work.awaits = "an earlier operation of its communicator";
  work.run = [comm, operation] { RunOperation(*comm, *operation); };
  work.ended = [comm] { ++comm->ended; };
  machine.Push(lock, *on, Kind::kLaunch, std::move(work));
}

bool PeerIsGone(CommState& comm);

// Waits on a host thread until `done`; false if the communicator or a peer is gone first.
bool WaitForPeers(CommState& comm, const std::function<bool()>& done) {
  const HostWait wait("NCCL for peers of " + comm.Who() + " to connect");
  for (;;) {
    const uint32_t seen = comm.group->Moves();
    if (done()) return true;
    if (comm.aborted || comm.left || TheMachine().stopping || PeerIsGone(comm)) return false;
    comm.group->WaitForMove(seen);
  }
}

ncclResult_t Launch(const std::shared_ptr<CommState>& comm, cudaStream_t stream,
                    const std::shared_ptr<Operation>& operation) {
  for (const Part& part : operation->parts) {
    const bool message = std::strcmp(part.descriptor.call, "ncclSend") == 0;
    const std::pair<int, bool> with(message ? part.peer : -1, message && part.send);
    if (comm->with_memory.insert(with).second) {
      const ncclResult_t taken = comm->TakeMemory(!message ? 12 : part.send ? 2 : 10);
      if (taken != ncclSuccess) return taken;
    }
    if (!message) continue;
    comm->group->Announce(part.send ? comm->rank : part.peer, part.send ? part.peer : comm->rank,
                          part.send);
  }
  if (Connected(*comm, *operation)) {
    PushOperation(comm, stream, operation);
    return ncclSuccess;
  }
  const auto connected = [comm, operation] { return Connected(*comm, *operation); };
  if (comm->blocking) {
    if (!WaitForPeers(*comm, connected)) return ncclRemoteError;
    PushOperation(comm, stream, operation);
    return ncclSuccess;
  }
  comm->polls_left = TheMachine().settings.polls_in_progress;
  comm->launching = true;
  {
    const Machine::Lock lock(TheMachine().mutex);
    ++TheMachine().num_threads;
  }
  std::thread([comm, stream, operation, connected] {
    if (WaitForPeers(*comm, connected)) PushOperation(comm, stream, operation);
    comm->launching = false;
    const Machine::Lock lock(TheMachine().mutex);
    --TheMachine().num_threads;
    TheMachine().host_moved.notify_all();
  }).detach();
  return ncclInProgress;
}

// ---- Groups

struct GroupCall {
  std::shared_ptr<CommState> comm;
  cudaStream_t stream;
  Operation operation;
};

struct GroupCalls {
  int depth = 0;
  std::vector<GroupCall> calls;
  std::vector<std::shared_ptr<CommState>> joining;  // made in the group, blocking
  std::vector<std::shared_ptr<CommState>> aborted;
};
GroupCalls& ThisGroup() {
  thread_local GroupCalls calls;
  return calls;
}

void Append(Operation& to, Operation& from) {
  to.name = "ncclGroup";
  to.parts.insert(to.parts.end(), from.parts.begin(), from.parts.end());
  for (BlockPointer& block : from.work.blocks) to.work.blocks.push_back(std::move(block));
  for (auto member : {&Operation::begin, &Operation::finish}) {
    if (from.*member == nullptr) continue;
    to.*member = [first = std::move(to.*member), second = std::move(from.*member)] {
      if (first != nullptr) first();
      second();
    };
  }
}

ncclResult_t Submit(ncclComm_t comm, cudaStream_t stream, Operation operation) {
  if (ThisGroup().depth > 0) {
    ThisGroup().calls.push_back({comm->state, stream, std::move(operation)});
    return ncclSuccess;
  }
  return Launch(comm->state, stream, std::make_shared<Operation>(std::move(operation)));
}

ncclResult_t Connecting(CommState& comm);

// An abort frees memory behind its flag, which waits for all work of the device.
void FreeAborted(CommState& comm) {
  Machine& machine = TheMachine();
  {
    Machine::Lock lock(machine.mutex);
    machine.WaitUntilIdle(lock, comm.device, "ncclCommAbort of " + comm.Who());
  }
  comm.GiveMemoryBack();
}

ncclResult_t EndGroup() {
  GroupCalls group = std::exchange(ThisGroup(), {});
  for (const auto& comm : group.aborted) FreeAborted(*comm);
  std::vector<std::pair<GroupCall, std::shared_ptr<Operation>>> merged;
  for (GroupCall& call : group.calls) {
    const auto same = std::find_if(merged.begin(), merged.end(), [&](const auto& other) {
      return other.first.comm == call.comm;
    });
    if (same == merged.end()) {
      auto operation = std::make_shared<Operation>(std::move(call.operation));
      merged.emplace_back(GroupCall{call.comm, call.stream, {}}, std::move(operation));
    } else if (same->first.stream != call.stream) {
      return Refuse(ncclInvalidUsage, "one group uses a communicator on two streams");
    } else {
      Append(*same->second, call.operation);
    }
  }
  for (const auto& comm : group.joining) {
    if (!WaitForPeers(*comm, [&] { return comm->group->AllJoined(); })) return ncclInternalError;
    if (const ncclResult_t joined = Connecting(*comm); joined != ncclSuccess) return joined;
  }
  ncclResult_t result = ncclSuccess;
  for (auto& [call, operation] : merged) {
    const ncclResult_t launched = Launch(call.comm, call.stream, operation);
    if (result == ncclSuccess || result == ncclInProgress) {
      result = launched == ncclSuccess ? result : launched;
    }
  }
  return result;
}

// ---- States

bool SharedGpu(const CommState& comm, std::string& why) {
  const char* const allowed = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  if (allowed != nullptr && std::string(allowed) == "1") return false;
  for (int rank = 0; rank < comm.group->size(); ++rank) {
    if (rank == comm.rank || comm.group->DeviceOf(rank) != comm.group->DeviceOf(comm.rank)) {
      continue;
    }
    why = "Duplicate GPU detected: rank " + std::to_string(comm.rank) + " and rank " +
          std::to_string(rank) + " both on CUDA device " +
          std::to_string(comm.group->DeviceOf(rank));
    return true;
  }
  return false;
}

// Sets `ready` once everybody is there.
ncclResult_t Connecting(CommState& comm) {
  if (comm.ready) return ncclSuccess;
  if (!comm.group->AllJoined() || comm.polls_left-- > 0) return ncclInProgress;
  SharedGroup::CloseId(comm.id);
  std::string why;
  if (SharedGpu(comm, why)) return Refuse(ncclInvalidUsage, why);
  comm.ready = true;
  return ncclSuccess;
}

// The peers that are gone are looked for every few milliseconds only.
bool PeerIsGone(CommState& comm) {
  const auto now = std::chrono::steady_clock::now();
  if (now - comm.looked_for_dead < std::chrono::milliseconds(20)) return false;
  comm.looked_for_dead = now;
  for (int rank = 0; rank < comm.group->size(); ++rank) {
    if (rank == comm.rank) continue;
    if (comm.group->StateOf(rank) == SharedGroup::State::kAborted || comm.group->IsDead(rank)) {
      const std::string text = "rank " + std::to_string(rank) + " is gone";
      LastText(&text);
      return true;
    }
  }
  return false;
}

ncclResult_t StateNow(CommState& comm) {
  if (comm.error != ncclSuccess) return comm.error;
  const ncclResult_t injected = Injected("ncclCommGetAsyncError");
  if (injected != ncclSuccess) return comm.error = injected;
  if (PeerIsGone(comm)) return comm.error = ncclRemoteError;
  const ncclResult_t connecting = Connecting(comm);
  if (connecting != ncclSuccess) {
    if (connecting != ncclInProgress) comm.error = connecting;
    return connecting;
  }
  if (comm.launching || comm.polls_left > 0) {
    --comm.polls_left;
    return ncclInProgress;
  }
  return ncclSuccess;
}

// Checks what every operation needs of its communicator.
ncclResult_t CheckReady(const char* call, ncclComm_t comm) {
  const ncclResult_t injected = Injected(call);
  if (injected != ncclSuccess) return injected;
  if (comm == nullptr) return Refuse(ncclInvalidArgument, std::string(call) + ": no communicator");
  CommState& state = *comm->state;
  if (state.error != ncclSuccess) return state.error;
  if (state.ready && !state.launching) return ncclSuccess;
  if (state.blocking) return ncclSuccess;
  return Refuse(ncclInvalidArgument,
                std::string(call) + " on a communicator that is still in progress (" + state.Who() +
                    (state.ready ? ": its last operation)" : ": not connected)"));
}

Descriptor Describe(const char* call, size_t count, ncclDataType_t type, uint64_t bytes) {
  Descriptor descriptor;
  std::snprintf(descriptor.call, sizeof(descriptor.call), "%s", call);
  descriptor.type = type;
  descriptor.count = count;
  descriptor.bytes = bytes;
  return descriptor;
}

// The host's views of an operation's memory. False: it was refused.
struct Memories {
  Memories(const char* call, Operation& operation) : call(call), operation(operation) {}

  char* Take(const void* pointer, size_t bytes) {
    if (bytes == 0) return nullptr;
    std::string why;
    const Machine::Lock lock(TheMachine().mutex);
    char* const view = TheMachine().Resolve(pointer, bytes, operation.work, why);
    if (view == nullptr) result = Refuse(ncclInvalidArgument, call + (" on " + why));
    return view;
  }

  const std::string call;
  Operation& operation;
  ncclResult_t result = ncclSuccess;
};

ncclResult_t Message(const char* call, bool send, const void* data, size_t count,
                     ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  const ncclResult_t ready = CheckReady(call, comm);
  if (ready != ncclSuccess) return ready;
  if (SizeOf(type) == 0) return Refuse(ncclInvalidArgument, std::string(call) + ": type");
  if (peer < 0 || peer >= comm->state->group->size()) {
    return Refuse(ncclInvalidArgument, std::string(call) + ": no rank " + std::to_string(peer));
  }
  Operation operation;
  operation.name = call;
  Memories memories(call, operation);
  Part part;
  part.descriptor = Describe("ncclSend", count, type, count * SizeOf(type));
  part.send = send;
  part.peer = peer;
  part.data = memories.Take(data, part.descriptor.bytes);
  if (memories.result != ncclSuccess) return memories.result;
  operation.parts.push_back(part);
  return Submit(comm, stream, std::move(operation));
}

// ---- Collectives

// The arguments of a collective. Sums go round the ring, as NCCL's do: chunk c begins with rank
// c + 1 and ends with rank c, and is rounded to the type after each addition.
struct Collective {
  const char* call;
  const void* send;
  size_t send_count;
  void* receive;
  size_t receive_count;
  ncclDataType_t type;
  int operation = -1;
  int root = -1;
  ncclComm_t comm;
  cudaStream_t stream;
};

Part PartOf(const Collective& given, bool send, int peer, char* data, uint64_t bytes) {
  Part part;
  part.descriptor = Describe(given.call, given.send_count, given.type, bytes);
  part.descriptor.operation = given.operation;
  part.descriptor.root = given.root;
  part.send = send;
  part.peer = peer;
  part.data = data;
  return part;
}

bool CanReduce(ncclDataType_t type, int operation) {
  return IsElement(type) && (operation == ncclSum || operation == ncclMax || operation == ncclMin ||
                             operation == ncclAvg);
}

// out[i] = the sum, maximum or minimum over ranks of parts[rank][i], rank first + 1 first.
void Reduce(ncclDataType_t type, int operation, const std::vector<const char*>& parts, int first,
            char* out, size_t count) {
  const int ranks = static_cast<int>(parts.size());
  for (size_t i = 0; i < count; ++i) {
    double value = ReadElement(type, parts[(first + 1) % ranks], i);
    for (int step = 2; step <= ranks; ++step) {
      const double next = ReadElement(type, parts[(first + step) % ranks], i);
      value = operation == ncclMax   ? std::max(value, next)
              : operation == ncclMin ? std::min(value, next)
                                     : RoundElement(type, value + next);
    }
    WriteElement(type, out, i, operation == ncclAvg ? value / ranks : value);
  }
}

// `send_to(peer)` and `receive_from(peer)`: view and bytes of what goes between this rank and it.
template <typename SendTo, typename ReceiveFrom>
void AddParts(const Collective& given, Operation& operation, const SendTo& send_to,
              const ReceiveFrom& receive_from) {
  const CommState& comm = *given.comm->state;
  for (int step = 1; step < comm.group->size(); ++step) {
    const int peer = (comm.rank + step) % comm.group->size();
    const auto [out, out_bytes] = send_to(peer);
    const auto [in, in_bytes] = receive_from(peer);
    if (out != nullptr) operation.parts.push_back(PartOf(given, true, peer, out, out_bytes));
    if (in != nullptr) operation.parts.push_back(PartOf(given, false, peer, in, in_bytes));
  }
}

using View = std::pair<char*, uint64_t>;

// The views of a collective's memory, and its operation, to be filled.
struct Started {
  Operation operation;
  char* send = nullptr;
  char* receive = nullptr;
  ncclResult_t result = ncclSuccess;
};

Started Start(const Collective& given) {
  Started started;
  started.operation.name = given.call;
  started.result = CheckReady(given.call, given.comm);
  if (started.result != ncclSuccess) return started;
  Memories memories(given.call, started.operation);
  const size_t size = SizeOf(given.type);
  if (given.send != nullptr) started.send = memories.Take(given.send, given.send_count * size);
  if (given.receive != nullptr) {
    started.receive = memories.Take(given.receive, given.receive_count * size);
  }
  started.result = memories.result;
  if (given.operation >= 0 && !CanReduce(given.type, given.operation)) {
    started.result = Refuse(ncclInvalidArgument, std::string(given.call) + ": type or operation");
  }
  return started;
}

// Contributions of all ranks to a reduction; freed with the operation.
struct Contributions {
  std::vector<std::vector<char>> bytes;
  std::vector<const char*> Pointers() const {
    std::vector<const char*> pointers;
    for (const auto& part : bytes) pointers.push_back(part.data());
    return pointers;
  }
};

ncclResult_t AllReduceOf(const Collective& given) {
  Started started = Start(given);
  if (started.result != ncclSuccess) return started.result;
  const CommState& comm = *given.comm->state;
  const uint64_t bytes = given.send_count * SizeOf(given.type);
  auto all = std::make_shared<Contributions>();
  all->bytes.assign(comm.group->size(), std::vector<char>(bytes));
  char* const own = all->bytes[comm.rank].data();
  started.operation.begin = [=, from = started.send] { std::memcpy(own, from, bytes); };
  AddParts(
      given, started.operation, [&](int) { return View(own, bytes); },
      [&](int peer) { return View(all->bytes[peer].data(), bytes); });
  started.operation.finish = [=, to = started.receive, ranks = comm.group->size()] {
    const size_t chunk = (given.send_count + ranks - 1) / ranks;
    for (int c = 0; c < ranks; ++c) {
      const size_t begin = std::min(given.send_count, c * chunk);
      const size_t end = std::min(given.send_count, begin + chunk);
      auto parts = all->Pointers();
      for (const char*& part : parts) part += begin * SizeOf(given.type);
      Reduce(given.type, given.operation, parts, c, to + begin * SizeOf(given.type), end - begin);
    }
  };
  return Submit(given.comm, given.stream, std::move(started.operation));
}

ncclResult_t ReduceScatterOf(const Collective& given) {
  Started started = Start(given);
  if (started.result != ncclSuccess) return started.result;
  const CommState& comm = *given.comm->state;
  const uint64_t bytes = given.receive_count * SizeOf(given.type);
  auto all = std::make_shared<Contributions>();
  all->bytes.assign(comm.group->size(), std::vector<char>(bytes));
  const int rank = comm.rank;
  started.operation.begin = [=, from = started.send] {
    std::memcpy(all->bytes[rank].data(), from + rank * bytes, bytes);
  };
  AddParts(
      given, started.operation, [&](int peer) { return View(started.send + peer * bytes, bytes); },
      [&](int peer) { return View(all->bytes[peer].data(), bytes); });
  started.operation.finish = [=, to = started.receive] {
    Reduce(given.type, given.operation, all->Pointers(), rank, to, given.receive_count);
  };
  return Submit(given.comm, given.stream, std::move(started.operation));
}

ncclResult_t AllGatherOf(const Collective& given) {
  Started started = Start(given);
  if (started.result != ncclSuccess) return started.result;
  const uint64_t bytes = given.send_count * SizeOf(given.type);
  const int rank = given.comm->state->rank;
  started.operation.begin = [=, from = started.send, to = started.receive] {
    if (bytes > 0) std::memmove(to + rank * bytes, from, bytes);
  };
  AddParts(
      given, started.operation, [&](int) { return View(started.send, bytes); },
      [&](int peer) { return View(started.receive + peer * bytes, bytes); });
  return Submit(given.comm, given.stream, std::move(started.operation));
}

ncclResult_t BroadcastOf(const Collective& given) {
  Started started = Start(given);
  if (started.result != ncclSuccess) return started.result;
  const CommState& comm = *given.comm->state;
  const uint64_t bytes = given.receive_count * SizeOf(given.type);
  if (given.root < 0 || given.root >= comm.group->size()) {
    return Refuse(ncclInvalidArgument, "ncclBroadcast: no rank " + std::to_string(given.root));
  }
  const bool is_root = comm.rank == given.root;
  if (is_root) {
    started.operation.begin = [=, from = started.send, to = started.receive] {
      if (bytes > 0) std::memmove(to, from, bytes);
    };
  }
  AddParts(
      given, started.operation,
      [&](int) { return is_root ? View(started.send, bytes) : View(nullptr, 0); },
      [&](int peer) {
        return peer == given.root ? View(started.receive, bytes) : View(nullptr, 0);
      });
  return Submit(given.comm, given.stream, std::move(started.operation));
}

ncclResult_t Initialise(ncclComm_t* comm, int size, const ncclUniqueId& id, int rank,
                        const ncclConfig_t* config) {
  const bool asked = config == nullptr || config->blocking != 0;
  const bool blocking = FromEnvironment("NCCL_COMM_BLOCKING", asked ? 1 : 0) != 0;
  Machine& machine = TheMachine();
  if (machine.devices.empty()) return ncclUnhandledCudaError;
  std::string why;
  auto group = SharedGroup::Join(id, size, rank, machine.visible[CurrentDevice()], why);
  if (group == nullptr) return Refuse(ncclInvalidArgument, "ncclCommInitRank: " + why);
  auto state = std::make_shared<CommState>(std::move(group), rank, CurrentDevice(), blocking,
                                           ChannelsOf(config));
  if (state->TakeMemory(8) != ncclSuccess) return ncclUnhandledCudaError;
  state->id = id;
  state->polls_left = blocking ? 0 : machine.settings.polls_in_progress;
  *comm = new ncclComm(state);
  if (!blocking) return ncclInProgress;
  if (ThisGroup().depth > 0) {
    ThisGroup().joining.push_back(state);
    return ncclSuccess;
  }
  if (!WaitForPeers(*state, [&] { return state->group->AllJoined(); })) return ncclInternalError;
  return Connecting(*state);
}

// A thread that has not set the device would get a context on another one.
void ExpectDevice(const CommState& comm, const char* call) {
  if (CurrentDevice() == comm.device) return;
  Fail(std::string(call) + " of " + comm.Who() + ", which is on device " +
       std::to_string(comm.device) + ", in a thread on device " + std::to_string(CurrentDevice()));
}

// Waits, as a host thread, until the communicator's operations have ended.
void Flush(CommState& comm) {
  Machine& machine = TheMachine();
  Machine::Lock lock(machine.mutex);
  if (comm.ended == comm.issued) return;
  machine.WaitFor(lock, -1, "ncclCommDestroy of " + comm.Who(),
                  [&] { return comm.ended == comm.issued || comm.aborted; });
}

}  // namespace
}  // namespace emulated_gpu

using emulated_gpu::TheMachine;
using emulated_gpu::ThisGroup;

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  const int set = TheMachine().settings.nccl_version;
  *version = set != 0 ? set : NCCL_VERSION_CODE;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError:
      return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclInternalError:
      return "internal error - please report this issue to the NCCL developers";
    case ncclInvalidArgument:
      return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case ncclInvalidUsage:
      return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
    default:
      return "unknown result code";
  }
}

const char* ncclGetLastError(ncclComm_t) {
  thread_local std::string text;
  text = emulated_gpu::LastText();
  return text.c_str();
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const ncclResult_t injected = emulated_gpu::Injected("ncclGetUniqueId");
  if (injected != ncclSuccess) return injected;
  return emulated_gpu::SharedGroup::MakeId(*id);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  const ncclResult_t injected = emulated_gpu::Injected("ncclCommInitRankConfig");
  if (injected != ncclSuccess) return injected;
  if (config != nullptr && config->magic != 0xcafebeef) return ncclInvalidArgument;
  return emulated_gpu::Initialise(comm, size, id, rank, config);
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int size, ncclUniqueId id, int rank) {
  return emulated_gpu::Initialise(comm, size, id, rank, /*config=*/nullptr);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* result) {
  *result = emulated_gpu::StateNow(*comm->state);
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  emulated_gpu::Flush(*comm->state);
  return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  emulated_gpu::ExpectDevice(*comm->state, "ncclCommDestroy");
  emulated_gpu::Flush(*comm->state);
  comm->state->GiveMemoryBack();
  comm->state->left = true;
  comm->state->group->SetOwnState(emulated_gpu::SharedGroup::State::kLeft);
  delete comm;
  return ncclSuccess;
}

// Work that spins ends; peers are told. In a group the flags are set first, as NCCL does.
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  emulated_gpu::ExpectDevice(*comm->state, "ncclCommAbort");
  comm->state->aborted = true;
  comm->state->group->SetOwnState(emulated_gpu::SharedGroup::State::kAborted);
  {
    const emulated_gpu::Machine::Lock lock(TheMachine().mutex);
    TheMachine().Moved();
  }
  if (ThisGroup().depth > 0) {
    ThisGroup().aborted.push_back(comm->state);
  } else {
    emulated_gpu::FreeAborted(*comm->state);
  }
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  *count = comm->state->group->size();
  return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  *rank = comm->state->rank;
  return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device) {
  *device = comm->state->device;
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  ++ThisGroup().depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (ThisGroup().depth == 0) {
    return emulated_gpu::Refuse(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
  }
  if (--ThisGroup().depth > 0) return ncclSuccess;
  return emulated_gpu::EndGroup();
}

ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  return emulated_gpu::Message("ncclSend", true, data, count, type, peer, comm, stream);
}

ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return emulated_gpu::Message("ncclRecv", false, data, count, type, peer, comm, stream);
}

ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count, ncclDataType_t type,
                           ncclRedOp_t operation, ncclComm_t comm, cudaStream_t stream) {
  return emulated_gpu::AllReduceOf({.call = "ncclAllReduce",
                                    .send = send,
                                    .send_count = count,
                                    .receive = receive,
                                    .receive_count = count,
                                    .type = type,
                                    .operation = operation,
                                    .comm = comm,
                                    .stream = stream});
}

ncclResult_t ncclReduceScatter(const void* send, void* receive, size_t count, ncclDataType_t type,
                               ncclRedOp_t operation, ncclComm_t comm, cudaStream_t stream) {
  const size_t ranks = comm == nullptr ? 1 : comm->state->group->size();
  return emulated_gpu::ReduceScatterOf({.call = "ncclReduceScatter",
                                        .send = send,
                                        .send_count = count * ranks,
                                        .receive = receive,
                                        .receive_count = count,
                                        .type = type,
                                        .operation = operation,
                                        .comm = comm,
                                        .stream = stream});
}

ncclResult_t ncclAllGather(const void* send, void* receive, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  const size_t ranks = comm == nullptr ? 1 : comm->state->group->size();
  return emulated_gpu::AllGatherOf({.call = "ncclAllGather",
                                    .send = send,
                                    .send_count = count,
                                    .receive = receive,
                                    .receive_count = count * ranks,
                                    .type = type,
                                    .comm = comm,
                                    .stream = stream});
}

ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream) {
  const bool is_root = comm != nullptr && comm->state->rank == root;
  return emulated_gpu::BroadcastOf({.call = "ncclBroadcast",
                                    .send = is_root ? send : nullptr,
                                    .send_count = count,
                                    .receive = receive,
                                    .receive_count = count,
                                    .type = type,
                                    .root = root,
                                    .comm = comm,
                                    .stream = stream});
}

ncclResult_t ncclMemAlloc(void** pointer, size_t bytes) {
  return cudaMalloc(pointer, bytes) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclMemFree(void* pointer) {
  return cudaFree(pointer) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

}  // extern "C"

#include "tests/gpu/emulated/machine.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <sstream>

namespace emulated_gpu {
namespace {

using std::chrono::steady_clock;

// The chance that a piece of work is late is one in so many.
constexpr int kLateOneIn = 4;

// Ends of the machine wait so long for work that runs.
constexpr std::chrono::seconds kEndLimit(2);

std::atomic<Machine*>& Slot() {
  static std::atomic<Machine*> machine = nullptr;
  return machine;
}

int64_t FromEnvironment(const char* name, int64_t otherwise) {
  const char* const text = std::getenv(name);
  if (text == nullptr || *text == '\0') return otherwise;
  char* end = nullptr;
  const int64_t value = std::strtoll(text, &end, 10);
  if (*end != '\0') Fail(std::string(name) + "='" + text + "' is no number");
  return value;
}

// As CUDA: ordinals up to the first that is none.
std::vector<int> VisibleDevices(int devices) {
  std::vector<int> visible;
  const char* const list = std::getenv("CUDA_VISIBLE_DEVICES");
  if (list == nullptr) {
    for (int device = 0; device < devices; ++device) visible.push_back(device);
    return visible;
  }
  std::istringstream words(list);
  for (std::string word; std::getline(words, word, ',');) {
    char* end = nullptr;
    const int64_t device = std::strtol(word.c_str(), &end, 10);
    if (end == word.c_str() || device < 0 || device >= devices) break;
    visible.push_back(static_cast<int>(device));
  }
  return visible;
}

// DEEPNET_EMULATED_FAIL.
void ReadFailures(const std::string& list, Machine& machine) {
  std::istringstream entries(list);
  for (std::string entry; std::getline(entries, entry, ',');) {
    std::istringstream fields(entry);
    std::vector<std::string> words;
    for (std::string word; std::getline(fields, word, ':');) words.push_back(word);
    const bool later = !words.empty() && words[0] == "later";
    if (later) words.erase(words.begin());
    if (words.size() != 3) Fail("DEEPNET_EMULATED_FAIL: '" + entry + "' is not call:n:error");
    const int64_t nth = std::atoll(words[1].c_str());
    const int error = std::atoi(words[2].c_str());
    if (later) {
      machine.later_failures[words[0]][nth] = static_cast<cudaError_t>(error);
    } else {
      machine.failures[words[0]][nth] = error;
    }
  }
}

// Counts a call down; returns the error whose turn it is, else 0.
template <typename Error>
Error TakeFailure(std::map<std::string, std::map<int64_t, Error>>& failures,
                  const std::string& name) {
  const auto found = failures.find(name);
  Error error = static_cast<Error>(0);
  if (found == failures.end()) return error;
  std::map<int64_t, Error> left;
  for (const auto& [nth, value] : found->second) {
    if (nth == 1) {
      error = value;
    } else {
      left[nth - 1] = value;
    }
  }
  found->second = std::move(left);
  if (found->second.empty()) failures.erase(found);
  return error;
}

// Calls that a thread may not make while it captures a stream: they wait, allocate, or belong to
// other streams and to events, whose places in a graph are not emulated.
const std::set<std::string>& RefusedInCaptures() {
  static const auto* const calls = new std::set<std::string>({"cudaMalloc",
                                                              "cudaMallocAsync",
                                                              "cudaFree",
                                                              "cudaFreeAsync",
                                                              "cudaMallocHost",
                                                              "cudaHostAlloc",
                                                              "cudaFreeHost",
                                                              "cudaHostRegister",
                                                              "cudaHostUnregister",
                                                              "cudaMemcpy",
                                                              "cudaMemcpy2D",
                                                              "cudaMemset",
                                                              "cudaDeviceSynchronize",
                                                              "cudaStreamSynchronize",
                                                              "cudaStreamQuery",
                                                              "cudaStreamWaitEvent",
                                                              "cudaStreamDestroy",
                                                              "cudaEventRecord",
                                                              "cudaEventQuery",
                                                              "cudaEventSynchronize",
                                                              "cudaLaunchHostFunc",
                                                              "cudaStreamBeginCapture",
                                                              "cudaGraphLaunch"});
  return *calls;
}

// The stream whose thread this is.
CUstream_st*& ThisStream() {
  thread_local CUstream_st* stream = nullptr;
  return stream;
}

// Streams stop before static objects that their work may use are destroyed.
void EndAtExit() {
  Machine& machine = *Slot();
  Machine::Lock lock(machine.mutex);
  machine.stopping = true;
  machine.Moved();
  if (!machine.host_moved.wait_for(lock, kEndLimit, [&] { return machine.num_threads == 0; })) {
    return;
  }
  lock.unlock();
  machine.Join();
}

void EndAtExitOnce() {
  static const int registered = std::atexit(EndAtExit);
  (void)registered;
}

}  // namespace

int& CurrentDevice() {
  thread_local int device = 0;
  return device;
}

cudaError_t& LastError() {
  thread_local cudaError_t error = cudaSuccess;
  return error;
}

bool& InHostFunction() {
  thread_local bool in_host_function = false;
  return in_host_function;
}

CUstream_st*& CapturedStream() {
  thread_local CUstream_st* stream = nullptr;
  return stream;
}

Machine& TheMachine() {
  Machine* const machine = Slot().load(std::memory_order_acquire);
  if (machine != nullptr) return *machine;
  static std::once_flag first;
  std::call_once(first, [] {
    if (Slot() == nullptr) Slot() = new Machine(SettingsOfEnvironment());
    EndAtExitOnce();
  });
  return *Slot();
}

Settings SettingsOfEnvironment() {
  Settings settings;
  settings.devices = static_cast<int>(FromEnvironment("DEEPNET_EMULATED_DEVICES", 8));
  settings.memory_bytes = FromEnvironment("DEEPNET_EMULATED_MEMORY_MIB", 2048) << 20;
  settings.connections = static_cast<int>(FromEnvironment("CUDA_DEVICE_MAX_CONNECTIONS", 8));
  const char* const loading = std::getenv("CUDA_MODULE_LOADING");
  settings.eager_loading = loading != nullptr && std::string(loading) == "EAGER";
  settings.launch_blocking = FromEnvironment("CUDA_LAUNCH_BLOCKING", 0) != 0;
  settings.capability = static_cast<int>(FromEnvironment("DEEPNET_EMULATED_CAPABILITY", 90));
  settings.driver_version =
      static_cast<int>(FromEnvironment("DEEPNET_EMULATED_DRIVER", CUDART_VERSION));
  settings.nccl_version = static_cast<int>(FromEnvironment("DEEPNET_EMULATED_NCCL", 0));
  settings.seed = FromEnvironment("DEEPNET_EMULATED_SEED", 1);
  settings.longest_delay_us = static_cast<int>(FromEnvironment("DEEPNET_EMULATED_DELAY_US", 100));
  settings.watchdog_seconds =
      static_cast<double>(FromEnvironment("DEEPNET_EMULATED_WATCHDOG_S", 60));
  settings.polls_in_progress = static_cast<int>(FromEnvironment("DEEPNET_EMULATED_POLLS", 3));
  const char* const fail = std::getenv("DEEPNET_EMULATED_FAIL");
  if (fail != nullptr) settings.fail = fail;
  return settings;
}

void Restart(const Settings& settings) {
  delete Slot().load();
  Slot() = new Machine(settings);
  EndAtExitOnce();
  CurrentDevice() = 0;
  LastError() = cudaSuccess;
  CapturedStream() = nullptr;
}

Machine::Machine(const Settings& settings)
    : generation([] {
        static std::atomic<int> machines = 0;
        return machines++;
      }()),
      settings(settings),
      memory(static_cast<int>(VisibleDevices(settings.devices).size()), settings.memory_bytes),
      devices(VisibleDevices(settings.devices).size()),
      visible(VisibleDevices(settings.devices)) {
  if (settings.memory_bytes <= 0 || settings.memory_bytes > (int64_t{2} << 30)) {
    Fail("a device has 1 to 2048 MiB of memory");
  }
  for (GpuDevice& device : devices) device.queues.resize(std::clamp(settings.connections, 1, 32));
  ReadFailures(settings.fail, *this);
}

Machine::~Machine() {
  Lock lock(mutex);
  stopping = true;
  Moved();
  host_moved.wait(lock, [this] { return num_threads == 0; });
  lock.unlock();
  Join();
  for (cudaEvent_t event : events) delete event;
}

void Machine::Join() {
  watch_.notify_all();
  if (watcher_.joinable()) watcher_.join();
  for (GpuDevice& device : devices) {
    for (const auto& stream : device.streams) {
      if (stream->thread.joinable()) stream->thread.join();
    }
  }
}

int Machine::Injected(const std::string& call) {
  const Lock lock(mutex);
  return TakeFailure(failures, call);
}

cudaError_t Machine::Begin(const char* call) {
  if (InHostFunction()) {
    std::fprintf(stderr, "emulated GPU: %s in a host function\n", call);
    return cudaErrorNotPermitted;
  }
  if (settings.driver_version / 1000 < CUDART_VERSION / 1000) return cudaErrorInsufficientDriver;
  if (devices.empty()) return cudaErrorNoDevice;
  const int injected = Injected(call);
  if (injected != 0) return static_cast<cudaError_t>(injected);
  const Lock lock(mutex);
  CUstream_st* const captured = CapturedStream();
  if (captured != nullptr && RefusedInCaptures().contains(call)) {
    std::fprintf(stderr, "emulated GPU: %s while this thread captures %s\n", call,
                 captured->Name().c_str());
    if (captured->capture->refused.empty()) captured->capture->refused = call;
    return cudaErrorStreamCaptureUnsupported;
  }
  return Current().error;
}

GpuDevice& Machine::Current() { return devices[CurrentDevice()]; }

CUstream_st* Machine::Find(cudaStream_t stream) {
  if (stream == nullptr || stream == cudaStreamLegacy) {
    MakeDefaultStream(CurrentDevice());
    return Current().streams[0].get();
  }
  for (GpuDevice& device : devices) {
    for (const auto& known : device.streams) {
      if (known.get() == stream && !known->leaving) return stream;
    }
  }
  return nullptr;
}

void Machine::MakeDefaultStream(int device) {
  auto& streams = devices[device].streams;
  if (!streams.empty()) return;
  streams.push_back(std::make_unique<CUstream_st>(*this, device, /*number=*/0, /*blocking=*/true));
  if (watcher_.joinable() || settings.watchdog_seconds <= 0) return;
  watcher_ = std::thread([this] { Watch(); });
}

CUstream_st* Machine::MakeStream(int device, bool blocking, int priority) {
  MakeDefaultStream(device);
  auto& streams = devices[device].streams;
  std::erase_if(streams, [](const auto& stream) {
    if (stream->gone) stream->thread.join();
    return stream->gone;
  });
  const int number = devices[device].next_number++;
  streams.push_back(std::make_unique<CUstream_st>(*this, device, number, blocking));
  streams.back()->priority = priority;
  return streams.back().get();
}

std::vector<Point> Machine::WorkNow(int device) const {
  std::vector<Point> now;
  for (const auto& stream : devices[device].streams) {
    const auto& progress = stream->progress;
    if (progress->ended < progress->pushed) now.emplace_back(progress, progress->pushed);
  }
  return now;
}

void Machine::Push(Lock& lock, CUstream_st& stream, Kind kind, Work work) {
  GpuDevice& device = devices[stream.device];
  for (const BlockPointer& block : work.blocks) {
    if (!block->freed && !block->free_queued) continue;
    Fail(work.name + " uses " + block->Text() + ", which was freed before");
  }
  if (stream.capture != nullptr) return Record(stream, kind, std::move(work));
  if (kind == Kind::kLaunch && device.loaded.insert(work.name).second && !settings.eager_loading) {
    WaitUntilIdle(lock, stream.device, "the first launch of " + work.name);
  }
  if (kind == Kind::kLaunch) {
    ++device.counters.launches;
    ++device.launches[work.name];
    device.priorities[work.name] = stream.priority;
    work.launch = true;
    work.fails_with = TakeFailure(later_failures, work.name);
  } else if (kind == Kind::kCopy) {
    ++device.counters.copies;
  }
  if (stream.number == 0) {
    for (const auto& other : device.streams) {
      if (other->number > 0 && other->blocking) {
        work.after.emplace_back(other->progress, other->progress->pushed);
      }
    }
  } else if (stream.blocking) {
    work.after.emplace_back(device.streams[0]->progress, device.streams[0]->progress->pushed);
  }
  const std::string name = work.name;
  stream.works.push_back(std::move(work));
  const uint64_t turn = ++stream.progress->pushed;
  device.queues[stream.queue].push_back(&stream);
  Moved();
  if (kind != Kind::kLaunch || !settings.launch_blocking) return;
  WaitFor(lock, stream.device, "the launch of " + name,
          [progress = stream.progress, turn] { return progress->ended >= turn; });
}

void Machine::RunWatched(const Work& work, int device) {
  memory.Watch(work.blocks);
  work.run();
  const Touched touched = memory.Unwatch();
  const Lock lock(mutex);
  Touched& sum = devices[device].touched[work.name];
  sum.read += touched.read;
  sum.written += touched.written;
}

void Machine::Record(CUstream_st& stream, Kind kind, Work work) {
  if (CapturedStream() != &stream) {
    Fail(work.name + " on " + stream.Name() + ", which another thread captures");
  }
  if (work.ready != nullptr || work.ended != nullptr || work.record != nullptr) {
    Fail(work.name + " in the capture of " + stream.Name());
  }
  if (kind == Kind::kLaunch && !settings.eager_loading &&
      !devices[stream.device].loaded.contains(work.name)) {
    Fail(work.name + " would be loaded in the capture of " + stream.Name());
  }
  stream.capture->nodes.push_back(std::move(work));
}

bool Machine::CanStart(const CUstream_st& stream) const {
  if (stream.works.empty() || stream.running) return false;
  if (devices[stream.device].queues[stream.queue].front() != &stream) return false;
  const Work& work = stream.works.front();
  for (const auto& [progress, pushed] : work.after) {
    if (progress->ended < pushed) return false;
  }
  if (work.multiprocessors > devices[stream.device].multiprocessors) return false;
  return work.ready == nullptr || work.ready();
}

void Machine::Moved() {
  if (stopping) {
    for (GpuDevice& device : devices) {
      for (const auto& stream : device.streams) stream->wake.notify_all();
    }
    host_moved.notify_all();
    return;
  }
  for (GpuDevice& device : devices) {
    for (const auto& queue : device.queues) {
      if (!queue.empty() && CanStart(*queue.front())) queue.front()->wake.notify_one();
    }
  }
  if (!host_waits.empty()) host_moved.notify_all();
}

void Machine::WaitFor(Lock& lock, int device, const std::string& call,
                      const std::function<bool()>& done) {
  if (device >= 0) ++devices[device].counters.waits;
  if (done()) return;
  const auto entry = host_waits.insert(host_waits.end(), "a host thread waits in " + call);
  host_moved.wait(lock, [&] { return stopping || done(); });
  host_waits.erase(entry);
}

void Machine::WaitUntilIdle(Lock& lock, int device, const std::string& call) {
  const auto now = WorkNow(device);
  WaitFor(lock, device, call + ", which needs an idle device " + std::to_string(device), [&] {
    return std::all_of(now.begin(), now.end(),
                       [](const auto& work) { return work.first->ended >= work.second; });
  });
}

char* Machine::Resolve(const void* pointer, size_t bytes, Work& work, std::string& why) const {
  const BlockPointer block = memory.Find(pointer);
  const bool on_device = memory.OnDevice(pointer);
  if (block == nullptr) {
    why = on_device ? "device memory that lies in no block, or in a freed one"
                    : "host memory that is not pinned";
    return nullptr;
  }
  if (block->freed || block->free_queued) {
    why = block->Text() + ", which was freed before";
    return nullptr;
  }
  const char* const begin = static_cast<const char*>(pointer);
  if (begin + bytes > block->address + block->bytes) {
    why = std::to_string(bytes) + " B from byte " + std::to_string(begin - block->address) +
          " of " + block->Text();
    return nullptr;
  }
  work.blocks.push_back(block);
  return on_device ? memory.View(pointer) : const_cast<char*>(begin);
}

void Machine::Recycle(int device) {
  devices[device].quarantine.remove_if([&](const GpuDevice::Retired& retired) {
    for (const auto& [progress, pushed] : retired.after) {
      if (progress->ended < pushed) return false;
    }
    memory.Recycle(retired.block);
    return true;
  });
}

bool Machine::HasWork() const {
  if (!host_waits.empty()) return true;
  for (const GpuDevice& device : devices) {
    for (const auto& stream : device.streams) {
      if (stream->progress->ended < stream->progress->pushed) return true;
    }
  }
  return false;
}

std::string Machine::Describe() const {
  std::string text;
  for (const GpuDevice& device : devices) {
    for (const auto& stream : device.streams) {
      if (stream->progress->ended == stream->progress->pushed) continue;
      text += stream->Name() + ": ";
      if (stream->running) {
        text += stream->running_name + " runs";
        if (!stream->spins_for.empty()) text += " and waits for " + stream->spins_for;
      } else {
        const CUstream_st* const first = device.queues[stream->queue].front();
        const Work& work = stream->works.front();
        text += work.name;
        if (first != stream.get()) {
          text += " waits behind " + first->works.front().name + " of " + first->Name() +
                  " in hardware queue " + std::to_string(stream->queue);
        } else if (work.multiprocessors > device.multiprocessors) {
          text += " waits for " + std::to_string(work.multiprocessors) + " multiprocessors, " +
                  std::to_string(device.multiprocessors) + " are free";
        } else if (work.ready != nullptr && !work.ready()) {
          text += " waits for " + work.awaits;
        } else {
          text += " waits for earlier work, or starts";
        }
      }
      text += "; " + std::to_string(stream->works.size()) + " queued\n";
    }
  }
  for (const std::string& wait : host_waits) text += wait + "\n";
  return text;
}

void Machine::Watch() {
  Lock lock(mutex);
  const auto limit = std::chrono::duration<double>(settings.watchdog_seconds);
  uint64_t seen = moves;
  auto since = steady_clock::now();
  bool told = false;
  while (!stopping) {
    watch_.wait_for(lock, std::min(limit / 4, std::chrono::duration<double>(1)));
    if (moves != seen || !HasWork()) {
      seen = moves;
      since = steady_clock::now();
      told = false;
    } else if (!told && steady_clock::now() - since >= limit) {
      told = true;
      const std::string text = "nothing has moved for " +
                               std::to_string(static_cast<int>(settings.watchdog_seconds)) +
                               " s:\n" + Describe();
      if (settings.end_when_stuck) Fail(text);
      std::fprintf(stderr, "emulated GPU: %s", text.c_str());
    }
  }
}

HostWait::HostWait(const std::string& what) {
  Machine& machine = TheMachine();
  const Machine::Lock lock(machine.mutex);
  entry_ = machine.host_waits.insert(machine.host_waits.end(), "a host thread waits in " + what);
}

HostWait::~HostWait() {
  Machine& machine = TheMachine();
  const Machine::Lock lock(machine.mutex);
  machine.host_waits.erase(entry_);
}

bool Spin(const std::string& awaits) {
  Machine& machine = TheMachine();
  if (ThisStream() != nullptr) {
    const Machine::Lock lock(machine.mutex);
    ThisStream()->spins_for = awaits;
  }
  return !machine.stopping;
}

}  // namespace emulated_gpu

using emulated_gpu::Machine;
using emulated_gpu::Work;

CUstream_st::CUstream_st(Machine& machine, int device, int number, bool blocking)
    : machine(machine), device(device), number(number), blocking(blocking) {
  emulated_gpu::GpuDevice& owner = machine.devices[device];
  queue = owner.next_queue++ % static_cast<int>(owner.queues.size());
  Seed();
  ++machine.num_threads;
  thread = std::thread([this] { Run(); });
}

void CUstream_st::Seed() {
  random.seed(static_cast<unsigned>(machine.settings.seed * 7919 + device * 131 + number + 1));
}

std::string CUstream_st::Name() const {
  return "device " + std::to_string(device) +
         (number == 0 ? " default stream" : " stream " + std::to_string(number));
}

void CUstream_st::Run() {
  emulated_gpu::ThisStream() = this;
  emulated_gpu::CurrentDevice() = device;
  Machine::Lock lock(machine.mutex);
  for (;;) {
    wake.wait(lock, [this] {
      return machine.stopping || machine.CanStart(*this) || (leaving && works.empty());
    });
    if (machine.stopping || works.empty()) break;
    Work work = std::move(works.front());
    works.pop_front();
    machine.devices[device].queues[queue].pop_front();
    running = true;
    machine.devices[device].multiprocessors -= work.multiprocessors;
    running_name = work.name;
    running_blocks = work.blocks;
    for (const auto& block : work.blocks) {
      if (!block->freed) continue;
      emulated_gpu::Fail(work.name + " of " + Name() + " uses " + block->Text() +
                         ", which was freed before it ran");
    }
    ++machine.moves;
    machine.Moved();  // what stands behind it in the queue may start
    const int longest = work.hurries ? 0 : machine.settings.longest_delay_us;
    const bool late = longest > 0 && random() % emulated_gpu::kLateOneIn == 0;
    const auto delay = std::chrono::microseconds(late ? 1 + random() % longest : 0);
    cudaError_t& error = machine.devices[device].error;
    if (error == cudaSuccess) error = work.fails_with;
    const bool runs = error == cudaSuccess && work.run != nullptr;
    const bool watched = machine.watches && work.launch;
    if (runs || late) {
      lock.unlock();
      if (late) std::this_thread::sleep_for(delay);
      if (runs && watched) machine.RunWatched(work, device);
      if (runs && !watched) work.run();
      work.run = nullptr;
      lock.lock();
    }
    if (work.ended != nullptr) work.ended();
    if (work.record != nullptr) {
      work.record->done = true;
      work.record->at = std::chrono::steady_clock::now();
    }
    running = false;
    machine.devices[device].multiprocessors += work.multiprocessors;
    running_blocks.clear();
    spins_for.clear();
    ++progress->ended;
    ++machine.moves;
    machine.Moved();
  }
  gone = true;
  --machine.num_threads;
  machine.host_moved.notify_all();
}

// The machine behind the calls: devices, streams, and the queues between them. For the files of the
// emulated GPU only; tests use device.h.
//
// One lock guards everything. A stream is a thread that takes its next piece of work when the work
// stands first in its hardware queue and is ready, and then runs it without the lock.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/gpu/emulated/device.h"
#include "tests/gpu/emulated/memory.h"

namespace emulated_gpu {

// How far a stream has come.
struct Progress {
  uint64_t pushed = 0;
  uint64_t ended = 0;
};

// One cudaEventRecord.
struct Record {
  bool done = false;
  std::chrono::steady_clock::time_point at;
  std::string stream;
};

// A stream's work up to some piece of it.
using Point = std::pair<std::shared_ptr<Progress>, uint64_t>;

// A piece of work on a stream.
struct Work {
  std::string name;
  std::function<void()> run;             // without the lock; empty: nothing to do
  std::function<bool()> ready;           // under the lock; empty: at once
  std::string awaits;                    // what `ready` asks for, in words
  std::function<void()> ended;           // under the lock
  std::vector<BlockPointer> blocks;      // memory that it reads or writes
  std::shared_ptr<Record> record;        // done when it has run
  cudaError_t fails_with = cudaSuccess;  // instead of running
  bool hurries = false;                  // never late: bookkeeping, no work of a device
  bool launch = false;                   // Kind::kLaunch
  int multiprocessors = 0;               // that it keeps while it runs
  std::vector<Point> after;              // of other streams
};

// The counter that work belongs to.
enum class Kind { kLaunch, kCopy, kOther };

// The calls of a stream between cudaStreamBeginCapture and cudaStreamEndCapture: recorded, with
// their arguments as they are, and not run.
struct Capture {
  std::vector<Work> nodes;
  std::string refused;  // the first call that may not be made meanwhile; empty: none
};

class Machine;

}  // namespace emulated_gpu

struct CUevent_st {
  bool timed = true;
  std::shared_ptr<emulated_gpu::Record> latest;  // null: never recorded
};

// A graph, or one that can be launched: a chain of recorded work.
struct CUgraph_st {
  std::vector<emulated_gpu::Work> nodes;
};
struct CUgraphExec_st {
  std::shared_ptr<const std::vector<emulated_gpu::Work>> nodes;
};

struct CUstream_st {
  CUstream_st(emulated_gpu::Machine& machine, int device, int number, bool blocking);

  void Run();   // of its thread
  void Seed();  // of the delays
  std::string Name() const;

  emulated_gpu::Machine& machine;
  const int device;
  const int number;     // of the device; 0: the legacy default stream
  const bool blocking;  // ordered with the legacy default stream
  int priority = 0;
  int queue = 0;                                   // hardware queue of the device
  std::unique_ptr<emulated_gpu::Capture> capture;  // null: none
  bool leaving = false;                            // cudaStreamDestroy: ends when its work has
  bool gone = false;                               // and has ended
  bool running = false;
  std::string running_name;  // what runs
  std::vector<emulated_gpu::BlockPointer> running_blocks;
  std::string spins_for;                 // what running work waits for, if it does
  std::deque<emulated_gpu::Work> works;  // not started
  std::shared_ptr<emulated_gpu::Progress> progress = std::make_shared<emulated_gpu::Progress>();
  std::minstd_rand random;
  std::condition_variable wake;
  std::thread thread;  // last: it uses everything above
};

namespace emulated_gpu {

struct GpuDevice {
  std::vector<std::unique_ptr<CUstream_st>> streams;  // [0]: the legacy default stream
  std::vector<std::deque<CUstream_st*>> queues;       // by order of issue
  int next_number = 1;
  int next_queue = 0;
  Counters counters;
  std::map<std::string, int64_t> launches;
  std::map<std::string, int> priorities;   // of the last launches
  int multiprocessors = 132;               // free
  std::map<std::string, Touched> touched;  // by launches while Machine::watches
  std::set<std::string> loaded;            // kernels
  cudaError_t error = cudaSuccess;         // of work on the device; stays
  struct Retired {
    BlockPointer block;
    std::vector<Point> after;
  };
  std::list<Retired> quarantine;  // freed memory that queued work may still have to do with
};

// Methods that take a Lock are called with the lock held, and may let it go while they wait.
class Machine {
 public:
  using Lock = std::unique_lock<std::mutex>;

  explicit Machine(const Settings& settings);
  ~Machine();
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  // Every call of an API begins with it: the error that it must return at once.
  cudaError_t Begin(const char* call);
  // Returns an injected error of the n-th call, else 0.
  int Injected(const std::string& call);

  int num_devices() const { return static_cast<int>(devices.size()); }
  GpuDevice& Current();
  // Null where the handle is no living stream. 0 is the current device's legacy default stream.
  CUstream_st* Find(cudaStream_t stream);

  CUstream_st* MakeStream(int device, bool blocking, int priority);
  // Counts, and puts it on the stream, or into its capture. Blocks are checked now and when it
  // starts.
  void Push(Lock& lock, CUstream_st& stream, Kind kind, Work work);
  void WaitFor(Lock& lock, int device, const std::string& call, const std::function<bool()>& done);
  // Waits for all work that the device has now.
  void WaitUntilIdle(Lock& lock, int device, const std::string& call);
  // Adds the memory's block to the work and returns the host's view of it; null, with the reason,
  // where `bytes` from `pointer` are not within living device memory or pinned memory.
  char* Resolve(const void* pointer, size_t bytes, Work& work, std::string& why) const;
  // Gives quarantined memory back whose work has ended.
  void Recycle(int device);

  // Runs a launch, without the lock, and notes the memory that it touches.
  void RunWatched(const Work& work, int device);

  bool CanStart(const CUstream_st& stream) const;
  // After any change that may let work start or a host thread go on.
  void Moved();
  std::string Describe() const;
  void Join();  // threads, all of which are at their end
  std::vector<Point> WorkNow(int device) const;

  const int generation;  // the number of machines before this one
  std::mutex mutex;
  Settings settings;
  Memory memory;
  std::vector<GpuDevice> devices;
  std::vector<int> visible;  // the physical device of each
  std::set<cudaEvent_t> events;
  std::map<std::string, std::map<int64_t, int>> failures;  // by call and number of calls to come
  std::map<std::string, std::map<int64_t, cudaError_t>> later_failures;
  std::atomic<double> host_copy_speed = 0;  // as SetHostCopySpeed
  bool watches = false;                     // WatchMemory
  int num_threads = 0;
  std::atomic<bool> stopping = false;  // queued work is dropped
  uint64_t moves = 0;                  // pieces of work that have started or ended
  std::condition_variable host_moved;
  std::list<std::string> host_waits;  // what host threads wait for

 private:
  void Record(CUstream_st& stream, Kind kind, Work work);
  void Watch();
  bool HasWork() const;

  void MakeDefaultStream(int device);

  std::condition_variable watch_;
  std::thread watcher_;
};

// The machine; made at the first call and never destroyed.
Machine& TheMachine();

// State of the calling thread.
int& CurrentDevice();
cudaError_t& LastError();
bool& InHostFunction();          // of cudaLaunchHostFunc, which may not call CUDA
CUstream_st*& CapturedStream();  // null: the thread captures none

// Tells the watchdog what a host thread waits for.
class HostWait {
 public:
  explicit HostWait(const std::string& what);
  ~HostWait();
  HostWait(const HostWait&) = delete;
  HostWait& operator=(const HostWait&) = delete;

 private:
  std::list<std::string>::iterator entry_;
};

// For running work that waits: says for what, and returns false where the machine ends.
bool Spin(const std::string& awaits);

// Runs the body of a call of CUDA unless it must fail, and keeps its error.
template <typename Body>
cudaError_t Call(const char* call, Body body) {
  cudaError_t error = TheMachine().Begin(call);
  if (error == cudaSuccess) error = body(TheMachine());
  if (error != cudaSuccess) LastError() = error;
  return error;
}

}  // namespace emulated_gpu

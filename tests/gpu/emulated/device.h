// The emulated GPU: what its kernels need, and what tests may ask and set beyond the calls of CUDA.
//
// A program that links deepnet_emulated_gpu has the calls of CUDA's runtime, NCCL and cuBLASLt that
// this project makes, without a GPU. Streams are threads that are late at random; device memory
// cannot be read by the host; and mistakes that a GPU would answer with wrong values end the
// process with a text that starts with "emulated GPU:" and names the call, the kernel or the rank.
//
// These things behave as on a GPU, so that a hang or a race that a GPU would show is shown here:
//   - A stream's work runs in order and beside other streams' work. Only events, synchronising
//     calls and the legacy default stream order streams that are not in one.
//   - Streams share Settings::connections queues of a device. Work leaves a queue when it starts,
//     so that work which waits (for an event, for what precedes it in its stream) holds up
//     everything behind it, of other streams too. A receive of NCCL starts and then spins.
//   - cudaFree, cudaFreeHost, a cudaMalloc beyond all memory used before, cudaGraphInstantiate,
//     ncclCommAbort, and the first launch of a kernel (unless CUDA_MODULE_LOADING=EAGER) wait until
//     the device is idle. With CUDA_LAUNCH_BLOCKING=1 every launch waits for its end.
//   - A device has 132 multiprocessors, of which an operation of NCCL takes one for each channel of
//     its communicator: 32, or config.maxCTAs, unless NCCL_MAX_CTAS, NCCL_MIN_NCHANNELS or
//     NCCL_MIN_P2P_NCHANNELS want others. It starts when as many are free.
//   - With Settings::nccl_memory channels take memory, as NCCL 2.28.9's do where GPUs share a node:
//     8 MiB each with the communicator, 10 MiB for each rank from which and 2 MiB for each to which
//     a first message goes, 12 MiB for rings, with the first collective.
//   - cudaMemcpy and cudaMemcpyAsync from pageable memory return once the bytes are staged, before
//     they are on the device; cudaMemset does not wait either.
//   - Memory is NaN (bytes 0xff) when it is allocated and after it is freed.
//   - What a captured stream is asked for is recorded with its arguments and not run; a graph runs
//     its records in order, as one launch. A call that waits, allocates, or has to do with events
//     fails in a thread that captures, and ends its capture. Messages, copies of pageable memory, a
//     kernel that is not loaded yet, a new tensor, and memory that was freed since end the process.
//
// Environment, read at the first call: CUDA_VISIBLE_DEVICES, CUDA_DEVICE_MAX_CONNECTIONS,
// CUDA_MODULE_LOADING, CUDA_LAUNCH_BLOCKING as CUDA has them; NCCL's when a communicator is made;
// and
//   DEEPNET_EMULATED_DEVICES     number of devices; default 8
//   DEEPNET_EMULATED_MEMORY_MIB  memory of a device; default 2048, which is also the most
//   DEEPNET_EMULATED_CAPABILITY  compute capability; default 90
//   DEEPNET_EMULATED_DRIVER      CUDA version of the driver; default that of the headers
//   DEEPNET_EMULATED_NCCL        version of NCCL; default that of the headers
//   DEEPNET_EMULATED_SEED        of the delays; default 1
//   DEEPNET_EMULATED_DELAY_US    longest delay of one piece of work; default 100, 0: none
//   DEEPNET_EMULATED_WATCHDOG_S  seconds without movement until all that waits is printed; default
//                                60, 0: never
//   DEEPNET_EMULATED_POLLS       times that a communicator which is set up without blocking says
//   that
//                                it is in progress, at least; default 3
//   DEEPNET_EMULATED_FAIL        "call:n:error,..." as FailAt, "later:kernel:n:error" as FailLater,
//                                the error by its number
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>

namespace emulated_gpu {

// Puts `work` on the stream (null: the legacy default stream), to run after what is on it. `name`
// is counted and traced. The memory that this thread has asked HostView for since its last Enqueue
// belongs to the work: it must not be freed before the work has ended.
cudaError_t Enqueue(cudaStream_t stream, const char* name, std::function<void()> work);

// The address at which the host's side of the emulation may read and write device memory; any other
// pointer comes back as it is. Memory that has been freed ends the process.
void* HostView(const void* pointer);

// The same for a word among the arguments of a kernel, which need not be an address: what lies in
// no living memory comes back as it is, and a kernel that uses it as an address faults.
void* ArgumentView(const void* word);

// Sums over the life of a device; those of the calling thread's current device are returned.
struct Counters {
  int64_t launches = 0;         // kernels, products, messages and graphs
  int64_t replayed = 0;         // kernels, products, copies and fills of the graphs launched
  int64_t copies = 0;           // copies and fills
  int64_t to_host_bytes = 0;    // of copies from the device to the host
  int64_t waits = 0;            // times that the host has waited for the device
  int64_t allocations = 0;      // of device memory
  int64_t allocated_bytes = 0;  // by all allocations together, freed ones too
  int64_t pinned = 0;           // allocations of pinned memory, by threads whose device it is
  // A multiply-add of a product counts as two operations; bytes are those of operands and results,
  // twice for results that are added to.
  int64_t product_operations = 0;
  int64_t product_bytes = 0;
};
Counters ReadCounters();

// The number of launches of the current device by name.
std::map<std::string, int64_t> ReadLaunches();

// The priority of the stream that had the last launch of that name on the current device.
int ReadPriority(const std::string& name);

// Bytes of the current device's memory that launches touch while WatchMemory says so, by name:
// whole pages, each once a launch. What a launch wrote before it read it counts as written only.
struct Touched {
  int64_t read = 0, written = 0;
};
std::map<std::string, Touched> ReadTouched();
// For a device with one stream that works.
void WatchMemory(bool watches);

// The handles of NCCL that have been made in this process, and neither destroyed nor aborted.
int OpenCommunicators();

// The environment may say otherwise (see above).
struct Settings {
  int devices = 8;
  int64_t memory_bytes = int64_t{2} << 30;
  int connections = 8;
  bool eager_loading = false;
  bool launch_blocking = false;
  bool slices = false;  // of one GPU: only their UUIDs differ
  bool nccl_memory = false;
  int capability = 90;
  int driver_version = CUDART_VERSION;
  int nccl_version = 0;  // as ncclGetVersion gives it; 0: that of the headers
  uint64_t seed = 1;
  int longest_delay_us = 100;
  double watchdog_seconds = 60;
  int polls_in_progress = 3;
  bool end_when_stuck = false;  // the watchdog ends the process after it has printed
  std::string fail;             // as DEEPNET_EMULATED_FAIL
};
Settings SettingsOfEnvironment();

// Begins anew, as a process does: work that runs ends, work that waits is dropped, memory, streams
// and events are gone. No other thread may be in a call. Device memory has new addresses.
void Restart(const Settings& settings);

// Delays from now on. A piece of work in four is late, by at most `longest_us`.
void SetDelays(int longest_us, uint64_t seed);

// The speed of copies from a device to the host, also of those that run; they read half of their
// bytes at their beginning and half at their end. 0: they take no time.
void SetHostCopySpeed(double bytes_per_second);

// Memory of the device from now on; what is in use beyond it stays.
void SetMemoryLimit(int device, int64_t bytes);

// The n-th call from now (1: the next) of the function `call`, or launch of the kernel of that
// name, returns `error` (a cudaError_t, ncclResult_t or cublasStatus_t) and does nothing. For
// ncclCommGetAsyncError the error is the communicator's from then on. With the name "last node of a
// graph", the n-th launch of a graph succeeds and leaves out its last node; with "other bits of a
// product" the n-th product does, with another last bit in its first result.
void FailAt(const std::string& call, int64_t nth, int error);

// The n-th launch from now of the kernel `name` succeeds; when its turn comes on the device it
// fails instead of running, as all that follows: every call then returns `error`.
void FailLater(const std::string& name, int64_t nth, cudaError_t error);

// One line for each stream that has work left: what runs, what waits, and for what; and one for
// each host thread that waits.
std::string DescribeWork();

}  // namespace emulated_gpu

// The calls of CUDA's runtime, with the contracts of its documentation.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <thread>
#include <utility>

#include "tests/gpu/emulated/machine.h"

namespace emulated_gpu {
namespace {

// Prints why a call is refused.
cudaError_t Refuse(cudaError_t error, const std::string& why) {
  std::fprintf(stderr, "emulated GPU: %s\n", why.c_str());
  return error;
}

// Runs body(lock, stream) of a call that names a stream.
template <typename Body>
cudaError_t OnStream(const char* call, cudaStream_t stream, Body body) {
  return Call(call, [&](Machine& machine) {
    Machine::Lock lock(machine.mutex);
    CUstream_st* const found = machine.Find(stream);
    if (found == nullptr) {
      return Refuse(cudaErrorInvalidResourceHandle, std::string(call) + ": no such stream");
    }
    return body(lock, *found);
  });
}

template <typename Body>
cudaError_t OnEvent(const char* call, cudaEvent_t event, Body body) {
  return Call(call, [&](Machine& machine) {
    Machine::Lock lock(machine.mutex);
    if (!machine.events.contains(event)) {
      return Refuse(cudaErrorInvalidResourceHandle, std::string(call) + ": no such event");
    }
    return body(machine, lock);
  });
}

// Waits for what the stream holds now.
cudaError_t Drain(Machine::Lock& lock, CUstream_st& stream, const std::string& call) {
  const auto progress = stream.progress;
  const uint64_t pushed = progress->pushed;
  stream.machine.WaitFor(lock, stream.device, call + " of " + stream.Name(),
                         [&] { return progress->ended >= pushed; });
  return stream.machine.devices[stream.device].error;
}

// ---- Copies

enum class Place { kDevice, kPinned, kPageable };

struct Side {
  Place place = Place::kPageable;
  BlockPointer block;
  char* view = nullptr;  // for the host's side
};

// `bytes` from the first to the last one touched. False: they leave their block, or it is freed.
bool Locate(Machine& machine, const void* pointer, size_t bytes, Side& side) {
  side.block = machine.memory.Find(pointer);
  side.view = const_cast<char*>(static_cast<const char*>(pointer));
  const bool on_device = machine.memory.OnDevice(pointer);
  if (side.block == nullptr) return !on_device;
  if (!on_device && side.view == side.block->address + side.block->bytes) {
    side.block = nullptr;  // what begins where pinned memory ends
    return true;
  }
  side.place = on_device ? Place::kDevice : Place::kPinned;
  if (on_device) side.view = machine.memory.View(pointer);
  const char* const end = static_cast<const char*>(pointer) + bytes;
  return !side.block->freed && !side.block->free_queued &&
         end <= side.block->address + side.block->bytes;
}

bool DirectionFits(cudaMemcpyKind kind, const Side& to, const Side& from) {
  const bool to_device = to.place == Place::kDevice, from_device = from.place == Place::kDevice;
  switch (kind) {
    case cudaMemcpyHostToHost:
      return !to_device && !from_device;
    case cudaMemcpyHostToDevice:
      return to_device && !from_device;
    case cudaMemcpyDeviceToHost:
      return !to_device && from_device;
    case cudaMemcpyDeviceToDevice:
      return to_device && from_device;
    case cudaMemcpyDefault:
      return true;
  }
  return false;
}

struct Copy {
  void* to;
  size_t to_pitch;
  const void* from;
  size_t from_pitch;
  size_t width;
  size_t height;
  cudaMemcpyKind kind;
};

void CopyRows(char* to, size_t to_pitch, const char* from, size_t from_pitch, size_t width,
              size_t height) {
  for (size_t row = 0; row < height; ++row) {
    std::memmove(to + row * to_pitch, from + row * from_pitch, width);
  }
}

// Waits as long as a copy of so many bytes to the host takes.
void TakeTime(const Machine& machine, int64_t bytes) {
  const auto start = std::chrono::steady_clock::now();
  while (!machine.stopping) {
    const double speed = machine.host_copy_speed;
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
    if (speed <= 0 || passed.count() * speed >= static_cast<double>(bytes)) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// `wait`: the call returns when the copy has ended, except as CUDA documents for pageable memory.
cudaError_t StartCopy(const char* call, const Copy& copy, cudaStream_t stream, bool wait) {
  return OnStream(call, stream, [&](Machine::Lock& lock, CUstream_st& on) {
    if (copy.width == 0 || copy.height == 0) return cudaSuccess;
    if (copy.height > 1 && (copy.width > copy.to_pitch || copy.width > copy.from_pitch)) {
      return Refuse(cudaErrorInvalidPitchValue,
                    std::string(call) + ": a row is wider than a pitch");
    }
    Side to, from;
    const size_t rows = copy.height - 1;
    if (!Locate(on.machine, copy.to, rows * copy.to_pitch + copy.width, to) ||
        !Locate(on.machine, copy.from, rows * copy.from_pitch + copy.width, from)) {
      const Side& bad = to.block == nullptr || from.block != nullptr ? from : to;
      return Refuse(cudaErrorInvalidValue,
                    std::string(call) + ": not within living memory: " +
                        (bad.block == nullptr ? "no block" : bad.block->Text()));
    }
    if (!DirectionFits(copy.kind, to, from)) {
      return Refuse(cudaErrorInvalidValue, std::string(call) + ": memory is not where kind " +
                                               std::to_string(copy.kind) + " says");
    }
    Work work = {.name = call};
    for (const Side* side : {&to, &from}) {
      if (side->block != nullptr) work.blocks.push_back(side->block);
    }
    const bool pageable = to.place == Place::kPageable || from.place == Place::kPageable;
    if (pageable && on.capture != nullptr) {
      Fail(std::string(call) + " of pageable memory in the capture of " + on.Name());
    }
    const bool staged = from.place == Place::kPageable && to.place == Place::kDevice;
    if (staged) {
      auto bytes = std::make_shared<std::vector<char>>(copy.width * copy.height);
      CopyRows(bytes->data(), copy.width, static_cast<const char*>(copy.from), copy.from_pitch,
               copy.width, copy.height);
      work.run = [copy, bytes, view = to.view] {
        CopyRows(view, copy.to_pitch, bytes->data(), copy.width, copy.width, copy.height);
      };
    } else {
      const bool to_host = from.place == Place::kDevice && to.place != Place::kDevice;
      const auto bytes = to_host ? static_cast<int64_t>(copy.width * copy.height) : 0;
      on.machine.devices[on.device].counters.to_host_bytes += bytes;
      work.run = [copy, bytes, to = to.view, from = from.view, &machine = on.machine] {
        const size_t half = bytes > 0 ? copy.width / 2 : 0;
        CopyRows(to, copy.to_pitch, from, copy.from_pitch, half, copy.height);
        TakeTime(machine, bytes);
        CopyRows(to + half, copy.to_pitch, from + half, copy.from_pitch, copy.width - half,
                 copy.height);
      };
    }
    on.machine.Push(lock, on, Kind::kCopy, std::move(work));
    const bool both_on_device = to.place == Place::kDevice && from.place == Place::kDevice;
    if (staged || both_on_device || (!wait && !pageable)) return cudaSuccess;
    return Drain(lock, on, call);
  });
}

cudaError_t Fill(const char* call, void* to, size_t pitch, int value, size_t width, size_t height,
                 cudaStream_t stream) {
  return OnStream(call, stream, [&](Machine::Lock& lock, CUstream_st& on) {
    if (width == 0 || height == 0) return cudaSuccess;
    Side side;
    if (!Locate(on.machine, to, (height - 1) * pitch + width, side) ||
        side.place != Place::kDevice) {
      return Refuse(cudaErrorInvalidValue, std::string(call) + ": not within device memory");
    }
    on.machine.Push(lock, on, Kind::kCopy,
                    {.name = call,
                     .run =
                         [=] {
                           for (size_t row = 0; row < height; ++row) {
                             std::memset(side.view + row * pitch, value, width);
                           }
                         },
                     .blocks = {side.block}});
    return cudaSuccess;
  });
}

// ---- Memory

// The living block that begins at `pointer`.
BlockPointer Beginning(Machine& machine, const void* pointer) {
  const BlockPointer block = machine.memory.Find(pointer);
  const bool found =
      block != nullptr && block->address == pointer && !block->freed && !block->free_queued;
  return found ? block : nullptr;
}

cudaError_t Allocate(const char* call, void** pointer, size_t bytes, bool may_wait) {
  return Call(call, [&](Machine& machine) {
    Machine::Lock lock(machine.mutex);
    *pointer = nullptr;
    if (bytes == 0) return cudaSuccess;
    const int device = CurrentDevice();
    machine.Recycle(device);
    if (may_wait && machine.memory.Grows(device, bytes)) machine.WaitUntilIdle(lock, device, call);
    const BlockPointer block = machine.memory.Allocate(device, bytes);
    if (block == nullptr) return cudaErrorMemoryAllocation;
    Counters& counters = machine.Current().counters;
    ++counters.allocations;
    counters.allocated_bytes += static_cast<int64_t>(bytes);
    *pointer = block->address;
    return cudaSuccess;
  });
}

// The end of cudaFreeAsync on its stream: nothing that was queued may still need the block.
void RetireInOrder(Machine& machine, const CUstream_st& on, const BlockPointer& block) {
  for (const auto& stream : machine.devices[block->device].streams) {
    const auto uses = [&](const std::vector<BlockPointer>& blocks) {
      return std::find(blocks.begin(), blocks.end(), block) != blocks.end();
    };
    std::string user;
    if (stream.get() != &on && uses(stream->running_blocks)) user = stream->running_name;
    for (const Work& work : stream->works) {
      if (user.empty() && uses(work.blocks)) user = work.name;
    }
    if (user.empty()) continue;
    Fail("cudaFreeAsync on " + on.Name() + " frees " + block->Text() + ", but " + user + " on " +
         stream->Name() + " uses it and has not ended");
  }
  machine.memory.Retire(*block);
  machine.devices[block->device].quarantine.push_back({block, machine.WorkNow(block->device)});
}

cudaError_t PinHost(const char* call, void** pointer, size_t bytes) {
  return Call(call, [&](Machine& machine) {
    const Machine::Lock lock(machine.mutex);
    constexpr size_t kPage = 4096;
    *pointer = std::aligned_alloc(kPage, (std::max<size_t>(bytes, 1) + kPage - 1) / kPage * kPage);
    if (*pointer == nullptr) return cudaErrorMemoryAllocation;
    machine.memory.Pin(*pointer, bytes, /*owned=*/true);
    ++machine.Current().counters.pinned;
    return cudaSuccess;
  });
}

cudaError_t UnpinHost(const char* call, void* pointer, bool owned) {
  return Call(call, [&](Machine& machine) {
    Machine::Lock lock(machine.mutex);
    if (pointer == nullptr) return cudaSuccess;
    const BlockPointer block = Beginning(machine, pointer);
    if (block == nullptr || block->device >= 0 || block->owned != owned) {
      return cudaErrorInvalidValue;
    }
    for (int device = 0; device < machine.num_devices(); ++device) {
      if (!machine.WorkNow(device).empty()) machine.WaitUntilIdle(lock, device, call);
    }
    machine.memory.Unpin(block);
    return cudaSuccess;
  });
}

// ---- Graphs

// Runs the nodes one after another.
void RunNodes(std::span<const Work> nodes) {
  for (const Work& node : nodes) {
    if (node.run != nullptr) node.run();
  }
}

cudaError_t EndCapture(CUstream_st& stream, cudaGraph_t* graph) {
  const auto capture = std::move(stream.capture);
  CapturedStream() = nullptr;
  *graph = nullptr;
  if (!capture->refused.empty()) {
    return Refuse(cudaErrorStreamCaptureInvalidated,
                  "the capture of " + stream.Name() + " was ended by " + capture->refused);
  }
  *graph = new CUgraph_st{std::move(capture->nodes)};
  return cudaSuccess;
}

cudaError_t LaunchGraph(Machine::Lock& lock, CUstream_st& stream, const CUgraphExec_st& graph,
                        bool forgets_last) {
  const size_t count = graph.nodes->size() - (forgets_last && !graph.nodes->empty());
  Work work = {.name = "cudaGraphLaunch",
               .run = [nodes = graph.nodes, count] { RunNodes(std::span(*nodes).first(count)); }};
  for (const Work& node : *graph.nodes) {
    for (const BlockPointer& block : node.blocks) {
      if (block->freed || block->free_queued) {
        Fail("cudaGraphLaunch: " + node.name + " uses " + block->Text() +
             ", which was freed since it was captured");
      }
      if (std::find(work.blocks.begin(), work.blocks.end(), block) == work.blocks.end()) {
        work.blocks.push_back(block);
      }
    }
  }
  Machine& machine = stream.machine;
  machine.devices[stream.device].counters.replayed += static_cast<int64_t>(graph.nodes->size());
  machine.Push(lock, stream, Kind::kLaunch, std::move(work));
  return cudaSuccess;
}

// ---- Devices

// The attributes of a data-centre GPU of the machine's compute capability.
bool Attribute(const Machine& machine, cudaDeviceAttr attribute, int& value) {
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
      value = machine.settings.capability / 10;
      return true;
    case cudaDevAttrComputeCapabilityMinor:
      value = machine.settings.capability % 10;
      return true;
    case cudaDevAttrMultiProcessorCount:
      value = 16;
      return true;
    case cudaDevAttrWarpSize:
      value = 32;
      return true;
    case cudaDevAttrMaxThreadsPerBlock:
      value = 1024;
      return true;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      value = 2048;
      return true;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      value = 48 << 10;
      return true;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      value = 227 << 10;
      return true;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      value = 228 << 10;
      return true;
    case cudaDevAttrMaxRegistersPerBlock:
    case cudaDevAttrMaxRegistersPerMultiprocessor:
      value = 65536;
      return true;
    case cudaDevAttrMaxGridDimX:
      value = 2147483647;
      return true;
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ:
      value = 65535;
      return true;
    case cudaDevAttrL2CacheSize:
      value = 50 << 20;
      return true;
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrMemoryPoolsSupported:
    case cudaDevAttrConcurrentKernels:
      value = 1;
      return true;
    default:
      return false;
  }
}

struct ErrorText {
  cudaError_t error;
  const char* name;
  const char* text;
};

constexpr ErrorText kErrors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInitializationError, "cudaErrorInitializationError", "initialization error"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration",
     "invalid configuration argument"},
    {cudaErrorInvalidPitchValue, "cudaErrorInvalidPitchValue", "invalid pitch argument"},
    {cudaErrorInvalidMemcpyDirection, "cudaErrorInvalidMemcpyDirection",
     "invalid copy direction for memcpy"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorDevicesUnavailable, "cudaErrorDevicesUnavailable",
     "CUDA-capable device(s) is/are busy or unavailable"},
    {cudaErrorInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorNoKernelImageForDevice, "cudaErrorNoKernelImageForDevice",
     "no kernel image is available for execution on the device"},
    {cudaErrorECCUncorrectable, "cudaErrorECCUncorrectable", "uncorrectable ECC error encountered"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress",
     "an illegal memory access was encountered"},
    {cudaErrorLaunchOutOfResources, "cudaErrorLaunchOutOfResources",
     "too many resources requested for launch"},
    {cudaErrorLaunchTimeout, "cudaErrorLaunchTimeout", "the launch timed out and was terminated"},
    {cudaErrorAssert, "cudaErrorAssert", "device-side assert triggered"},
    {cudaErrorMisalignedAddress, "cudaErrorMisalignedAddress", "misaligned address"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorNotPermitted, "cudaErrorNotPermitted", "operation not permitted"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"},
};

const ErrorText* Find(cudaError_t error) {
  const auto* const found = std::find_if(std::begin(kErrors), std::end(kErrors),
                                         [&](const ErrorText& e) { return e.error == error; });
  return found == std::end(kErrors) ? nullptr : found;
}

}  // namespace
}  // namespace emulated_gpu

using emulated_gpu::Call;
using emulated_gpu::CurrentDevice;
using emulated_gpu::LastError;
using emulated_gpu::Machine;

// The functions' parameters are named as CUDA names them where the header does.
extern "C" {

// ---- Errors

const char* cudaGetErrorName(cudaError_t error) {
  const auto* const found = emulated_gpu::Find(error);
  return found == nullptr ? "unrecognized error code" : found->name;
}

const char* cudaGetErrorString(cudaError_t error) {
  const auto* const found = emulated_gpu::Find(error);
  return found == nullptr ? "unrecognized error code" : found->text;
}

cudaError_t cudaGetLastError() { return std::exchange(LastError(), cudaSuccess); }

cudaError_t cudaPeekAtLastError() { return LastError(); }

// ---- Devices

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 0;
  return Call("cudaGetDeviceCount", [&](Machine& machine) {
    *count = machine.num_devices();
    return cudaSuccess;
  });
}

cudaError_t cudaSetDevice(int device) {
  return Call("cudaSetDevice", [&](Machine& machine) {
    if (device < 0 || device >= machine.num_devices()) return cudaErrorInvalidDevice;
    CurrentDevice() = device;
    return cudaSuccess;
  });
}

cudaError_t cudaGetDevice(int* device) {
  return Call("cudaGetDevice", [&](Machine&) {
    *device = CurrentDevice();
    return cudaSuccess;
  });
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = emulated_gpu::TheMachine().settings.driver_version;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  return Call("cudaDeviceGetAttribute", [&](Machine& machine) {
    if (device < 0 || device >= machine.num_devices()) return cudaErrorInvalidDevice;
    if (emulated_gpu::Attribute(machine, attribute, *value)) return cudaSuccess;
    return emulated_gpu::Refuse(
        cudaErrorInvalidValue,
        "cudaDeviceGetAttribute: attribute " + std::to_string(attribute) + " is not known here");
  });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return Call("cudaGetDeviceProperties", [&](Machine& machine) {
    if (device < 0 || device >= machine.num_devices()) return cudaErrorInvalidDevice;
    *properties = {};
    std::snprintf(properties->name, sizeof(properties->name), "Emulated GPU");
    const auto attribute = [&](cudaDeviceAttr which) {
      int value = 0;
      emulated_gpu::Attribute(machine, which, value);
      return value;
    };
    properties->major = attribute(cudaDevAttrComputeCapabilityMajor);
    properties->minor = attribute(cudaDevAttrComputeCapabilityMinor);
    properties->totalGlobalMem = machine.memory.limit(device);
    properties->multiProcessorCount = attribute(cudaDevAttrMultiProcessorCount);
    properties->warpSize = attribute(cudaDevAttrWarpSize);
    properties->maxThreadsPerBlock = attribute(cudaDevAttrMaxThreadsPerBlock);
    properties->maxThreadsPerMultiProcessor = attribute(cudaDevAttrMaxThreadsPerMultiProcessor);
    properties->sharedMemPerBlock = attribute(cudaDevAttrMaxSharedMemoryPerBlock);
    properties->sharedMemPerBlockOptin = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
    properties->sharedMemPerMultiprocessor = attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
    properties->regsPerBlock = attribute(cudaDevAttrMaxRegistersPerBlock);
    properties->regsPerMultiprocessor = attribute(cudaDevAttrMaxRegistersPerMultiprocessor);
    properties->l2CacheSize = attribute(cudaDevAttrL2CacheSize);
    properties->unifiedAddressing = 1;
    properties->pciBusID = machine.settings.slices ? 0 : machine.visible[device];
    properties->uuid.bytes[0] = static_cast<char>(machine.visible[device]);
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  return Call("cudaDeviceGetPCIBusId", [&](Machine& machine) {
    if (device < 0 || device >= machine.num_devices()) return cudaErrorInvalidDevice;
    std::snprintf(text, length, "0000:%02X:00.0", static_cast<unsigned>(machine.visible[device]));
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return Call("cudaDeviceGetStreamPriorityRange", [&](Machine&) {
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceSynchronize() {
  return Call("cudaDeviceSynchronize", [](Machine& machine) {
    Machine::Lock lock(machine.mutex);
    machine.WaitUntilIdle(lock, CurrentDevice(), "cudaDeviceSynchronize");
    return machine.Current().error;
  });
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  return Call("cudaMemGetInfo", [&](Machine& machine) {
    const Machine::Lock lock(machine.mutex);
    *total = machine.memory.limit(CurrentDevice());
    *free = *total - std::min(*total, machine.memory.used(CurrentDevice()));
    return cudaSuccess;
  });
}

// ---- Streams

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  return Call("cudaStreamCreateWithPriority", [&](Machine& machine) {
    if (flags != cudaStreamDefault && flags != cudaStreamNonBlocking) return cudaErrorInvalidValue;
    const Machine::Lock lock(machine.mutex);
    *stream = machine.MakeStream(CurrentDevice(), flags == cudaStreamDefault, priority);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return Call("cudaStreamCreateWithFlags",
              [&](Machine&) { return cudaStreamCreateWithPriority(stream, flags, 0); });
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return Call("cudaStreamCreate",
              [&](Machine&) { return cudaStreamCreateWithPriority(stream, cudaStreamDefault, 0); });
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  return emulated_gpu::OnStream("cudaStreamGetPriority", stream,
                                [&](Machine::Lock&, CUstream_st& on) {
                                  *priority = on.priority;
                                  return cudaSuccess;
                                });
}

// The stream's work goes on.
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return emulated_gpu::OnStream("cudaStreamDestroy", stream, [](Machine::Lock&, CUstream_st& on) {
    if (on.number == 0) return cudaErrorInvalidResourceHandle;
    on.leaving = true;
    on.wake.notify_one();
    return cudaSuccess;
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return emulated_gpu::OnStream("cudaStreamSynchronize", stream,
                                [](Machine::Lock& lock, CUstream_st& on) {
                                  return emulated_gpu::Drain(lock, on, "cudaStreamSynchronize");
                                });
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return emulated_gpu::OnStream("cudaStreamQuery", stream, [](Machine::Lock&, CUstream_st& on) {
    const auto& progress = *on.progress;
    return progress.ended < progress.pushed ? cudaErrorNotReady : cudaSuccess;
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  return emulated_gpu::OnStream("cudaStreamWaitEvent", stream,
                                [&](Machine::Lock& lock, CUstream_st& on) {
                                  if (!on.machine.events.contains(event))
                                    return cudaErrorInvalidResourceHandle;
                                  const auto record = event->latest;
                                  if (record == nullptr || record->done) return cudaSuccess;
                                  on.machine.Push(lock, on, emulated_gpu::Kind::kOther,
                                                  {.name = "cudaStreamWaitEvent",
                                                   .ready = [record] { return record->done; },
                                                   .awaits = "an event of " + record->stream,
                                                   .hurries = true});
                                  return cudaSuccess;
                                });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  return emulated_gpu::OnStream("cudaLaunchHostFunc", stream,
                                [&](Machine::Lock& lock, CUstream_st& on) {
                                  const auto run = [=] {
                                    emulated_gpu::InHostFunction() = true;
                                    function(data);
                                    emulated_gpu::InHostFunction() = false;
                                  };
                                  on.machine.Push(lock, on, emulated_gpu::Kind::kOther,
                                                  {.name = "cudaLaunchHostFunc", .run = run});
                                  return cudaSuccess;
                                });
}

// ---- Graphs

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return emulated_gpu::OnStream(
      "cudaStreamBeginCapture", stream, [&](Machine::Lock&, CUstream_st& on) {
        if (on.number == 0) return cudaErrorStreamCaptureUnsupported;
        if (mode != cudaStreamCaptureModeThreadLocal || on.capture != nullptr) {
          return emulated_gpu::Refuse(cudaErrorInvalidValue,
                                      "cudaStreamBeginCapture: only of this thread, and once");
        }
        on.capture = std::make_unique<emulated_gpu::Capture>();
        emulated_gpu::CapturedStream() = &on;
        return cudaSuccess;
      });
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  return emulated_gpu::OnStream(
      "cudaStreamEndCapture", stream, [&](Machine::Lock&, CUstream_st& on) {
        if (on.capture == nullptr || emulated_gpu::CapturedStream() != &on) {
          return emulated_gpu::Refuse(cudaErrorInvalidValue,
                                      "cudaStreamEndCapture: this thread does not capture it");
        }
        return emulated_gpu::EndCapture(on, graph);
      });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return emulated_gpu::OnStream(
      "cudaStreamIsCapturing", stream, [&](Machine::Lock&, CUstream_st& on) {
        *status =
            on.capture == nullptr ? cudaStreamCaptureStatusNone : cudaStreamCaptureStatusActive;
        return cudaSuccess;
      });
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  return Call("cudaGraphGetNodes", [&](Machine&) {
    if (nodes != nullptr) return cudaErrorNotSupported;
    *count = graph->nodes.size();
    return cudaSuccess;
  });
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  return Call("cudaGraphInstantiate", [&](Machine& machine) {
    Machine::Lock lock(machine.mutex);
    machine.WaitUntilIdle(lock, emulated_gpu::CurrentDevice(), "cudaGraphInstantiate");
    *exec =
        new CUgraphExec_st{std::make_shared<const std::vector<emulated_gpu::Work>>(graph->nodes)};
    return cudaSuccess;
  });
}

cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) {
  return Call("cudaGraphUpload", [](Machine&) { return cudaSuccess; });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  const bool forgets_last = emulated_gpu::TheMachine().Injected("last node of a graph") != 0;
  return emulated_gpu::OnStream("cudaGraphLaunch", stream,
                                [&](Machine::Lock& lock, CUstream_st& on) {
                                  return emulated_gpu::LaunchGraph(lock, on, *exec, forgets_last);
                                });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return Call("cudaGraphDestroy", [&](Machine&) {
    delete graph;
    return cudaSuccess;
  });
}

// A launch that has not ended goes on.
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  return Call("cudaGraphExecDestroy", [&](Machine&) {
    delete exec;
    return cudaSuccess;
  });
}

// ---- Events

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return Call("cudaEventCreateWithFlags", [&](Machine& machine) {
    const Machine::Lock lock(machine.mutex);
    *event = *machine.events.insert(new CUevent_st).first;
    (*event)->timed = (flags & cudaEventDisableTiming) == 0;
    return cudaSuccess;
  });
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return Call("cudaEventCreate",
              [&](Machine&) { return cudaEventCreateWithFlags(event, cudaEventDefault); });
}

// Work that waits for the event goes on waiting.
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return emulated_gpu::OnEvent("cudaEventDestroy", event, [&](Machine& machine, Machine::Lock&) {
    machine.events.erase(event);
    delete event;
    return cudaSuccess;
  });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return emulated_gpu::OnStream(
      "cudaEventRecord", stream, [&](Machine::Lock& lock, CUstream_st& on) {
        if (!on.machine.events.contains(event)) return cudaErrorInvalidResourceHandle;
        auto record = std::make_shared<emulated_gpu::Record>();
        record->stream = on.Name();
        event->latest = record;
        on.machine.Push(lock, on, emulated_gpu::Kind::kOther,
                        {.name = "cudaEventRecord", .record = record, .hurries = true});
        return cudaSuccess;
      });
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  return cudaEventRecord(event, stream);
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return emulated_gpu::OnEvent("cudaEventQuery", event, [&](Machine&, Machine::Lock&) {
    return event->latest == nullptr || event->latest->done ? cudaSuccess : cudaErrorNotReady;
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return emulated_gpu::OnEvent(
      "cudaEventSynchronize", event, [&](Machine& machine, Machine::Lock& lock) {
        const auto record = event->latest;
        if (record == nullptr) return cudaSuccess;
        machine.WaitFor(lock, CurrentDevice(),
                        "cudaEventSynchronize for an event of " + record->stream,
                        [&] { return record->done; });
        return machine.Current().error;
      });
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  return emulated_gpu::OnEvent(
      "cudaEventElapsedTime", start, [&](Machine& machine, Machine::Lock&) {
        if (!machine.events.contains(end) || !start->timed || !end->timed ||
            start->latest == nullptr || end->latest == nullptr) {
          return cudaErrorInvalidResourceHandle;
        }
        if (!start->latest->done || !end->latest->done) return cudaErrorNotReady;
        *milliseconds =
            std::chrono::duration<float, std::milli>(end->latest->at - start->latest->at).count();
        return cudaSuccess;
      });
}

// ---- Memory

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  return emulated_gpu::Allocate("cudaMalloc", pointer, bytes, /*may_wait=*/true);
}

cudaError_t cudaMallocAsync(void** pointer, size_t bytes, cudaStream_t) {
  return emulated_gpu::Allocate("cudaMallocAsync", pointer, bytes, /*may_wait=*/false);
}

cudaError_t cudaFree(void* pointer) {
  return Call("cudaFree", [&](Machine& machine) {
    Machine::Lock lock(machine.mutex);
    if (pointer == nullptr) return cudaSuccess;
    const auto block = emulated_gpu::Beginning(machine, pointer);
    if (block == nullptr || block->device < 0) {
      return emulated_gpu::Refuse(cudaErrorInvalidValue,
                                  "cudaFree: no living block of device memory begins there");
    }
    machine.WaitUntilIdle(lock, block->device, "cudaFree");
    machine.memory.Retire(*block);
    machine.memory.Recycle(block);
    return cudaSuccess;
  });
}

cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream) {
  return emulated_gpu::OnStream("cudaFreeAsync", stream, [&](Machine::Lock& lock, CUstream_st& on) {
    if (pointer == nullptr) return cudaSuccess;
    const auto block = emulated_gpu::Beginning(on.machine, pointer);
    if (block == nullptr || block->device < 0) {
      return emulated_gpu::Refuse(cudaErrorInvalidValue,
                                  "cudaFreeAsync: no living block of device memory begins "
                                  "there");
    }
    on.machine.Push(lock, on, emulated_gpu::Kind::kOther,
                    {.name = "cudaFreeAsync", .ended = [&on, block] {
                       emulated_gpu::RetireInOrder(on.machine, on, block);
                     }});
    block->free_queued = true;
    return cudaSuccess;
  });
}

cudaError_t cudaMallocHost(void** pointer, size_t bytes) {
  return emulated_gpu::PinHost("cudaMallocHost", pointer, bytes);
}

cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) {
  return emulated_gpu::PinHost("cudaHostAlloc", pointer, bytes);
}

cudaError_t cudaFreeHost(void* pointer) {
  return emulated_gpu::UnpinHost("cudaFreeHost", pointer, /*owned=*/true);
}

cudaError_t cudaHostRegister(void* pointer, size_t bytes, unsigned) {
  return Call("cudaHostRegister", [&](Machine& machine) {
    const Machine::Lock lock(machine.mutex);
    if (emulated_gpu::Beginning(machine, pointer) != nullptr) {
      return cudaErrorHostMemoryAlreadyRegistered;
    }
    machine.memory.Pin(pointer, bytes, /*owned=*/false);
    return cudaSuccess;
  });
}

cudaError_t cudaHostUnregister(void* pointer) {
  return emulated_gpu::UnpinHost("cudaHostUnregister", pointer, /*owned=*/false);
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  return Call("cudaPointerGetAttributes", [&](Machine& machine) {
    const Machine::Lock lock(machine.mutex);
    *attributes = {};
    emulated_gpu::Side side;
    emulated_gpu::Locate(machine, pointer, 0, side);
    if (side.block == nullptr) return cudaSuccess;  // cudaMemoryTypeUnregistered
    const bool on_device = side.place == emulated_gpu::Place::kDevice;
    attributes->type = on_device ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
    attributes->device = on_device ? side.block->device : CurrentDevice();
    attributes->devicePointer = const_cast<void*>(pointer);
    if (!on_device) attributes->hostPointer = const_cast<void*>(pointer);
    return cudaSuccess;
  });
}

// ---- Copies

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return emulated_gpu::StartCopy("cudaMemcpy", {to, bytes, from, bytes, bytes, 1, kind}, nullptr,
                                 /*wait=*/true);
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return emulated_gpu::StartCopy("cudaMemcpyAsync", {to, bytes, from, bytes, bytes, 1, kind},
                                 stream, /*wait=*/false);
}

cudaError_t cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                         size_t width, size_t height, cudaMemcpyKind kind) {
  return emulated_gpu::StartCopy("cudaMemcpy2D",
                                 {to, to_pitch, from, from_pitch, width, height, kind}, nullptr,
                                 /*wait=*/true);
}

cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                              size_t width, size_t height, cudaMemcpyKind kind,
                              cudaStream_t stream) {
  return emulated_gpu::StartCopy("cudaMemcpy2DAsync",
                                 {to, to_pitch, from, from_pitch, width, height, kind}, stream,
                                 /*wait=*/false);
}

cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  return emulated_gpu::Fill("cudaMemset", to, bytes, value, bytes, 1, nullptr);
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  return emulated_gpu::Fill("cudaMemsetAsync", to, bytes, value, bytes, 1, stream);
}

cudaError_t cudaMemset2DAsync(void* to, size_t pitch, int value, size_t width, size_t height,
                              cudaStream_t stream) {
  return emulated_gpu::Fill("cudaMemset2DAsync", to, pitch, value, width, height, stream);
}

// ---- Kernels

cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) {
  return Call("cudaFuncSetAttribute", [](Machine&) { return cudaSuccess; });
}

// As many as threads allow: registers and shared memory are the compiler's to know.
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int block_size,
                                                          size_t) {
  return Call("cudaOccupancyMaxActiveBlocksPerMultiprocessor", [&](Machine&) {
    if (block_size <= 0 || block_size > 1024) return cudaErrorInvalidValue;
    *blocks = std::min(32, 2048 / block_size);
    return cudaSuccess;
  });
}

}  // extern "C"

#include "tests/gpu/emulated/device.h"

#include <algorithm>
#include <utility>

#include "tests/gpu/emulated/machine.h"

namespace emulated_gpu {
namespace {

// Blocks that this thread has asked HostView for since its last Enqueue.
std::vector<BlockPointer>& AskedFor() {
  thread_local std::vector<BlockPointer> blocks;
  return blocks;
}

}  // namespace

cudaError_t Enqueue(cudaStream_t stream, const char* name, std::function<void()> work) {
  auto blocks = std::exchange(AskedFor(), {});
  return Call(name, [&](Machine& machine) {
    Machine::Lock lock(machine.mutex);
    CUstream_st* const on = machine.Find(stream);
    if (on == nullptr) return cudaErrorInvalidResourceHandle;
    // What was freed since it was asked for is no argument of this launch.
    std::erase_if(blocks, [](const auto& block) { return block->freed || block->free_queued; });
    machine.Push(lock, *on, Kind::kLaunch,
                 {.name = name, .run = std::move(work), .blocks = blocks});
    return cudaSuccess;
  });
}

void* HostView(const void* pointer) {
  Machine& machine = TheMachine();
  if (!machine.memory.OnDevice(pointer)) return const_cast<void*>(pointer);
  const Machine::Lock lock(machine.mutex);
  BlockPointer block = machine.memory.Find(pointer);
  if (block == nullptr)
    Fail("an address of device memory that lies in no block, or in a freed one");
  if (block->freed || block->free_queued)
    Fail("an address in " + block->Text() + ", which was freed before");
  char* const view = machine.memory.View(pointer);
  auto& asked = AskedFor();
  if (std::find(asked.begin(), asked.end(), block) == asked.end()) {
    asked.push_back(std::move(block));
  }
  return view;
}

void* ArgumentView(const void* word) {
  Machine& machine = TheMachine();
  if (!machine.memory.OnDevice(word)) return const_cast<void*>(word);
  {
    const Machine::Lock lock(machine.mutex);
    const BlockPointer block = machine.memory.Find(word);
    if (block == nullptr || block->freed || block->free_queued) return const_cast<void*>(word);
  }
  return HostView(word);
}

Counters ReadCounters() {
  Machine& machine = TheMachine();
  const Machine::Lock lock(machine.mutex);
  return machine.devices.empty() ? Counters() : machine.Current().counters;
}

std::map<std::string, int64_t> ReadLaunches() {
  Machine& machine = TheMachine();
  const Machine::Lock lock(machine.mutex);
  if (machine.devices.empty()) return {};
  return machine.Current().launches;
}

int ReadPriority(const std::string& name) {
  Machine& machine = TheMachine();
  const Machine::Lock lock(machine.mutex);
  return machine.Current().priorities.at(name);
}

std::map<std::string, Touched> ReadTouched() {
  Machine& machine = TheMachine();
  const Machine::Lock lock(machine.mutex);
  return machine.devices.empty() ? std::map<std::string, Touched>() : machine.Current().touched;
}

void WatchMemory(bool watches) {
  Machine& machine = TheMachine();
  const Machine::Lock lock(machine.mutex);
  machine.watches = watches;
}

void SetDelays(int longest_us, uint64_t seed) {
  Machine& machine = TheMachine();
  const Machine::Lock lock(machine.mutex);
  machine.settings.longest_delay_us = longest_us;
  machine.settings.seed = seed;
  for (GpuDevice& device : machine.devices) {
    for (const auto& stream : device.streams) stream->Seed();
  }
}

void SetHostCopySpeed(double bytes_per_second) { TheMachine().host_copy_speed = bytes_per_second; }

void SetMemoryLimit(int device, int64_t bytes) {
  Machine& machine = TheMachine();
  const Machine::Lock lock(machine.mutex);
  machine.memory.SetLimit(device, static_cast<size_t>(bytes));
}

void FailAt(const std::string& call, int64_t nth, int error) {
  Machine& machine = TheMachine();
  const Machine::Lock lock(machine.mutex);
  machine.failures[call][nth] = error;
}

void FailLater(const std::string& name, int64_t nth, cudaError_t error) {
  Machine& machine = TheMachine();
  const Machine::Lock lock(machine.mutex);
  machine.later_failures[name][nth] = error;
}

std::string DescribeWork() {
  Machine& machine = TheMachine();
  const Machine::Lock lock(machine.mutex);
  return machine.Describe();
}

}  // namespace emulated_gpu

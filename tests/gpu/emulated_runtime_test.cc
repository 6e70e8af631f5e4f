// The emulated CUDA runtime: what is late, what waits, what is refused. Each test begins with a
// fresh machine.
#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/gpu/emulated/device.h"
#include "tests/gpu/emulated/gate.h"

namespace emulated_gpu {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

Settings Quick() {
  Settings settings;
  settings.devices = 2;
  settings.memory_bytes = 8 << 20;
  settings.longest_delay_us = 0;
  settings.eager_loading = true;
  settings.watchdog_seconds = 20;
  settings.end_when_stuck = true;  // a test that hangs says where
  return settings;
}

class EmulatedRuntime : public testing::Test {
 protected:
  EmulatedRuntime() { Restart(Quick()); }
};

void Ok(cudaError_t error) { ASSERT_EQ(error, cudaSuccess) << cudaGetErrorName(error); }

cudaStream_t NewStream(unsigned flags = cudaStreamNonBlocking) {
  cudaStream_t stream = nullptr;
  EXPECT_EQ(cudaStreamCreateWithFlags(&stream, flags), cudaSuccess);
  return stream;
}

cudaEvent_t NewEvent() {
  cudaEvent_t event = nullptr;
  EXPECT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  return event;
}

template <typename T>
T* OnDevice(size_t count) {
  void* pointer = nullptr;
  EXPECT_EQ(cudaMalloc(&pointer, count * sizeof(T)), cudaSuccess);
  return static_cast<T*>(pointer);
}

template <typename T>
T* Pinned(size_t count) {
  void* pointer = nullptr;
  EXPECT_EQ(cudaMallocHost(&pointer, count * sizeof(T)), cudaSuccess);
  return static_cast<T*>(pointer);
}

template <typename T>
std::vector<T> ToHost(const T* device, size_t count) {
  std::vector<T> values(count);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(cudaMemcpy(values.data(), device, count * sizeof(T), cudaMemcpyDeviceToHost),
            cudaSuccess);
  return values;
}

// A kernel that takes `milliseconds` and then stores `value`.
void Store(cudaStream_t stream, int* to, int value, int milliseconds = 0,
           const char* name = "Store") {
  int* const view = static_cast<int*>(HostView(to));
  Ok(Enqueue(stream, name, [=] {
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    *view = value;
  }));
}

// A kernel that adds what `by` is when it runs to what `to` is then.
void AddTo(cudaStream_t stream, int* to, const int* by) {
  int* const sum = static_cast<int*>(HostView(to));
  const int* const addend = static_cast<const int*>(HostView(by));
  Ok(Enqueue(stream, "AddTo", [=] { *sum += *addend; }));
}

// Returns what `work` asks of the stream as a graph that can be launched.
template <typename Work>
cudaGraphExec_t Captured(cudaStream_t stream, const Work& work) {
  Ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  work();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  EXPECT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  return exec;
}

// ---- Streams and events

TEST_F(EmulatedRuntime, WorkOfAStreamRunsInOrder) {
  const cudaStream_t stream = NewStream();
  int* const number = OnDevice<int>(1);
  SetDelays(200, 3);
  for (int i = 0; i < 50; ++i) Store(stream, number, i);
  EXPECT_THAT(ToHost(number, 1), Each(49));
}

// A value that one stream writes late and another one copies. Returns the number of wrong copies.
int WrongCopies(bool with_event) {
  const cudaStream_t writer = NewStream(), reader = NewStream();
  const cudaEvent_t written = NewEvent(), read = NewEvent();
  int* const value = OnDevice<int>(1);
  int* const copies = Pinned<int>(100);
  SetDelays(300, 7);
  for (int i = 0; i < 100; ++i) {
    Store(writer, value, i);
    Ok(cudaEventRecord(written, writer));
    if (with_event) Ok(cudaStreamWaitEvent(reader, written, 0));
    Ok(cudaMemcpyAsync(copies + i, value, sizeof(int), cudaMemcpyDeviceToHost, reader));
    Ok(cudaEventRecord(read, reader));
    Ok(cudaStreamWaitEvent(writer, read, 0));
  }
  Ok(cudaDeviceSynchronize());
  int wrong = 0;
  for (int i = 0; i < 100; ++i) wrong += copies[i] != i;
  return wrong;
}

TEST_F(EmulatedRuntime, AnotherStreamSeesTheValuesBehindAnEvent) {
  EXPECT_EQ(WrongCopies(/*with_event=*/true), 0);
}

#if !defined(__SANITIZE_THREAD__)  // which sees the race itself, and ends the test
TEST_F(EmulatedRuntime, WithoutTheEventItSeesOldValues) {
  EXPECT_GT(WrongCopies(/*with_event=*/false), 3);
}
#endif

TEST_F(EmulatedRuntime, AWaitIsForTheRecordBeforeIt) {
  const cudaStream_t first = NewStream(), second = NewStream(), third = NewStream();
  const cudaEvent_t event = NewEvent();
  int* const value = OnDevice<int>(1);
  Store(first, value, 1, /*milliseconds=*/30);
  Ok(cudaEventRecord(event, first));
  Ok(cudaStreamWaitEvent(third, event, 0));
  Ok(cudaEventRecord(event, second));  // done at once; the wait above is not for this one
  int* const copy = Pinned<int>(1);
  Ok(cudaMemcpyAsync(copy, value, sizeof(int), cudaMemcpyDeviceToHost, third));
  Ok(cudaStreamSynchronize(third));
  EXPECT_EQ(*copy, 1);
}

TEST_F(EmulatedRuntime, TheDefaultStreamIsOrderedWithBlockingStreamsOnly) {
  const cudaStream_t blocking = NewStream(cudaStreamDefault), free = NewStream();
  int* const values = OnDevice<int>(2);
  Ok(cudaMemset(values, 0, 2 * sizeof(int)));
  Ok(cudaDeviceSynchronize());
  Store(blocking, values, 1, /*milliseconds=*/20);
  const Gate gate(free);
  int seen = 0;
  Ok(cudaMemcpy(&seen, values, sizeof(seen), cudaMemcpyDeviceToHost));
  EXPECT_EQ(seen, 1);
  EXPECT_EQ(cudaStreamQuery(free), cudaErrorNotReady);
}

TEST_F(EmulatedRuntime, QueriesSayWhetherWorkHasEnded) {
  const cudaStream_t stream = NewStream();
  const cudaEvent_t event = NewEvent();
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);  // never recorded
  Gate gate(stream);
  Ok(cudaEventRecord(event, stream));
  EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
  EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);
  gate.Open();
  Ok(cudaEventSynchronize(event));
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
  Ok(cudaStreamSynchronize(stream));
  EXPECT_EQ(cudaStreamQuery(stream), cudaSuccess);
}

TEST_F(EmulatedRuntime, EventsMeasureTime) {
  const cudaStream_t stream = NewStream();
  cudaEvent_t begin = nullptr, end = nullptr;
  Ok(cudaEventCreate(&begin));
  Ok(cudaEventCreate(&end));
  int* const value = OnDevice<int>(1);
  Ok(cudaEventRecord(begin, stream));
  Store(stream, value, 1, /*milliseconds=*/20);
  Ok(cudaEventRecord(end, stream));
  Ok(cudaEventSynchronize(end));
  float milliseconds = 0;
  Ok(cudaEventElapsedTime(&milliseconds, begin, end));
  EXPECT_GE(milliseconds, 19);
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, NewEvent(), end), cudaErrorInvalidResourceHandle);
}

TEST_F(EmulatedRuntime, ADestroyedStreamEndsItsWork) {
  const cudaStream_t stream = NewStream();
  int* const value = OnDevice<int>(1);
  Store(stream, value, 5, /*milliseconds=*/20);
  Ok(cudaStreamDestroy(stream));
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorInvalidResourceHandle);
  EXPECT_THAT(ToHost(value, 1), Each(5));
  NewStream();  // clears what has ended away
}

TEST_F(EmulatedRuntime, HostFunctionsRunInOrderAndMayNotCallCuda) {
  const cudaStream_t stream = NewStream();
  static cudaError_t from_within = cudaSuccess;
  Ok(cudaLaunchHostFunc(
      stream, [](void*) { from_within = cudaDeviceSynchronize(); }, nullptr));
  Ok(cudaStreamSynchronize(stream));
  EXPECT_EQ(from_within, cudaErrorNotPermitted);
}

// ---- Hardware queues and idle devices

// One stream is held up; work behind it, and work of another stream behind that.
struct Jam {
  explicit Jam(int connections, bool watched = false) {
    Settings settings = Quick();
    settings.connections = connections;
    if (watched) settings.watchdog_seconds = 0.2;
    Restart(settings);
    const cudaStream_t held = NewStream();
    other = NewStream();
    values = OnDevice<int>(2);  // one for each stream
    gate = std::make_unique<Gate>(held);
    Store(held, values, 1, 0, "BehindTheGate");
    while (DescribeWork().find("Gate runs") == std::string::npos) std::this_thread::yield();
  }

  cudaStream_t other = nullptr;
  int* values = nullptr;
  std::unique_ptr<Gate> gate;
};

TEST_F(EmulatedRuntime, AQueueOfItsOwnIsNotHeldUp) {
  Jam jam(/*connections=*/8);
  Store(jam.other, jam.values + 1, 2);
  Ok(cudaStreamSynchronize(jam.other));
  jam.gate->Open();
  EXPECT_THAT(ToHost(jam.values, 2), testing::ElementsAre(1, 2));
}

TEST_F(EmulatedRuntime, AnotherStreamsWorkIsStuckBehindWorkThatCannotStart) {
  Jam jam(/*connections=*/1);
  Store(jam.other, jam.values + 1, 2, 0, "Stuck");
  EXPECT_EQ(cudaStreamQuery(jam.other), cudaErrorNotReady);
  const std::string text = DescribeWork();
  EXPECT_THAT(text, HasSubstr("stream 1: Gate runs; 1 queued"));
  EXPECT_THAT(text, HasSubstr("stream 2: Stuck waits behind BehindTheGate of device 0 stream 1"));
  jam.gate->Open();
  EXPECT_THAT(ToHost(jam.values, 2), testing::ElementsAre(1, 2));
}

TEST(EmulatedRuntimeDeathTest, TheWatchdogNamesWhatIsStuck) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_DEATH(
      {
        Jam jam(/*connections=*/1, /*watched=*/true);
        Store(jam.other, jam.values + 1, 2, 0, "Stuck");
        cudaStreamSynchronize(jam.other);
      },
      "nothing has moved(.|\n)*Stuck waits behind BehindTheGate(.|\n)*a host thread waits in "
      "cudaStreamSynchronize of device 0 stream 2");
}

TEST(EmulatedRuntimeDeathTest, FreeingMemoryWaitsForASpinningKernel) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_DEATH(
      {
        Jam jam(/*connections=*/8, /*watched=*/true);
        cudaFree(OnDevice<int>(1));
      },
      "a host thread waits in cudaMalloc, which needs an idle device 0");
}

TEST_F(EmulatedRuntime, AKernelThatIsLoadedLateWaitsForAnIdleDevice) {
  for (const bool eager : {true, false}) {
    Settings settings = Quick();
    settings.eager_loading = eager;
    Restart(settings);
    const cudaStream_t busy = NewStream(), other = NewStream();
    int* const value = OnDevice<int>(1);
    Gate gate(busy);
    std::atomic<bool> launched = false;
    std::thread opener([&] {
      while (!launched && DescribeWork().find("the first launch of First") == std::string::npos) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      if (!launched) gate.Open();
    });
    Store(other, value, 1, 0, "First");
    launched = true;
    EXPECT_EQ(cudaStreamQuery(busy), eager ? cudaErrorNotReady : cudaSuccess);
    opener.join();
  }
}

// ---- Memory

TEST(EmulatedRuntimeDeathTest, TheHostCannotReadDeviceMemory) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_DEATH(
      {
        Restart(Quick());
        const volatile int* const values = OnDevice<int>(1);
        const int value = values[0];
        std::exit(value - value);
      },
      "");
}

TEST_F(EmulatedRuntime, MemoryIsNanBeforeItIsWrittenAndAfterItIsFreed) {
  float* const values = OnDevice<float>(100);
  for (const float value : ToHost(values, 100)) EXPECT_TRUE(value != value);
  Ok(cudaMemset(values, 0, 100 * sizeof(float)));
  EXPECT_THAT(ToHost(values, 100), Each(0.0F));
  Ok(cudaFree(values));
  float* const again = OnDevice<float>(100);
  EXPECT_EQ(again, values);
  for (const float value : ToHost(again, 100)) EXPECT_TRUE(value != value);
}

TEST_F(EmulatedRuntime, MemoryHasALimit) {
  size_t free = 0, total = 0;
  char* const half = OnDevice<char>(4 << 20);
  Ok(cudaMemGetInfo(&free, &total));
  EXPECT_EQ(total, size_t{8} << 20);
  EXPECT_EQ(free, size_t{4} << 20);
  void* pointer = nullptr;
  EXPECT_EQ(cudaMalloc(&pointer, (4 << 20) + 1), cudaErrorMemoryAllocation);
  EXPECT_EQ(pointer, nullptr);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&pointer, std::numeric_limits<size_t>::max()), cudaErrorMemoryAllocation);
  Ok(cudaMalloc(&pointer, 4 << 20));
  Ok(cudaFree(pointer));
  Ok(cudaFree(half));
  Ok(cudaMalloc(&pointer, 8 << 20));
  Ok(cudaSetDevice(1));
  Ok(cudaMalloc(&pointer, 8 << 20));
}

TEST(EmulatedRuntimeDeathTest, AKernelThatWritesOutOfBoundsIsSeen) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  for (const int at : {-1, 100}) {
    EXPECT_DEATH(
        {
          Restart(Quick());
          int* const values = OnDevice<int>(100);
          Store(nullptr, values, 1);
          int* const view = static_cast<int*>(HostView(values));
          Enqueue(nullptr, "TooFar", [=] { view[at] = 0; });
          cudaFree(values);
        },
        at < 0 ? "at byte -4|use-after-poison" : "at byte 400|use-after-poison");
  }
}

TEST(EmulatedRuntimeDeathTest, LaunchesOnFreedMemoryAreNamed) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_DEATH(
      {
        Restart(Quick());
        int* const values = OnDevice<int>(100);
        cudaFree(values);
        Store(nullptr, values, 1);
      },
      "lies in no block, or in a freed one");
  EXPECT_DEATH(
      {
        Restart(Quick());
        const cudaStream_t stream = NewStream();
        int* const values = OnDevice<int>(100);
        cudaFreeAsync(values, stream);
        Store(stream, values, 1);
      },
      "block 1 \\(400 B of device 0\\), which was freed before");
}

TEST(EmulatedRuntimeDeathTest, MemoryFreedWhileAnotherStreamUsesItIsNamed) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_DEATH(
      {
        Restart(Quick());
        const cudaStream_t stream = NewStream();
        const cudaStream_t other = NewStream();
        int* const values = OnDevice<int>(100);
        Store(other, values, 1, /*milliseconds=*/100, "Reader");
        cudaFreeAsync(values, stream);
        cudaDeviceSynchronize();
      },
      "cudaFreeAsync on device 0 stream 1 frees block 1 .400 B of device 0., but Reader on device "
      "0 "
      "stream 2 uses it");
}

TEST_F(EmulatedRuntime, FreedMemoryIsKeptUntilQueuedWorkHasEnded) {
  const cudaStream_t stream = NewStream(), other = NewStream();
  int* const freed = OnDevice<int>(1);
  Gate gate(other);
  Ok(cudaFreeAsync(freed, stream));
  Ok(cudaStreamSynchronize(stream));
  void* pointer = nullptr;
  Ok(cudaMallocAsync(&pointer, sizeof(int), stream));
  EXPECT_NE(pointer, freed);
  gate.Open();
  Ok(cudaDeviceSynchronize());
  Ok(cudaMallocAsync(&pointer, sizeof(int), stream));
  EXPECT_EQ(pointer, freed);
}

// ---- Copies

TEST_F(EmulatedRuntime, ACopyFromPageableMemoryIsStagedAndOneFromPinnedMemoryIsNot) {
  const cudaStream_t stream = NewStream();
  int* const values = OnDevice<int>(2);
  int* const pinned = Pinned<int>(1);
  int pageable = 1;
  *pinned = 1;
  Gate gate(stream);
  Ok(cudaMemcpyAsync(values, &pageable, sizeof(int), cudaMemcpyHostToDevice, stream));
  EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);  // nobody has waited
  Ok(cudaMemcpyAsync(values + 1, pinned, sizeof(int), cudaMemcpyHostToDevice, stream));
  pageable = *pinned = 2;
  gate.Open();
  EXPECT_THAT(ToHost(values, 2), testing::ElementsAre(1, 2));
}

TEST_F(EmulatedRuntime, ACopyToPageableMemoryWaits) {
  const cudaStream_t stream = NewStream();
  int* const value = OnDevice<int>(1);
  Store(stream, value, 3, /*milliseconds=*/30);
  int seen = 0;
  Ok(cudaMemcpyAsync(&seen, value, sizeof(int), cudaMemcpyDeviceToHost, stream));
  EXPECT_EQ(seen, 3);
  EXPECT_EQ(ReadCounters().waits, 2);  // and the allocation
}

TEST_F(EmulatedRuntime, WrongDirectionsAndBoundsAreRefused) {
  int* const device = OnDevice<int>(4);
  int host[4] = {};
  EXPECT_EQ(cudaMemcpy(device, host, 16, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(host, device, 16, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(device, host, 16, cudaMemcpyDeviceToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(device + 1, host, 16, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemset(device, 0, 17), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemset(host, 0, 16), cudaErrorInvalidValue);
  Ok(cudaMemcpy(device, host, 16, cudaMemcpyDefault));
  Ok(cudaMemcpy(device, host, 16, cudaMemcpyHostToDevice));
}

TEST_F(EmulatedRuntime, RowsAreCopiedBetweenPitches) {
  int* const device = OnDevice<int>(12);
  Ok(cudaMemset(device, 0, 48));
  Ok(cudaDeviceSynchronize());
  std::vector<int> host(6);
  std::iota(host.begin(), host.end(), 1);
  Ok(cudaMemcpy2D(device + 1, 16, host.data(), 8, 8, 3, cudaMemcpyHostToDevice));
  EXPECT_THAT(ToHost(device, 12), testing::ElementsAre(0, 1, 2, 0, 0, 3, 4, 0, 0, 5, 6, 0));
  std::vector<int> back(6);
  Ok(cudaMemcpy2D(back.data(), 8, device + 1, 16, 8, 3, cudaMemcpyDeviceToHost));
  EXPECT_EQ(back, host);
}

TEST_F(EmulatedRuntime, PointersSayWhereTheyPoint) {
  cudaPointerAttributes attributes;
  Ok(cudaSetDevice(1));
  Ok(cudaPointerGetAttributes(&attributes, OnDevice<int>(4) + 2));
  EXPECT_EQ(attributes.type, cudaMemoryTypeDevice);
  EXPECT_EQ(attributes.device, 1);
  Ok(cudaPointerGetAttributes(&attributes, Pinned<int>(1)));
  EXPECT_EQ(attributes.type, cudaMemoryTypeHost);
  Ok(cudaPointerGetAttributes(&attributes, &attributes));
  EXPECT_EQ(attributes.type, cudaMemoryTypeUnregistered);
}

// ---- Devices, errors, counters

TEST_F(EmulatedRuntime, DevicesAreCountedAndMasked) {
  int count = 0;
  Ok(cudaGetDeviceCount(&count));
  EXPECT_EQ(count, 2);
  EXPECT_EQ(cudaSetDevice(2), cudaErrorInvalidDevice);
  setenv("CUDA_VISIBLE_DEVICES", "1,7,0", 1);
  Restart(Quick());
  Ok(cudaGetDeviceCount(&count));
  EXPECT_EQ(count, 1);
  cudaDeviceProp properties;
  Ok(cudaGetDeviceProperties(&properties, 0));
  EXPECT_EQ(properties.pciBusID, 1);
  EXPECT_EQ(properties.major, 9);
  setenv("CUDA_VISIBLE_DEVICES", "", 1);
  Restart(Quick());
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaErrorNoDevice);
  EXPECT_EQ(count, 0);
  unsetenv("CUDA_VISIBLE_DEVICES");
}

TEST_F(EmulatedRuntime, SettingsComeFromTheEnvironment) {
  const std::pair<const char*, const char*> variables[] = {
      {"DEEPNET_EMULATED_DEVICES", "3"},     {"DEEPNET_EMULATED_MEMORY_MIB", "5"},
      {"CUDA_DEVICE_MAX_CONNECTIONS", "2"},  {"CUDA_MODULE_LOADING", "EAGER"},
      {"DEEPNET_EMULATED_CAPABILITY", "80"}, {"DEEPNET_EMULATED_DRIVER", "13010"},
      {"DEEPNET_EMULATED_SEED", "9"},        {"DEEPNET_EMULATED_DELAY_US", "7"},
      {"DEEPNET_EMULATED_WATCHDOG_S", "4"},  {"DEEPNET_EMULATED_FAIL", "cudaMalloc:1:2"}};
  for (const auto& [name, value] : variables) setenv(name, value, 1);
  const Settings settings = SettingsOfEnvironment();
  for (const auto& [name, value] : variables) unsetenv(name);
  EXPECT_EQ(settings.devices, 3);
  EXPECT_EQ(settings.memory_bytes, 5 << 20);
  EXPECT_EQ(settings.connections, 2);
  EXPECT_TRUE(settings.eager_loading);
  EXPECT_EQ(settings.capability, 80);
  EXPECT_EQ(settings.driver_version, 13010);
  EXPECT_EQ(settings.seed, 9U);
  EXPECT_EQ(settings.longest_delay_us, 7);
  EXPECT_EQ(settings.watchdog_seconds, 4);
  EXPECT_EQ(settings.fail, "cudaMalloc:1:2");
  EXPECT_EQ(SettingsOfEnvironment().devices, 8);
}

TEST_F(EmulatedRuntime, AnOldDriverIsRefused) {
  Settings settings = Quick();
  settings.driver_version = 12040;
  Restart(settings);
  int count = 0;
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaErrorInsufficientDriver);
}

TEST_F(EmulatedRuntime, TheNthCallFailsAsAsked) {
  FailAt("cudaMalloc", 2, cudaErrorMemoryAllocation);
  void* pointer = nullptr;
  Ok(cudaMalloc(&pointer, 1));
  EXPECT_EQ(cudaMalloc(&pointer, 1), cudaErrorMemoryAllocation);
  Ok(cudaMalloc(&pointer, 1));
  Settings settings = Quick();
  settings.fail = "cudaMemset:1:1,later:Store:2:700";
  Restart(settings);
  int* const value = OnDevice<int>(1);
  EXPECT_EQ(cudaMemset(value, 0, 4), cudaErrorInvalidValue);
  Store(nullptr, value, 1);
  Ok(cudaDeviceSynchronize());
  Store(nullptr, value, 2);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaMemset(value, 0, 4), cudaErrorIllegalAddress);
  EXPECT_STREQ(cudaGetErrorString(cudaErrorIllegalAddress),
               "an illegal memory access was encountered");
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
}

TEST_F(EmulatedRuntime, LaunchesCopiesAndAllocationsAreCounted) {
  const cudaStream_t stream = NewStream();
  int* const values = OnDevice<int>(10);
  Store(stream, values, 1);
  Store(stream, values, 1);
  Store(stream, values, 1, 0, "Other");
  Ok(cudaMemsetAsync(values, 0, 8, stream));
  Ok(cudaStreamSynchronize(stream));
  const Counters counters = ReadCounters();
  EXPECT_EQ(counters.launches, 3);
  EXPECT_EQ(counters.copies, 1);
  EXPECT_EQ(counters.waits, 2);
  EXPECT_EQ(counters.allocations, 1);
  EXPECT_EQ(counters.allocated_bytes, 40);
  EXPECT_EQ(ReadLaunches()["Store"], 2);
  EXPECT_EQ(ReadLaunches()["Other"], 1);
  Ok(cudaSetDevice(1));
  EXPECT_EQ(ReadCounters().launches, 0);
}

// ---- Graphs

TEST_F(EmulatedRuntime, AGraphRunsWhatWasRecordedWithItsArgumentsAndReadsMemoryAsItIs) {
  const cudaStream_t stream = NewStream();
  int* const sum = OnDevice<int>(2);
  int* const addend = sum + 1;
  Ok(cudaMemsetAsync(sum, 0, 2 * sizeof(int), stream));
  int argument = 5;
  const cudaGraphExec_t graph = Captured(stream, [&] {
    Store(stream, sum, argument);
    AddTo(stream, sum, addend);
  });
  argument = 6;                          // too late: it was copied
  EXPECT_THAT(ToHost(sum, 1), Each(0));  // nothing has run
  for (const int now : {10, 20}) {
    Store(stream, addend, now);
    Ok(cudaGraphLaunch(graph, stream));
    EXPECT_THAT(ToHost(sum, 1), Each(5 + now));
  }
  Ok(cudaGraphExecDestroy(graph));
}

TEST_F(EmulatedRuntime, AGraphIsOneLaunchInTheOrderOfItsStream) {
  const cudaStream_t stream = NewStream();
  int* const number = OnDevice<int>(1);
  SetDelays(200, 3);
  const cudaGraphExec_t graph = Captured(stream, [&] {
    for (int i = 0; i < 3; ++i) AddTo(stream, number, number);
    Ok(cudaMemsetAsync(number + 1, 0, 0, stream));
  });
  const Counters before = ReadCounters();
  Store(stream, number, 1);
  for (int i = 0; i < 2; ++i) Ok(cudaGraphLaunch(graph, stream));
  Ok(cudaGraphExecDestroy(graph));  // what was launched goes on
  EXPECT_THAT(ToHost(number, 1), Each(64));
  const Counters after = ReadCounters();
  EXPECT_EQ(after.launches - before.launches, 3);
  EXPECT_EQ(after.replayed - before.replayed, 6);
  EXPECT_EQ(ReadLaunches()["cudaGraphLaunch"], 2);
}

TEST_F(EmulatedRuntime, CallsThatACaptureDoesNotAllowAreRefusedAndEndIt) {
  const cudaStream_t stream = NewStream(), other = NewStream();
  int* const value = OnDevice<int>(1);
  const auto refused = [&](auto call) {
    Ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    EXPECT_EQ(call(), cudaErrorStreamCaptureUnsupported);
    Store(stream, value, 1);
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
    EXPECT_EQ(graph, nullptr);
    cudaGetLastError();
  };
  void* memory = nullptr;
  const cudaEvent_t event = NewEvent();
  refused([&] { return cudaMalloc(&memory, 8); });
  refused([&] { return cudaMallocHost(&memory, 8); });
  refused([&] { return cudaFree(value); });
  refused([&] { return cudaStreamSynchronize(other); });
  refused([&] { return cudaDeviceSynchronize(); });
  refused([&] { return cudaEventRecord(event, stream); });
  refused([&] { return cudaEventQuery(event); });
  refused([&] { return cudaStreamWaitEvent(stream, event, 0); });
  int host = 0;
  refused([&] { return cudaMemcpy(&host, value, sizeof(int), cudaMemcpyDeviceToHost); });
  Store(stream, value, 3);  // the stream is as before
  EXPECT_THAT(ToHost(value, 1), Each(3));
}

TEST(EmulatedRuntimeDeathTest, WhatAGraphCannotHoldIsNamed) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const auto capture = [](bool eager, auto work) {
    Settings settings = Quick();
    settings.eager_loading = eager;
    Restart(settings);
    const cudaStream_t stream = NewStream();
    int* const value = OnDevice<int>(1);
    Ok(cudaGraphLaunch(Captured(stream, [&] { work(stream, value); }), stream));
  };
  EXPECT_DEATH(capture(false, [](auto stream, int* value) { Store(stream, value, 1); }),
               "Store would be loaded in the capture of device 0 stream 1");
  EXPECT_DEATH(
      capture(true,
              [](auto stream, int* value) {
                int host = 0;
                Ok(cudaMemcpyAsync(value, &host, sizeof(int), cudaMemcpyHostToDevice, stream));
              }),
      "cudaMemcpyAsync of pageable memory in the capture");
  EXPECT_DEATH(
      {
        Restart(Quick());
        const cudaStream_t stream = NewStream();
        int* const value = OnDevice<int>(1);
        const cudaGraphExec_t graph = Captured(stream, [&] { Store(stream, value, 1); });
        Ok(cudaFree(value));
        cudaGraphLaunch(graph, stream);
      },
      "cudaGraphLaunch: Store uses block .*, which was freed since it was captured");
}

TEST_F(EmulatedRuntime, WorkIsLate) {
  const cudaStream_t stream = NewStream();
  int* const value = OnDevice<int>(1);
  SetDelays(4000, 1);
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 40; ++i) Store(stream, value, i);
  Ok(cudaStreamSynchronize(stream));
  EXPECT_GT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(4));
}

}  // namespace
}  // namespace emulated_gpu

// LibTorch's tensors on the emulated GPUs: what they can do, and that they can do nothing else.
#include <cuda_runtime_api.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/gpu/emulated/device.h"
#include "tests/gpu/emulated/gate.h"
#include "tests/gpu/emulated/torch_device.h"
#include "trainer/kernels/aten.h"

namespace emulated_gpu {
namespace {

using ::testing::HasSubstr;

void Ok(cudaError_t error) { ASSERT_EQ(error, cudaSuccess) << cudaGetErrorName(error); }

class EmulatedTorchDevice : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    Settings settings;
    settings.eager_loading = true;  // first launches wait for nobody
    Restart(settings);
  }

  EmulatedTorchDevice() {
    Ok(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    SetCurrentStream(stream_);
  }
  ~EmulatedTorchDevice() override {
    Ok(cudaDeviceSynchronize());
    SetCurrentStream(nullptr);
    EmptyCache();
  }

  cudaStream_t stream_ = nullptr;
};

at::TensorOptions Gpu(int index = 0) {
  return at::TensorOptions().device(TorchDevice(index)).dtype(at::kFloat);
}

at::Tensor Counting(at::IntArrayRef shape) {
  return at::arange(c10::multiply_integers(shape), at::kFloat).view(shape);
}

// The text of what `call` throws, or "nothing".
template <typename Call>
std::string TextThrownBy(const Call& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "nothing";
}

TEST_F(EmulatedTorchDevice, TensorsAreMadeOnTheirDevice) {
  const at::Tensor x = at::empty({4, 6}, Gpu(3));
  EXPECT_EQ(x.device().str(), "cuda_emulated:3");
  EXPECT_EQ(at::Device("cuda_emulated:3"), x.device());
  EXPECT_FALSE(x.is_cpu());
  cudaPointerAttributes attributes;
  Ok(cudaPointerGetAttributes(&attributes, x.data_ptr()));
  EXPECT_EQ(attributes.type, cudaMemoryTypeDevice);
  EXPECT_EQ(attributes.device, 3);
  int device = -1;
  Ok(cudaGetDevice(&device));
  EXPECT_EQ(device, 0);  // the thread's current one stays
}

TEST_F(EmulatedTorchDevice, NewTensorsAreNan) {
  EXPECT_TRUE(at::empty({5}, Gpu()).cpu().isnan().all().item<bool>());
}

TEST_F(EmulatedTorchDevice, TensorsAreCopiedAndViewed) {
  const at::Tensor host = Counting({4, 6});
  const at::Tensor x = host.to(Gpu().device());
  EXPECT_TRUE(x.cpu().equal(host));
  EXPECT_TRUE(x.clone().cpu().equal(host));
  EXPECT_TRUE(x.narrow(0, 1, 2).cpu().equal(host.narrow(0, 1, 2)));
  EXPECT_TRUE(x.view({2, 12}).select(0, 1).cpu().equal(host.view({2, 12}).select(0, 1)));
  EXPECT_TRUE(x.reshape({24}).slice(0, 3, 7).cpu().equal(host.view({24}).slice(0, 3, 7)));
  EXPECT_TRUE(x.view(at::kInt).cpu().equal(host.view(at::kInt)));
  EXPECT_TRUE(at::zeros({3}, Gpu()).cpu().equal(at::zeros({3})));
  EXPECT_EQ(at::empty({0, 3}, Gpu()).cpu().numel(), 0);
}

TEST_F(EmulatedTorchDevice, ColumnsOfWiderTensorsAreCopiedAndZeroed) {
  const at::Tensor host = Counting({4, 6});
  const at::Tensor x = host.to(Gpu().device());
  EXPECT_TRUE(x.slice(1, 2, 5).cpu().equal(host.slice(1, 2, 5)));
  const at::Tensor y = at::zeros({4, 6}, Gpu());
  y.slice(1, 0, 2).copy_(host.slice(1, 4, 6));
  y.slice(1, 4, 6).copy_(x.slice(1, 0, 2));
  const at::Tensor want = at::zeros({4, 6});
  want.slice(1, 0, 2).copy_(host.slice(1, 4, 6));
  want.slice(1, 4, 6).copy_(host.slice(1, 0, 2));
  EXPECT_TRUE(y.cpu().equal(want));
  y.slice(1, 0, 1).zero_();
  want.slice(1, 0, 1).zero_();
  EXPECT_TRUE(y.cpu().equal(want));
  EXPECT_THAT(TextThrownBy([&] { x.t().contiguous(); }), HasSubstr("only contiguous rows"));
  EXPECT_THAT(TextThrownBy([&] { y.copy_(host.to(at::kDouble)); }), HasSubstr("only Ops converts"));
}

TEST_F(EmulatedTorchDevice, EverythingElseIsRefusedByName) {
  const at::Tensor x = at::zeros({4, 6}, Gpu()), host = Counting({4, 6});
  const auto refused = [](const char* name) {
    return testing::AllOf(HasSubstr(std::string("emulated GPU: aten::") + name),
                          HasSubstr("is no operation of this device: arithmetic goes through Ops"));
  };
  EXPECT_THAT(TextThrownBy([&] { x.add(x); }), refused("add."));
  EXPECT_THAT(TextThrownBy([&] { x.mul_(2); }), refused("mul."));
  EXPECT_THAT(TextThrownBy([&] { x.fill_(1); }), refused("fill_."));
  EXPECT_THAT(TextThrownBy([&] { x.sum(); }), refused("sum"));
  EXPECT_THAT(TextThrownBy([&] { x.sum().item(); }), refused("sum"));
  EXPECT_THAT(TextThrownBy([&] { x.select(0, 0).select(0, 0).item(); }),
              refused("_local_scalar_dense"));
  EXPECT_THAT(TextThrownBy([&] { at::cat({x, x}); }), refused("cat"));
  EXPECT_THAT(TextThrownBy([&] { x.resize_({100}); }), refused("resize_"));
  EXPECT_THAT(TextThrownBy([&] { host.add(x); }), testing::Not("nothing"));
  EXPECT_THAT(TextThrownBy([&] { x.to(at::kBFloat16); }), HasSubstr("only Ops converts"));
}

TEST_F(EmulatedTorchDevice, WorkIsInTheOrderOfTheCurrentStream) {
  const at::Tensor x = at::zeros({1}, Gpu());
  float* const view = static_cast<float*>(HostView(x.data_ptr()));
  const at::Tensor copy = at::empty({1}, Gpu());
  Gate gate(stream_);
  Ok(Enqueue(stream_, "Five", [=] { *view = 5; }));
  copy.copy_(x);  // on the device: nobody waits
  gate.Open();
  EXPECT_EQ(copy.cpu().item<float>(), 5);
}

TEST_F(EmulatedTorchDevice, CopiesOfPinnedTensorsNeedNotWait) {
  const at::Tensor x = at::zeros({1}, Gpu());
  float* const view = static_cast<float*>(HostView(x.data_ptr()));
  at::Tensor pinned = at::empty({1}, at::TensorOptions().dtype(at::kFloat).pinned_memory(true));
  EXPECT_TRUE(pinned.is_pinned());
  EXPECT_FALSE(at::zeros({1}).is_pinned());
  *pinned.data_ptr<float>() = 0;
  Gate gate(stream_);
  Ok(Enqueue(stream_, "Five", [=] { *view = 5; }));
  pinned.copy_(x, /*non_blocking=*/true);
  EXPECT_EQ(cudaStreamQuery(stream_), cudaErrorNotReady);
  gate.Open();
  Ok(cudaStreamSynchronize(stream_));
  EXPECT_EQ(pinned.item<float>(), 5);
}

TEST_F(EmulatedTorchDevice, FreedMemoryIsUsedAgainAtOnceOnItsStreamOnly) {
  const auto before = ReadCounters().allocations;
  at::Tensor x = at::empty({1000}, Gpu());
  const void* const address = x.data_ptr();
  const auto allocated = ReadTensorMemory(0).allocated;
  x.reset();
  EXPECT_EQ(ReadTensorMemory(0).allocated, allocated - 4096);
  x = at::empty({1000}, Gpu());
  EXPECT_EQ(x.data_ptr(), address);
  x.reset();
  EXPECT_EQ(ReadCounters().allocations, before + 1);
  cudaStream_t other = nullptr;
  Ok(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  SetCurrentStream(other);
  x = at::empty({1000}, Gpu());
  EXPECT_NE(x.data_ptr(), address);
  EXPECT_EQ(ReadCounters().allocations, before + 2);
}

// The mutant of every test of lifetimes: memory is freed while another stream still reads it.
TEST_F(EmulatedTorchDevice, ABufferFreedWhileAnotherStreamReadsItIsNan) {
  cudaStream_t other = nullptr;
  Ok(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  at::Tensor x = at::zeros({1000}, Gpu());
  Ok(cudaStreamSynchronize(stream_));
  float* const view = static_cast<float*>(HostView(x.data_ptr()));
  std::vector<float> seen(1000);
  Gate gate(other);
  Ok(Enqueue(other, "Reader", [=, &seen] { std::copy(view, view + 1000, seen.begin()); }));
  x.reset();
  x = at::empty({1000}, Gpu());
  Ok(cudaStreamSynchronize(stream_));
  gate.Open();
  Ok(cudaDeviceSynchronize());
  EXPECT_TRUE(seen[0] != seen[0]);
}

TEST_F(EmulatedTorchDevice, MemoryThatIsNotThereIsNamedWithItsSizes) {
  const at::Tensor some = at::empty({1 << 20}, Gpu());
  bool of_its_type = false;
  std::string text;
  try {
    at::empty({int64_t{1} << 40}, Gpu());
  } catch (const c10::OutOfMemoryError& error) {
    of_its_type = true;
    text = error.what_without_backtrace();
  }
  EXPECT_TRUE(of_its_type);
  EXPECT_THAT(text, HasSubstr("CUDA out of memory. Tried to allocate 4398046511104 B. GPU 0 has a "
                              "total capacity of 2147483648 B"));
  EXPECT_THAT(text, HasSubstr("Tensors hold 4194304 B"));
  EXPECT_TRUE(at::zeros({2}, Gpu()).cpu().equal(at::zeros({2})));  // and life goes on
}

TEST_F(EmulatedTorchDevice, CachedMemoryIsGivenBackWhereItIsNeeded) {
  at::Tensor x = at::empty({int64_t{300} << 20}, Gpu());  // 1.2 GB of 2.1
  x.reset();
  EXPECT_NO_THROW(x = at::empty({int64_t{400} << 20}, Gpu()));
}

TEST(EmulatedTorchDeviceDeathTest, TheHostCannotReadATensor) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_DEATH(std::exit(static_cast<int>(*at::zeros({1}, Gpu()).data_ptr<float>())), "");
}

}  // namespace
}  // namespace emulated_gpu

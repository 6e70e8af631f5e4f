// A kernel for GPUs beside its twin for CPUs: the same arguments, the same numbers, in host memory
// for the one and in device memory for the other.
//
// Example:
//   Twin twin;
//   TwinMatrix& x = twin.RandomMatrix(Element::kBfloat16, rows, cols, /*seed=*/1);
//   TwinMatrix& y = twin.NewMatrix(Element::kBfloat16, rows, cols);
//   twin.Run([&] { native::Gelu(cpu, x.at(kCpu), y.at(kCpu)); },
//            [&](GpuStream& gpu) { Gelu(gpu, x.at(kGpu), y.at(kGpu)); });
//   ExpectClose(y, /*ulps=*/2);
//
// Run calls the kernel for GPUs once for each order of threads, every time on the same memory, and
// expects the same bits in all of it, inputs and the margins beside matrices included.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trainer/kernels/cuda/gpu_stream.h"
#include "trainer/kernels/native/cpu.h"
#include "trainer/kernels/native/isa.h"
#include "trainer/kernels/native/matrix.h"

namespace deepnet::cuda::testing {

using native::Element;

enum Side { kCpu, kGpu };

// Memory on both sides with the same bytes at first.
class TwinMemory {
 public:
  // `offset` bytes of the device's memory stay free in front: 0 is an aligned address.
  TwinMemory(std::vector<unsigned char> initial, int64_t offset);
  ~TwinMemory();
  TwinMemory(const TwinMemory&) = delete;
  TwinMemory& operator=(const TwinMemory&) = delete;

  void ResetHost() { host_.assign(initial_.begin(), initial_.end()); }
  void ResetDevice();
  void ReadDevice();  // into device_bytes()

  void* data(Side side) {
    return side == kCpu ? static_cast<void*>(host_.data()) : device_ + offset_;
  }
  const std::vector<unsigned char>& host_bytes() const { return host_; }
  const std::vector<unsigned char>& device_bytes() const { return read_; }
  const std::vector<unsigned char>& initial_bytes() const { return initial_; }

 private:
  const std::vector<unsigned char> initial_;
  std::vector<unsigned char> host_, read_;
  const int64_t offset_;
  unsigned char* device_ = nullptr;
};

// An array of T; the first one in device memory may stand at an odd address of T.
template <typename T>
class TwinArray {
 public:
  explicit TwinArray(TwinMemory& memory) : memory_(memory) {}
  T* at(Side side) { return static_cast<T*>(memory_.data(side)); }
  std::vector<T> Cpu() const { return Of(memory_.host_bytes()); }
  std::vector<T> Gpu() const { return Of(memory_.device_bytes()); }

 private:
  static std::vector<T> Of(const std::vector<unsigned char>& bytes);
  TwinMemory& memory_;
};

// A matrix with `margin` columns beside those in view. Kernels for CPUs have no float16: their side
// then holds the same numbers in float32.
class TwinMatrix {
 public:
  TwinMatrix(TwinMemory& cpu, TwinMemory& gpu, Element element, int64_t rows, int64_t cols,
             int64_t stride);
  native::Matrix at(Side side);
  Element element() const { return element_; }
  int64_t cols() const { return cols_; }
  std::vector<double> Cpu() const;  // the columns in view
  std::vector<double> Gpu() const;
  bool MarginIsUntouched() const;

 private:
  Element CpuElement() const;
  std::vector<double> Values(const std::vector<unsigned char>& bytes, Element element,
                             int64_t first, int64_t end) const;

  TwinMemory& cpu_;
  TwinMemory& gpu_;
  Element element_;
  int64_t rows_, cols_, stride_;
};

// How matrices and arrays of a test lie in memory.
struct Layout {
  int64_t margin = 0;  // columns of matrices
  int64_t offset = 0;  // elements in front of them in device memory
};

class Twin {
 public:
  explicit Twin(Layout layout = {}) : layout_(layout) {}

  // Normal numbers with deviation `scale`, rounded to the element.
  TwinMatrix& RandomMatrix(Element element, int64_t rows, int64_t cols, uint32_t seed,
                           float scale = 1.0f);
  TwinMatrix& MatrixOf(Element element, int64_t rows, int64_t cols,
                       const std::vector<float>& values);
  TwinMatrix& NewMatrix(Element element, int64_t rows, int64_t cols);  // of NaN

  // Contiguous float32, behind the layout's offset.
  TwinArray<float>& RandomFloats(int64_t n, uint32_t seed, float scale = 1.0f);
  TwinArray<float>& Floats(const std::vector<float>& values);
  TwinArray<float>& NewFloats(int64_t n);
  TwinArray<uint8_t>& RandomBytes(int64_t n);
  TwinArray<uint32_t>& Numbers(const std::vector<uint32_t>& values);

  void Run(const std::function<void()>& cpu, const std::function<void(GpuStream&)>& gpu);

  int64_t launches() const { return launches_; }  // of the last Run, in one order

 private:
  template <typename T>
  TwinMemory& Add(const std::vector<T>& values, int64_t offset_elements);

  const Layout layout_;
  std::vector<std::unique_ptr<TwinMemory>> memory_;
  std::vector<std::unique_ptr<TwinMatrix>> matrices_;
  std::vector<std::unique_ptr<TwinArray<float>>> floats_;
  std::vector<std::unique_ptr<TwinArray<uint8_t>>> bytes_;
  std::vector<std::unique_ptr<TwinArray<uint32_t>>> numbers_;
  int64_t launches_ = 0;
};

// |gpu - cpu| <= ulps * 2^-24 * the largest magnitude on the CPU's side, and for two-byte elements
// one unit in the last place of the number itself, in at most one of fifty numbers where both sides
// round to the element.
void ExpectClose(const TwinMatrix& matrix, double ulps);
void ExpectClose(const TwinArray<float>& array, double ulps);

// Every bit is the same.
void ExpectSame(const TwinMatrix& matrix);
template <typename T>
void ExpectSame(const TwinArray<T>& array);

// The CPU's side of every test.
native::Cpu& TheCpu();

// Pairs and positions of rows: sentences of five tokens.
struct TwinIds {
  TwinIds(Twin& twin, int64_t rows);
  PackedRows at(Side side) { return {.positions = position->at(side), .pairs = pair->at(side)}; }
  TwinArray<uint32_t>* pair;
  TwinArray<uint32_t>* position;
};

// All of `cases`; under ThreadSanitizer, where every thread of a block takes a millisecond, each
// n-th one.
template <typename T>
std::vector<T> Some(const std::vector<T>& cases, size_t n) {
#if defined(EMULATED_GPU_TSAN)
  std::vector<T> some;
  for (size_t i = n / 2; i < cases.size(); i += n) some.push_back(cases[i]);
  return some;
#else
  (void)n;
  return cases;
#endif
}

inline const std::vector<Element> kElements = {Element::kFloat32, Element::kBfloat16,
                                               Element::kFloat16};
std::string NameOf(Element element);

}  // namespace deepnet::cuda::testing

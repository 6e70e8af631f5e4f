// Parts of the tests of GPU kernels: device memory with its contents on the host, matrices of every
// element, comparison with what the CPU's kernel of the same arguments computes, and the orders of
// threads that must give the same bits.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <gtest/gtest.h>

#include "tests/gpu/kernels/thread_orders.h"
#include "trainer/kernels/cuda/gpu_stream.h"
#include "trainer/kernels/native/matrix.h"

namespace deepnet::cuda::testing {

using native::Element;

// A copy from pageable memory may return before the device has the data, and the streams of kernels
// do not wait for it.
inline void CopyToDevice(void* device, const void* host, size_t bytes) {
  EXPECT_EQ(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
}

// Memory of the device that begins with known bytes: those of NaN where nothing is given. None has
// no address.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t n) : size_(n) {
    EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&data_), n * sizeof(T)), cudaSuccess);
    const std::vector<uint8_t> bytes(n * sizeof(T), 0xff);
    CopyToDevice(data_, bytes.data(), bytes.size());
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    CopyToDevice(data_, values.data(), size_ * sizeof(T));
  }
  DeviceArray(DeviceArray&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(other.size_) {}
  ~DeviceArray() { cudaFree(data_); }

  T* data() const { return data_; }

  // Waits for the kernels before.
  std::vector<T> Read(GpuStream& gpu) const {
    gpu.Wait();
    std::vector<T> values(size_);
    EXPECT_EQ(cudaMemcpy(values.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost),
              cudaSuccess);
    return values;
  }

 private:
  T* data_ = nullptr;
  size_t size_;
};

inline uint32_t BitsOf(Element element, float x) {
  uint32_t bits = 0;
  if (element == Element::kFloat32) std::memcpy(&bits, &x, 4);
  if (element == Element::kBfloat16) bits = __bfloat16_as_ushort(__float2bfloat16_rn(x));
  if (element == Element::kFloat16) bits = __half_as_ushort(__float2half_rn(x));
  return bits;
}

inline float FromBits(Element element, uint32_t bits) {
  if (element == Element::kBfloat16) bits <<= 16;
  if (element == Element::kFloat16) {
    return __half2float(__ushort_as_half(static_cast<uint16_t>(bits)));
  }
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

inline std::vector<float> Rounded(Element element, std::vector<float> values) {
  for (float& x : values) x = FromBits(element, BitsOf(element, x));
  return values;
}

// The greatest error of rounding once, as a share of the number.
inline double HalfUnit(Element element) {
  if (element == Element::kFloat32) return 0x1p-24;
  return element == Element::kBfloat16 ? 0x1p-8 : 0x1p-11;
}

// A matrix on the device: `before` columns in front of the ones in view and `behind` after them,
// which must not change.
class DeviceMatrix {
 public:
  DeviceMatrix(Element element, int64_t rows, int64_t cols, int64_t before = 0, int64_t behind = 0)
      : DeviceMatrix(element, rows, cols, std::vector<float>(rows * cols, kUntouched), before,
                     behind) {}
  DeviceMatrix(Element element, int64_t rows, int64_t cols, const std::vector<float>& values,
               int64_t before = 0, int64_t behind = 0)
      : element_(element),
        rows_(rows),
        cols_(cols),
        before_(before),
        stride_(before + cols + behind),
        bytes_(Fill(values)) {}

  native::Matrix view() const {
    return {bytes_.data() + before_ * BytesOf(element_), element_, rows_, cols_, stride_};
  }

  // Row-major, without the columns beside the view: those are checked.
  std::vector<float> Read(GpuStream& gpu) const {
    const std::vector<uint8_t> bytes = bytes_.Read(gpu);
    std::vector<float> values;
    for (int64_t r = 0; r < rows_; ++r) {
      for (int64_t c = 0; c < stride_; ++c) {
        uint32_t bits = 0;
        std::memcpy(&bits, bytes.data() + (r * stride_ + c) * BytesOf(element_), BytesOf(element_));
        const float x = FromBits(element_, bits);
        if (c >= before_ && c < before_ + cols_) {
          values.push_back(x);
        } else if (x != kUntouched) {
          ADD_FAILURE() << "row " << r << " column " << c - before_ << " beside the view";
        }
      }
    }
    return values;
  }

 private:
  static constexpr float kUntouched = 96.0f;  // exact in every element

  std::vector<uint8_t> Fill(const std::vector<float>& values) const {
    std::vector<uint8_t> bytes(rows_ * stride_ * BytesOf(element_));
    for (int64_t r = 0; r < rows_; ++r) {
      for (int64_t c = 0; c < stride_; ++c) {
        const bool in_view = c >= before_ && c < before_ + cols_;
        const uint32_t bits =
            BitsOf(element_, in_view ? values[r * cols_ + c - before_] : kUntouched);
        std::memcpy(bytes.data() + (r * stride_ + c) * BytesOf(element_), &bits, BytesOf(element_));
      }
    }
    return bytes;
  }

  Element element_;
  int64_t rows_, cols_, before_, stride_;
  DeviceArray<uint8_t> bytes_;
};

// Every element: |got - expected| <= relative * |expected| + of_largest * max |expected|.
struct Bound {
  double relative = 0.0;
  double of_largest = 0.0;
};

template <typename T, typename U>
void ExpectClose(const std::vector<T>& got, const std::vector<U>& expected, Bound bound,
                 const char* what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  double largest = 0.0;
  for (const U x : expected) largest = std::max(largest, std::abs(static_cast<double>(x)));
  double worst = 0.0;  // as a share of what is allowed
  size_t place = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double e = static_cast<double>(expected[i]);
    const double difference = std::abs(static_cast<double>(got[i]) - e);
    const double allowed = bound.relative * std::abs(e) + bound.of_largest * largest;
    const double share = difference == 0.0 ? 0.0 : difference / allowed;
    ASSERT_FALSE(std::isnan(share))
        << what << "[" << i << "] is " << got[i] << ", expected " << expected[i];
    if (share > worst) {
      worst = share;
      place = i;
    }
  }
  EXPECT_LE(worst, 1.0) << what << "[" << place << "] is " << got[place] << ", expected "
                        << expected[place] << ", largest " << largest;
}

template <typename T>
void AppendBytes(std::vector<uint8_t>& to, const std::vector<T>& values) {
  const auto* from = reinterpret_cast<const uint8_t*>(values.data());
  to.insert(to.end(), from, from + values.size() * sizeof(T));
}

// Returns how many kernels and copies were put on the stream since StartTiming or the last call.
inline int64_t Launches(GpuStream& gpu) {
  const int64_t launches = std::ssize(gpu.StopTiming());
  gpu.StartTiming();
  return launches;
}

// Runs body(gpu) with the threads of a block in every order, and counts Launches(gpu). The bytes
// that it returns must be the same.
inline void ForThreadOrders(const std::function<std::vector<uint8_t>(GpuStream&)>& body) {
  std::vector<uint8_t> first;
  for (int run = 0; run < NumThreadOrders(); ++run) {
    SCOPED_TRACE("run: " + std::to_string(run));
    UseThreadOrder(run);
    GpuStream gpu;
    gpu.StartTiming();
    const std::vector<uint8_t> bytes = body(gpu);
    if (run == 0) first = bytes;
    EXPECT_TRUE(bytes == first) << "bits depend on the order of threads";
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace deepnet::cuda::testing

#include "tests/gpu/kernels/twin.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include <gtest/gtest.h>

#include "tests/gpu/kernels/device_testing.h"
#include "tests/gpu/kernels/thread_orders.h"

namespace deepnet::cuda::testing {
namespace {

float Rounded(Element element, float x) { return FromBits(element, BitsOf(element, x)); }

std::vector<unsigned char> BytesFor(Element element, const std::vector<float>& values) {
  const auto size = static_cast<size_t>(BytesOf(element));
  std::vector<unsigned char> bytes(values.size() * size);
  for (size_t i = 0; i < values.size(); ++i) {
    const uint32_t bits = BitsOf(element, values[i]);
    std::memcpy(&bytes[i * size], &bits, size);
  }
  return bytes;
}

double NumberAt(const std::vector<unsigned char>& bytes, Element element, int64_t i) {
  const auto size = static_cast<size_t>(BytesOf(element));
  uint32_t bits = 0;
  std::memcpy(&bits, &bytes[i * size], size);
  return FromBits(element, bits);
}

std::vector<float> Normal(int64_t n, uint32_t seed, float scale) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> x(n);
  for (float& v : x) v = normal(generator);
  return x;
}

void Check(cudaError_t error) { ASSERT_EQ(error, cudaSuccess) << cudaGetErrorString(error); }

// Units in the last place of a two-byte number near x; 0 for float32.
double LastPlace(Element element, double x) {
  if (element == Element::kFloat32 || x == 0.0) return 0.0;
  const int digits = element == Element::kBfloat16 ? 8 : 11;
  const int least = element == Element::kBfloat16 ? -133 : -24;
  return std::ldexp(1.0, std::max(std::ilogb(x) + 1 - digits, least));
}

void ExpectClose(const std::vector<double>& gpu, const std::vector<double>& cpu, Element element,
                 double ulps) {
  ASSERT_EQ(gpu.size(), cpu.size());
  double largest = 0.0;
  for (const double v : cpu) largest = std::max(largest, std::abs(v));
  size_t differ = 0;
  double worst = 0.0;
  for (size_t i = 0; i < cpu.size(); ++i) {
    ASSERT_TRUE(std::isfinite(cpu[i])) << "number " << i << " on the CPU";
    const double bound = ulps * std::ldexp(largest, -24) + LastPlace(element, cpu[i]);
    const double off = std::abs(gpu[i] - cpu[i]);
    ASSERT_LE(off, bound) << "number " << i << ": " << gpu[i] << " against " << cpu[i];
    differ += off > 0;
    worst = std::max(worst, off);
  }
  if (element == Element::kBfloat16) {
    EXPECT_LE(differ, std::max<size_t>(2, cpu.size() / 50)) << "numbers that differ";
  }
}

}  // namespace

// --- Memory ---

TwinMemory::TwinMemory(std::vector<unsigned char> initial, int64_t offset)
    : initial_(std::move(initial)), host_(initial_), read_(initial_), offset_(offset) {
  void* p = nullptr;
  Check(cudaMalloc(&p, initial_.size() + static_cast<size_t>(offset)));
  device_ = static_cast<unsigned char*>(p);
}

TwinMemory::~TwinMemory() { cudaFree(device_); }

void TwinMemory::ResetDevice() { CopyToDevice(data(kGpu), initial_.data(), initial_.size()); }

void TwinMemory::ReadDevice() {
  Check(cudaMemcpy(read_.data(), data(kGpu), read_.size(), cudaMemcpyDeviceToHost));
}

template <typename T>
std::vector<T> TwinArray<T>::Of(const std::vector<unsigned char>& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}
template class TwinArray<float>;
template class TwinArray<uint8_t>;
template class TwinArray<uint32_t>;

TwinMatrix::TwinMatrix(TwinMemory& cpu, TwinMemory& gpu, Element element, int64_t rows,
                       int64_t cols, int64_t stride)
    : cpu_(cpu), gpu_(gpu), element_(element), rows_(rows), cols_(cols), stride_(stride) {}

Element TwinMatrix::CpuElement() const {
  return element_ == Element::kFloat16 ? Element::kFloat32 : element_;
}

native::Matrix TwinMatrix::at(Side side) {
  if (side == kCpu) return {cpu_.data(kCpu), CpuElement(), rows_, cols_, stride_};
  return {gpu_.data(kGpu), element_, rows_, cols_, stride_};
}

std::vector<double> TwinMatrix::Values(const std::vector<unsigned char>& bytes, Element element,
                                       int64_t first, int64_t end) const {
  std::vector<double> values;
  for (int64_t r = 0; r < rows_; ++r) {
    for (int64_t c = first; c < end; ++c) {
      values.push_back(NumberAt(bytes, element, r * stride_ + c));
    }
  }
  return values;
}

std::vector<double> TwinMatrix::Cpu() const {
  return Values(cpu_.host_bytes(), CpuElement(), 0, cols_);
}

std::vector<double> TwinMatrix::Gpu() const {
  return Values(gpu_.device_bytes(), element_, 0, cols_);
}

bool TwinMatrix::MarginIsUntouched() const {
  return Values(gpu_.device_bytes(), element_, cols_, stride_) ==
         Values(gpu_.initial_bytes(), element_, cols_, stride_);
}

// --- Twins ---

template <typename T>
TwinMemory& Twin::Add(const std::vector<T>& values, int64_t offset_elements) {
  std::vector<unsigned char> bytes(values.size() * sizeof(T));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  memory_.push_back(std::make_unique<TwinMemory>(
      std::move(bytes), offset_elements * static_cast<int64_t>(sizeof(T))));
  return *memory_.back();
}

TwinMatrix& Twin::MatrixOf(Element element, int64_t rows, int64_t cols,
                           const std::vector<float>& values) {
  const int64_t stride = cols + layout_.margin;
  std::vector<float> all(rows * stride, 96.0f);  // exact in every element
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      all[r * stride + c] = Rounded(element, values[r * cols + c]);
    }
  }
  const Element cpu_element = element == Element::kFloat16 ? Element::kFloat32 : element;
  TwinMemory& cpu = Add(BytesFor(cpu_element, all), 0);
  TwinMemory& gpu = Add(BytesFor(element, all), layout_.offset * BytesOf(element));
  matrices_.push_back(std::make_unique<TwinMatrix>(cpu, gpu, element, rows, cols, stride));
  return *matrices_.back();
}

TwinMatrix& Twin::RandomMatrix(Element element, int64_t rows, int64_t cols, uint32_t seed,
                               float scale) {
  return MatrixOf(element, rows, cols, Normal(rows * cols, seed, scale));
}

TwinMatrix& Twin::NewMatrix(Element element, int64_t rows, int64_t cols) {
  return MatrixOf(element, rows, cols,
                  std::vector<float>(rows * cols, std::numeric_limits<float>::quiet_NaN()));
}

TwinArray<float>& Twin::Floats(const std::vector<float>& values) {
  floats_.push_back(std::make_unique<TwinArray<float>>(Add(values, layout_.offset)));
  return *floats_.back();
}

TwinArray<float>& Twin::RandomFloats(int64_t n, uint32_t seed, float scale) {
  return Floats(Normal(n, seed, scale));
}

TwinArray<float>& Twin::NewFloats(int64_t n) {
  return Floats(std::vector<float>(n, std::numeric_limits<float>::quiet_NaN()));
}

TwinArray<uint8_t>& Twin::RandomBytes(int64_t n) {
  std::mt19937 generator(11);
  std::vector<uint8_t> values(n);
  for (uint8_t& v : values) v = static_cast<uint8_t>(generator());
  bytes_.push_back(std::make_unique<TwinArray<uint8_t>>(Add(values, 0)));
  return *bytes_.back();
}

TwinArray<uint32_t>& Twin::Numbers(const std::vector<uint32_t>& values) {
  numbers_.push_back(std::make_unique<TwinArray<uint32_t>>(Add(values, 0)));
  return *numbers_.back();
}

void Twin::Run(const std::function<void()>& cpu, const std::function<void(GpuStream&)>& gpu) {
  for (const auto& memory : memory_) memory->ResetHost();
  cpu();
  std::vector<std::vector<unsigned char>> first;
  for (int order = 0; order < NumThreadOrders(); ++order) {
    SCOPED_TRACE("order of threads: " + std::to_string(order));
    UseThreadOrder(order);
    for (const auto& memory : memory_) memory->ResetDevice();
    GpuStream stream;
    stream.StartTiming();
    gpu(stream);
    launches_ = Launches(stream);
    for (size_t i = 0; i < memory_.size(); ++i) {
      memory_[i]->ReadDevice();
      if (order == 0) {
        first.push_back(memory_[i]->device_bytes());
      } else {
        EXPECT_TRUE(memory_[i]->device_bytes() == first[i]) << "memory " << i << " differs";
      }
    }
  }
  for (const auto& matrix : matrices_) EXPECT_TRUE(matrix->MarginIsUntouched());
}

void ExpectClose(const TwinMatrix& matrix, double ulps) {
  ExpectClose(matrix.Gpu(), matrix.Cpu(), matrix.element(), ulps);
}

void ExpectClose(const TwinArray<float>& array, double ulps) {
  const std::vector<float> gpu = array.Gpu(), cpu = array.Cpu();
  ExpectClose({gpu.begin(), gpu.end()}, {cpu.begin(), cpu.end()}, Element::kFloat32, ulps);
}

void ExpectSame(const TwinMatrix& matrix) {
  std::vector<double> cpu = matrix.Cpu();
  if (matrix.element() == Element::kFloat16) {
    for (double& v : cpu) v = Rounded(Element::kFloat16, static_cast<float>(v));
  }
  EXPECT_EQ(matrix.Gpu(), cpu);
}

template <typename T>
void ExpectSame(const TwinArray<T>& array) {
  EXPECT_EQ(array.Gpu(), array.Cpu());
}
template void ExpectSame(const TwinArray<float>&);
template void ExpectSame(const TwinArray<uint8_t>&);

native::Cpu& TheCpu() {
  static auto* const cpu = new native::Cpu(1);
  return *cpu;
}

TwinIds::TwinIds(Twin& twin, int64_t rows) {
  std::vector<uint32_t> pairs(rows), positions(rows);
  for (int64_t r = 0; r < rows; ++r) {
    pairs[r] = static_cast<uint32_t>(r / 5 + 7);
    positions[r] = static_cast<uint32_t>(r % 5);
  }
  pair = &twin.Numbers(pairs);
  position = &twin.Numbers(positions);
}

std::string NameOf(Element element) {
  switch (element) {
    case Element::kFloat32:
      return "float32";
    case Element::kBfloat16:
      return "bfloat16";
    case Element::kFloat16:
      return "float16";
  }
  return "";
}

}  // namespace deepnet::cuda::testing

// A block sums 32 neighbouring columns. 32 groups of threads take every 32nd row each; then their
// sums are added in order. So rows of zeros behind the others change nothing.
#include "trainer/kernels/cuda/device_code.h"
#include "trainer/kernels/cuda/kernels.h"
#include "trainer/kernels/cuda/launch.h"

namespace deepnet::cuda {
namespace {

constexpr int kColumns = 32;
constexpr int kGroups = 32;

struct GroupSums {
  float of[kGroups][kColumns];
};

__global__ void __launch_bounds__(kColumns* kGroups) ColumnSumsKernel(const ColumnSumsArgs args) {
  BLOCK_SHARED(GroupSums, sums);
  float* const out = blockIdx.y == 0 ? args.first : args.second;
  if (out == nullptr) return;  // the whole block
  const int64_t c = static_cast<int64_t>(blockIdx.x) * kColumns + threadIdx.x;
  float sum = 0.0f;
  if (c < args.cols) {
    const float* x = args.partials + blockIdx.y * args.cols + c;
#pragma unroll 8
    for (int64_t r = threadIdx.y; r < args.rows; r += kGroups) sum += x[r * args.stride];
  }
  sums.of[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y > 0 || c >= args.cols) return;
  for (int i = 1; i < kGroups; ++i) sum += sums.of[i][threadIdx.x];
  out[c] += sum;
}

}  // namespace

void AddColumnSums(GpuStream& gpu, const char* name, const ColumnSumsArgs& args) {
  if (args.rows == 0 || args.cols == 0) return;
  const dim3 grid(BlocksOf(args.cols, kColumns), args.second != nullptr ? 2 : 1);
  Launch(gpu, name, ColumnSumsKernel, grid, dim3(kColumns, kGroups), /*shared_bytes=*/0, args);
}

}  // namespace deepnet::cuda

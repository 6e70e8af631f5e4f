// Matrix products on a GPU by cuBLASLt: operands of one element, sums in float32, no TF32.
//
// All matrices are row-major and may be column slices. The algorithm of a shape is chosen once, by
// cuBLASLt's heuristic among those that do not split a sum (so that its order is fixed), for a
// number of rows rounded up to kRowStep, and kept: a product has the same bits in every run on the
// same model of GPU.
#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>

#include "trainer/kernels/cuda/gpu_stream.h"
#include "trainer/kernels/native/matrix.h"

namespace deepnet::cuda {

struct MatmulArgs {
  native::ConstMatrix a;
  bool transpose_a = false;  // a^T counts
  native::ConstMatrix b;     // of the element of a
  bool transpose_b = false;
  native::Matrix y;  // y = a b, float32 or of the element of a
  // [columns of y] of y's element, added to each row; HasAlignedBias; null: none.
  const void* bias = nullptr;
  bool relu = false;        // then max(0, .)
  bool accumulate = false;  // y += a b instead; without bias and relu
};

// True if `bias` is aligned to 16 bytes, as cuBLASLt reads biases.
inline bool HasAlignedBias(const void* bias) { return reinterpret_cast<uintptr_t>(bias) % 16 == 0; }

class Matmul {
 public:
  // Holds kWorkspaceBytes of device memory. `gpu` must outlive it.
  explicit Matmul(GpuStream& gpu);
  ~Matmul();
  Matmul(const Matmul&) = delete;
  Matmul& operator=(const Matmul&) = delete;

  static constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;

  // One launch; none where a size is 0, so y keeps its values. Throws GpuError where cuBLASLt has
  // no algorithm; where the stream gathers launches, when it makes them.
  void Run(const MatmulArgs& args);

 private:
  void RunNow(const MatmulArgs& args);

  // An algorithm is chosen by sizes, strides, elements, alignments, and what is asked for.
  using Key = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int, int>;

  GpuStream& gpu_;
  cublasLtHandle_t handle_ = nullptr;
  std::shared_ptr<void> workspace_;
  std::map<Key, cublasLtMatmulAlgo_t> algorithms_;  // by the rounded number of rows
  // By the number itself, where cuBLASLt refuses the algorithm of the rounded one.
  std::map<Key, cublasLtMatmulAlgo_t> algorithms_of_rows_;
};

}  // namespace deepnet::cuda

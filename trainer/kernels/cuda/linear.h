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
#include "trainer/kernels/cuda/linear_algorithms.h"

namespace deepnet::cuda {

class Matmul {
 public:
  // Holds kMatmulWorkspaceBytes of device memory. `gpu` must outlive it.
  explicit Matmul(GpuStream& gpu);
  ~Matmul();
  Matmul(const Matmul&) = delete;
  Matmul& operator=(const Matmul&) = delete;

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

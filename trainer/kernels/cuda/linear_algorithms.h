// cuBLASLt's calls for one product: its descriptors, the algorithms that the library proposes, and
// the launch.
#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/kernels/cuda/linear.h"

namespace deepnet::cuda {

// Throws GpuError unless `status` is a success.
void CheckCublas(const char* call, cublasStatus_t status);

// The last step of a product, before its result goes to memory.
struct MatmulEpilogue {
  cublasLtEpilogue_t kind = CUBLASLT_EPILOGUE_DEFAULT;
  const void* vector = nullptr;  // a bias or, written, a bias gradient; of y's element
  void* mask = nullptr;          // ReLU's bits, written or read
};

// Returns the epilogue that adds args.bias and does args.relu.
MatmulEpilogue EpilogueOf(const MatmulArgs& args);

// Sizes of the product: y has `rows` x `cols`, `inner` numbers are summed.
struct MatmulSizes {
  int64_t rows, cols, inner;
};

MatmulSizes SizesOf(const MatmulArgs& args);
// The bytes, at most 256, that a pointer is aligned to.
uint32_t AlignmentOf(const void* p);
// cuBLASLt has no preference of its own for the bias: it is taken to be aligned as the result is.
uint32_t AlignmentOfResult(const MatmulArgs& args);

// The rows that an algorithm is asked for.
enum class MatmulRows {
  kTheirs,
  kRounded,  // those of a microbatch, wherever they stand, rounded up by RoundRows
};

int64_t RoundRows(int64_t rows);

// Asks for at most `wanted` algorithms, the best first, whose sums are split in the ways of
// `reductions` (cublasLtReductionScheme_t) alone. Throws GpuError where cuBLASLt refuses; the
// result may be empty.
std::vector<cublasLtMatmulHeuristicResult_t> FindAlgorithms(cublasLtHandle_t handle,
                                                            const MatmulArgs& args,
                                                            const MatmulEpilogue& epilogue,
                                                            MatmulRows rows, uint32_t reductions,
                                                            int wanted);

// Launches the product. `workspace` has Matmul::kWorkspaceBytes.
cublasStatus_t Multiply(cublasLtHandle_t handle, const MatmulArgs& args,
                        const MatmulEpilogue& epilogue, const cublasLtMatmulAlgo_t& algorithm,
                        void* workspace, cudaStream_t stream);

// Returns what tells an algorithm from others: "id 66 tile 20 stages 7 split 4".
std::string AlgorithmText(const cublasLtMatmulAlgo_t& algorithm);

}  // namespace deepnet::cuda

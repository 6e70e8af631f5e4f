// cuBLASLt's calls for one product: its arguments and descriptors, the algorithms that the library
// proposes, and the launch.
#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <string>
#include <vector>

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

// Device memory that every product may use.
inline constexpr int64_t kMatmulWorkspaceBytes = int64_t{32} << 20;

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

// Launches the product. `workspace` has kMatmulWorkspaceBytes.
cublasStatus_t Multiply(cublasLtHandle_t handle, const MatmulArgs& args,
                        const MatmulEpilogue& epilogue, const cublasLtMatmulAlgo_t& algorithm,
                        void* workspace, cudaStream_t stream);

// Returns what tells an algorithm from others: "id 66 tile 20 stages 7 split 4".
std::string AlgorithmText(const cublasLtMatmulAlgo_t& algorithm);

}  // namespace deepnet::cuda

// cuBLASLt thinks in columns: a row-major matrix is its own transpose there. So y = a b becomes
// y^T = b^T a^T, which is a product of cuBLASLt's whose first factor is b.
#include "trainer/kernels/cuda/linear_algorithms.h"

#include <algorithm>
#include <bit>
#include <memory>

#include "trainer/kernels/cuda/gpu_stream.h"

namespace deepnet::cuda {
namespace {

// The algorithm for a number of rows is that for the next multiple of this.
constexpr int64_t kRowStep = 256;

cudaDataType_t TypeOf(native::Element element) {
  switch (element) {
    case native::Element::kFloat32:
      return CUDA_R_32F;
    case native::Element::kBfloat16:
      return CUDA_R_16BF;
    case native::Element::kFloat16:
      return CUDA_R_16F;
  }
  return CUDA_R_32F;
}

// A descriptor of cuBLASLt.
template <typename T, auto kDestroy>
struct Destroy {
  void operator()(T* descriptor) const { kDestroy(descriptor); }
};
template <typename T, auto kDestroy>
using Held = std::unique_ptr<T, Destroy<T, kDestroy>>;
using Layout = Held<cublasLtMatrixLayoutOpaque_t, cublasLtMatrixLayoutDestroy>;
using Description = Held<cublasLtMatmulDescOpaque_t, cublasLtMatmulDescDestroy>;
using Preference = Held<cublasLtMatmulPreferenceOpaque_t, cublasLtMatmulPreferenceDestroy>;

// Returns the layout of a row-major matrix in cuBLASLt's terms: rows and columns change places.
Layout LayoutOf(const native::ConstMatrix& m, int64_t rows) {
  cublasLtMatrixLayout_t layout = nullptr;
  CheckCublas("cublasLtMatrixLayoutCreate",
              cublasLtMatrixLayoutCreate(&layout, TypeOf(m.element), static_cast<uint64_t>(m.cols),
                                         static_cast<uint64_t>(rows), m.stride));
  return Layout(layout);
}

Description DescriptionOf(const MatmulArgs& args, const MatmulEpilogue& epilogue) {
  cublasLtMatmulDesc_t description = nullptr;
  CheckCublas("cublasLtMatmulDescCreate",
              cublasLtMatmulDescCreate(&description, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  Description held(description);
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
    CheckCublas("cublasLtMatmulDescSetAttribute",
                cublasLtMatmulDescSetAttribute(description, attribute, &value, sizeof(value)));
  };
  set(CUBLASLT_MATMUL_DESC_TRANSA, args.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(CUBLASLT_MATMUL_DESC_TRANSB, args.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (epilogue.vector != nullptr) {
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, epilogue.vector);
    set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, TypeOf(args.y.element));
  }
  if (epilogue.mask != nullptr) {
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, epilogue.mask);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, args.y.cols);  // bits
  }
  set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue.kind);
  return held;
}

Preference PreferenceOf(const MatmulArgs& args, uint32_t reductions) {
  cublasLtMatmulPreference_t preference = nullptr;
  CheckCublas("cublasLtMatmulPreferenceCreate", cublasLtMatmulPreferenceCreate(&preference));
  Preference held(preference);
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    CheckCublas("cublasLtMatmulPreferenceSetAttribute",
                cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)));
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{kMatmulWorkspaceBytes});
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, AlignmentOf(args.b.data));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, AlignmentOf(args.a.data));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, AlignmentOf(args.y.data));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, AlignmentOfResult(args));
  return held;
}

}  // namespace

void CheckCublas(const char* call, cublasStatus_t status) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw GpuError(std::string(call) + ": " + cublasLtGetStatusString(status));
}

MatmulEpilogue EpilogueOf(const MatmulArgs& args) {
  MatmulEpilogue epilogue{.vector = args.bias};
  if (args.relu) epilogue.kind = CUBLASLT_EPILOGUE_RELU;
  if (args.bias != nullptr) {
    epilogue.kind = args.relu ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_BIAS;
  }
  return epilogue;
}

MatmulSizes SizesOf(const MatmulArgs& args) {
  return {args.y.rows, args.y.cols, args.transpose_a ? args.a.rows : args.a.cols};
}

uint32_t AlignmentOf(const void* p) {
  return uint32_t{1} << std::countr_zero(reinterpret_cast<uintptr_t>(p) | 256);
}

uint32_t AlignmentOfResult(const MatmulArgs& args) {
  return std::min(AlignmentOf(args.y.data), AlignmentOf(args.bias));
}

int64_t RoundRows(int64_t rows) { return (rows + kRowStep - 1) / kRowStep * kRowStep; }

std::vector<cublasLtMatmulHeuristicResult_t> FindAlgorithms(cublasLtHandle_t handle,
                                                            const MatmulArgs& args,
                                                            const MatmulEpilogue& epilogue,
                                                            MatmulRows rows, uint32_t reductions,
                                                            int wanted) {
  const Description description = DescriptionOf(args, epilogue);
  const Preference preference = PreferenceOf(args, reductions);
  const auto rows_of = [&](int64_t count, bool of_microbatch) {
    return rows == MatmulRows::kRounded && of_microbatch ? RoundRows(count) : count;
  };
  const Layout b = LayoutOf(args.b, rows_of(args.b.rows, args.transpose_a));
  const Layout a = LayoutOf(args.a, rows_of(args.a.rows, true));
  const Layout y = LayoutOf(args.y, rows_of(args.y.rows, !args.transpose_a));
  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<size_t>(wanted));
  int found = 0;
  CheckCublas(
      "cublasLtMatmulAlgoGetHeuristic",
      cublasLtMatmulAlgoGetHeuristic(handle, description.get(), b.get(), a.get(), y.get(), y.get(),
                                     preference.get(), wanted, results.data(), &found));
  results.resize(static_cast<size_t>(found));
  return results;
}

cublasStatus_t Multiply(cublasLtHandle_t handle, const MatmulArgs& args,
                        const MatmulEpilogue& epilogue, const cublasLtMatmulAlgo_t& algorithm,
                        void* workspace, cudaStream_t stream) {
  const Description description = DescriptionOf(args, epilogue);
  const Layout b = LayoutOf(args.b, args.b.rows), a = LayoutOf(args.a, args.a.rows);
  const Layout y = LayoutOf(args.y, args.y.rows);
  const float alpha = 1.0f, beta = args.accumulate ? 1.0f : 0.0f;
  return cublasLtMatmul(handle, description.get(), &alpha, args.b.data, b.get(), args.a.data,
                        a.get(), &beta, args.y.data, y.get(), args.y.data, y.get(), &algorithm,
                        workspace, kMatmulWorkspaceBytes, stream);
}

std::string AlgorithmText(const cublasLtMatmulAlgo_t& algorithm) {
  std::string text;
  const auto add = [&](const char* name, cublasLtMatmulAlgoConfigAttributes_t attribute) {
    int32_t value = 0;
    size_t written = 0;
    if (cublasLtMatmulAlgoConfigGetAttribute(&algorithm, attribute, &value, sizeof(value),
                                             &written) != CUBLAS_STATUS_SUCCESS) {
      return;
    }
    if (!text.empty()) text += ' ';
    text += name + (' ' + std::to_string(value));
  };
  add("id", CUBLASLT_ALGO_CONFIG_ID);
  add("tile", CUBLASLT_ALGO_CONFIG_TILE_ID);
  add("stages", CUBLASLT_ALGO_CONFIG_STAGES_ID);
  add("split", CUBLASLT_ALGO_CONFIG_SPLITK_NUM);
  return text;
}

}  // namespace deepnet::cuda

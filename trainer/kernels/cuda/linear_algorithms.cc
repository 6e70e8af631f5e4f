// cuBLASLt thinks in columns: a row-major matrix is its own transpose there. So y = a b becomes
// y^T = b^T a^T, which is a product of cuBLASLt's whose first factor is b.
#include "trainer/kernels/cuda/linear_algorithms.h"

#include <algorithm>
#include <bit>

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

// Layout of a row-major matrix in cuBLASLt's terms: rows and columns change places.
class Layout {
 public:
  Layout(const native::ConstMatrix& m, int64_t rows) {
    CheckCublas(
        "cublasLtMatrixLayoutCreate",
        cublasLtMatrixLayoutCreate(&layout_, TypeOf(m.element), static_cast<uint64_t>(m.cols),
                                   static_cast<uint64_t>(rows), m.stride));
  }
  ~Layout() { cublasLtMatrixLayoutDestroy(layout_); }
  Layout(const Layout&) = delete;
  Layout& operator=(const Layout&) = delete;

  cublasLtMatrixLayout_t get() const { return layout_; }

 private:
  cublasLtMatrixLayout_t layout_ = nullptr;
};

class Description {
 public:
  Description(const MatmulArgs& args, const MatmulEpilogue& epilogue) {
    CheckCublas("cublasLtMatmulDescCreate",
                cublasLtMatmulDescCreate(&description_, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    Set(CUBLASLT_MATMUL_DESC_TRANSA, args.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    Set(CUBLASLT_MATMUL_DESC_TRANSB, args.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (epilogue.vector != nullptr) {
      Set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, epilogue.vector);
      Set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, TypeOf(args.y.element));
    }
    if (epilogue.mask != nullptr) {
      Set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, epilogue.mask);
      Set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, args.y.cols);  // bits
    }
    Set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue.kind);
  }
  ~Description() { cublasLtMatmulDescDestroy(description_); }
  Description(const Description&) = delete;
  Description& operator=(const Description&) = delete;

  cublasLtMatmulDesc_t get() const { return description_; }

 private:
  template <typename T>
  void Set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    CheckCublas("cublasLtMatmulDescSetAttribute",
                cublasLtMatmulDescSetAttribute(description_, attribute, &value, sizeof(value)));
  }

  cublasLtMatmulDesc_t description_ = nullptr;
};

class Preference {
 public:
  Preference(const MatmulArgs& args, uint32_t reductions) {
    CheckCublas("cublasLtMatmulPreferenceCreate", cublasLtMatmulPreferenceCreate(&preference_));
    Set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{kMatmulWorkspaceBytes});
    Set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions);
    Set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, AlignmentOf(args.b.data));
    Set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, AlignmentOf(args.a.data));
    Set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, AlignmentOf(args.y.data));
    Set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, AlignmentOfResult(args));
  }
  ~Preference() { cublasLtMatmulPreferenceDestroy(preference_); }
  Preference(const Preference&) = delete;
  Preference& operator=(const Preference&) = delete;

  cublasLtMatmulPreference_t get() const { return preference_; }

 private:
  template <typename T>
  void Set(cublasLtMatmulPreferenceAttributes_t attribute, const T& value) {
    CheckCublas(
        "cublasLtMatmulPreferenceSetAttribute",
        cublasLtMatmulPreferenceSetAttribute(preference_, attribute, &value, sizeof(value)));
  }

  cublasLtMatmulPreference_t preference_ = nullptr;
};

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
  const Description description(args, epilogue);
  const Preference preference(args, reductions);
  const auto rows_of = [&](int64_t count, bool of_microbatch) {
    return rows == MatmulRows::kRounded && of_microbatch ? RoundRows(count) : count;
  };
  const Layout b(args.b, rows_of(args.b.rows, args.transpose_a));
  const Layout a(args.a, rows_of(args.a.rows, true));
  const Layout y(args.y, rows_of(args.y.rows, !args.transpose_a));
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
  const Description description(args, epilogue);
  const Layout b(args.b, args.b.rows), a(args.a, args.a.rows), y(args.y, args.y.rows);
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

// cuBLASLt thinks in columns: a row-major matrix is its own transpose there. So y = a b becomes
// y^T = b^T a^T, which is a product of cuBLASLt's whose first factor is b.
#include "trainer/kernels/cuda/matmul.h"

#include <algorithm>
#include <bit>
#include <string>

#include "trainer/kernels/cuda/launch_graphs.h"

namespace deepnet::cuda {
namespace {

// The algorithm for a number of rows is that for the next multiple of this.
constexpr int64_t kRowStep = 256;

void Check(const char* call, cublasStatus_t status) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw GpuError(std::string(call) + ": " + cublasLtGetStatusString(status));
}

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

// The bytes, at most 256, that a pointer is aligned to.
uint32_t AlignmentOf(const void* p) {
  return uint32_t{1} << std::countr_zero(reinterpret_cast<uintptr_t>(p) | 256);
}

// cuBLASLt has no preference of its own for the bias: it is taken to be aligned as the result is.
uint32_t AlignmentOfResult(const MatmulArgs& args) {
  return std::min(AlignmentOf(args.y.data), AlignmentOf(args.bias));
}

// Layout of a row-major matrix in cuBLASLt's terms: rows and columns change places.
class Layout {
 public:
  Layout(const native::ConstMatrix& m, int64_t rows) {
    Check("cublasLtMatrixLayoutCreate",
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
  explicit Description(const MatmulArgs& args) {
    Check("cublasLtMatmulDescCreate",
          cublasLtMatmulDescCreate(&description_, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    Set(CUBLASLT_MATMUL_DESC_TRANSA, args.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    Set(CUBLASLT_MATMUL_DESC_TRANSB, args.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    cublasLtEpilogue_t epilogue = args.relu ? CUBLASLT_EPILOGUE_RELU : CUBLASLT_EPILOGUE_DEFAULT;
    if (args.bias != nullptr) {
      epilogue = args.relu ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_BIAS;
      Set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, args.bias);
      Set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, TypeOf(args.y.element));
    }
    Set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
  }
  ~Description() { cublasLtMatmulDescDestroy(description_); }
  Description(const Description&) = delete;
  Description& operator=(const Description&) = delete;

  cublasLtMatmulDesc_t get() const { return description_; }

 private:
  template <typename T>
  void Set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    Check("cublasLtMatmulDescSetAttribute",
          cublasLtMatmulDescSetAttribute(description_, attribute, &value, sizeof(value)));
  }

  cublasLtMatmulDesc_t description_ = nullptr;
};

class Preference {
 public:
  explicit Preference(const MatmulArgs& args) {
    Check("cublasLtMatmulPreferenceCreate", cublasLtMatmulPreferenceCreate(&preference_));
    Set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{Matmul::kWorkspaceBytes});
    Set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE});
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
    Check("cublasLtMatmulPreferenceSetAttribute",
          cublasLtMatmulPreferenceSetAttribute(preference_, attribute, &value, sizeof(value)));
  }

  cublasLtMatmulPreference_t preference_ = nullptr;
};

// Sizes of the product: y has `rows` x `cols`, `inner` numbers are summed.
struct Sizes {
  int64_t rows, cols, inner;
};

Sizes SizesOf(const MatmulArgs& args) {
  return {args.y.rows, args.y.cols, args.transpose_a ? args.a.rows : args.a.cols};
}

int64_t RoundUp(int64_t rows) { return (rows + kRowStep - 1) / kRowStep * kRowStep; }

// Asks for the algorithm of `args`. With `rounded`, the rows of a microbatch are rounded up
// wherever they stand.
cublasLtMatmulAlgo_t Choose(cublasLtHandle_t handle, const MatmulArgs& args, bool rounded) {
  const Description description(args);
  const Preference preference(args);
  const auto rows_of = [&](int64_t rows, bool of_microbatch) {
    return rounded && of_microbatch ? RoundUp(rows) : rows;
  };
  const Layout b(args.b, rows_of(args.b.rows, args.transpose_a));
  const Layout a(args.a, rows_of(args.a.rows, true));
  const Layout y(args.y, rows_of(args.y.rows, !args.transpose_a));
  cublasLtMatmulHeuristicResult_t result = {};
  int found = 0;
  Check("cublasLtMatmulAlgoGetHeuristic",
        cublasLtMatmulAlgoGetHeuristic(handle, description.get(), b.get(), a.get(), y.get(),
                                       y.get(), preference.get(), 1, &result, &found));
  if (found == 0) throw GpuError("cublasLtMatmulAlgoGetHeuristic: no algorithm for a product");
  return result.algo;
}

}  // namespace

Matmul::Matmul(GpuStream& gpu) : gpu_(gpu) {
  Check("cublasLtCreate", cublasLtCreate(&handle_));
  workspace_ = gpu_.Take(kWorkspaceBytes);
}

Matmul::~Matmul() { cublasLtDestroy(handle_); }

void Matmul::Run(const MatmulArgs& args) {
  const Sizes sizes = SizesOf(args);
  if (sizes.rows == 0 || sizes.cols == 0 || sizes.inner == 0) return;
  LaunchGraphs* const graphs = gpu_.graphs();
  if (graphs == nullptr) return RunNow(args);
  graphs->AddToKey(args);
  graphs->Add([=, this] { RunNow(args); });
}

void Matmul::RunNow(const MatmulArgs& args) {
  const Sizes sizes = SizesOf(args);
  const int asked = args.transpose_a + 2 * args.transpose_b + 4 * (args.bias != nullptr) +
                    8 * args.relu + 16 * args.accumulate + 32 * static_cast<int>(args.a.element) +
                    128 * static_cast<int>(args.y.element);
  const int alignments = std::countr_zero(AlignmentOf(args.a.data)) +
                         16 * std::countr_zero(AlignmentOf(args.b.data)) +
                         256 * std::countr_zero(AlignmentOfResult(args)) +
                         4096 * std::countr_zero(AlignmentOf(args.y.data));
  const int64_t rows = args.transpose_a ? sizes.inner : sizes.rows;
  const Key key = {rows,          args.transpose_a ? sizes.rows : sizes.inner,
                   sizes.cols,    args.a.stride,
                   args.b.stride, args.y.stride,
                   asked,         alignments};
  auto known = algorithms_of_rows_.find(key);
  const bool is_of_rows = known != algorithms_of_rows_.end();
  if (!is_of_rows) {
    Key rounded = key;
    std::get<0>(rounded) = RoundUp(rows);
    known = algorithms_.find(rounded);
    if (known == algorithms_.end()) {
      known = algorithms_.emplace(rounded, Choose(handle_, args, /*rounded=*/true)).first;
    }
  }
  const Description description(args);
  const Layout b(args.b, args.b.rows), a(args.a, args.a.rows), y(args.y, args.y.rows);
  const float alpha = 1.0f, beta = args.accumulate ? 1.0f : 0.0f;
  const auto multiply = [&](const cublasLtMatmulAlgo_t& algorithm) {
    return cublasLtMatmul(handle_, description.get(), &alpha, args.b.data, b.get(), args.a.data,
                          a.get(), &beta, args.y.data, y.get(), args.y.data, y.get(), &algorithm,
                          workspace_.get(), kWorkspaceBytes, gpu_.get());
  };
  gpu_.Launching();
  cublasStatus_t status = multiply(known->second);
  if (!is_of_rows &&
      (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE)) {
    // The algorithm of the rounded number of rows does not take this one.
    const cublasLtMatmulAlgo_t other = Choose(handle_, args, /*rounded=*/false);
    algorithms_of_rows_.emplace(key, other);
    status = multiply(other);
  }
  Check("cublasLtMatmul", status);
  gpu_.Launched("cublasLtMatmul", cudaSuccess);
}

}  // namespace deepnet::cuda

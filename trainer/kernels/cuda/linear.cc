#include "trainer/kernels/cuda/linear.h"

#include <bit>

#include "trainer/kernels/cuda/linear_algorithms.h"

namespace deepnet::cuda {
namespace {

cublasLtMatmulAlgo_t Choose(cublasLtHandle_t handle, const MatmulArgs& args, MatmulRows rows) {
  const auto found = FindAlgorithms(handle, args, EpilogueOf(args), rows,
                                    CUBLASLT_REDUCTION_SCHEME_NONE, /*wanted=*/1);
  if (found.empty()) throw GpuError("cublasLtMatmulAlgoGetHeuristic: no algorithm for a product");
  return found.front().algo;
}

ProductShape ShapeOf(const MatmulArgs& args) {
  const MatmulSizes sizes = SizesOf(args);
  const ProductForm form = args.transpose_a   ? ProductForm::kWeightGradient
                           : args.transpose_b ? ProductForm::kForward
                                              : ProductForm::kInputGradient;
  return {form, sizes.rows, sizes.cols, sizes.inner};
}

}  // namespace

Matmul::Matmul(GpuStream& gpu) : gpu_(gpu) {
  CheckCublas("cublasLtCreate", cublasLtCreate(&handle_));
  workspace_ = gpu_.Allocate(kMatmulWorkspaceBytes);
}

Matmul::~Matmul() { cublasLtDestroy(handle_); }

void Matmul::Run(const MatmulArgs& args) {
  const MatmulSizes sizes = SizesOf(args);
  if (sizes.rows == 0 || sizes.cols == 0 || sizes.inner == 0) return;
  LaunchGatherer* const graphs = gpu_.graphs();
  if (graphs == nullptr) return RunNow(args);
  graphs->AddToKey(args);
  graphs->Add([=, this] { RunNow(args); });
}

void Matmul::RunNow(const MatmulArgs& args) {
  const MatmulSizes sizes = SizesOf(args);
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
    std::get<0>(rounded) = RoundRows(rows);
    known = algorithms_.find(rounded);
    if (known == algorithms_.end()) {
      known = algorithms_.emplace(rounded, Choose(handle_, args, MatmulRows::kRounded)).first;
    }
  }
  const auto multiply = [&](const cublasLtMatmulAlgo_t& algorithm) {
    return Multiply(handle_, args, EpilogueOf(args), algorithm, workspace_.get(), gpu_.get());
  };
  gpu_.Launching();
  cublasStatus_t status = multiply(known->second);
  if (!is_of_rows &&
      (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE)) {
    // The algorithm of the rounded number of rows does not take this one.
    const cublasLtMatmulAlgo_t other = Choose(handle_, args, MatmulRows::kTheirs);
    algorithms_of_rows_.emplace(key, other);
    status = multiply(other);
  }
  CheckCublas("cublasLtMatmul", status);
  gpu_.Launched("cublasLtMatmul", cudaSuccess, ShapeOf(args));
}

}  // namespace deepnet::cuda

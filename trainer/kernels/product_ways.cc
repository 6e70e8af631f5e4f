#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/mkldnn_linear.h>
#include <ATen/ops/mkldnn_linear_backward_input.h>
#include <ATen/ops/mkldnn_linear_backward_weights.h>

#include "parallel/base/host.h"
#include "trainer/kernels/aten.h"
#include "trainer/kernels/compute.h"

namespace deepnet {
namespace {

using at::Tensor;

constexpr double kSeconds = 0.2;  // of calls, for the fastest of them

// y = a b as the forms of the task have them, with matrices as Ops takes them.
struct Operands {
  Tensor a, b;  // [rows, depth] and [columns, depth]; [rows, depth] and [depth, columns]; or
                // [depth, rows] and [depth, columns]
  Tensor y;
};

Operands MakeOperands(const ProductTask& task, at::ScalarType operand) {
  const auto [form, rows, columns, depth] = task.shape;
  const auto random = [&](int64_t n, int64_t m) { return at::randn({n, m}).to(operand); };
  const bool of_weights = form == ProductForm::kWeightGradient;
  return {of_weights ? random(depth, rows) : random(rows, depth),
          form == ProductForm::kForward ? random(columns, depth) : random(depth, columns),
          at::zeros({rows, columns}, task.float_result ? at::kFloat : operand)};
}

// Times calls of a way, whose result is `result`; `clear` undoes what a call adds to it.
ProductWay Measure(std::string name, int repeats, const std::function<Tensor()>& call,
                   const std::function<void()>& clear) {
  ProductWay way{
      .name = std::move(name), .seconds = FastestSeconds(kSeconds, call), .candidates = 1};
  Tensor first;
  for (int i = 0; i < repeats; ++i) {
    clear();
    const Tensor now = call();
    if (i == 0) {
      first = now.is_mkldnn() ? now.to_dense() : now.clone();
    } else if (!at::equal(first, now.is_mkldnn() ? now.to_dense() : now)) {
      ++way.unequal;
    }
  }
  return way;
}

ProductWay Native(const ComputeSpec& compute, const ProductTask& task, Operands x) {
  const std::unique_ptr<Ops> ops = MakeNativeOps(compute);
  const ProductForm form = task.shape.form;
  const int64_t rows = task.shape.rows, columns = task.shape.columns, depth = task.shape.depth;
  const bool of_weights = form == ProductForm::kWeightGradient;
  const Tensor bias = at::zeros({of_weights ? rows : columns});
  const Tensor relu_output =
      task.relu ? at::randn({rows, columns}).to(x.y.scalar_type()) : Tensor();
  std::unique_ptr<Weight> weight;
  if (!of_weights) {
    weight = ops->MakeWeight(x.b.to(at::kFloat), /*backward=*/true);
    ops->Refresh(*weight);
  }
  const auto call = [&] {
    if (form == ProductForm::kForward) {
      ops->Linear({.rows = rows,
                   .x_RI = x.a,
                   .weight_OI = weight.get(),
                   .bias_O = task.bias ? bias : Tensor(),
                   .relu = task.relu,
                   .y_RO = x.y});
    } else if (form == ProductForm::kInputGradient) {
      ops->LinearBackwardInput({.rows = rows,
                                .dy_RO = x.a,
                                .weight_OI = weight.get(),
                                .relu_output_RI = relu_output,
                                .accumulate = task.accumulate,
                                .dx_RI = x.y});
    } else {
      ops->LinearBackwardWeight(depth, x.a, x.b, x.y, task.bias ? bias : Tensor());
    }
    return x.y;
  };
  return Measure("NATIVE", task.repeats, call, [&] { x.y.zero_(); });
}

// The product as LibTorch's operation for dense matrices does it.
ProductWay Dense(const char* name, const ProductTask& task, const Operands& x) {
  const bool forward = task.shape.form == ProductForm::kForward;
  const bool of_weights = task.shape.form == ProductForm::kWeightGradient;
  const Tensor a = of_weights ? x.a.t() : x.a, b = forward ? x.b.t() : x.b;
  Tensor y = x.y.to(x.a.scalar_type());
  const auto call = [&] {
    if (task.accumulate) return y.addmm_(a, b);
    return at::mm_out(y, a, b);
  };
  return Measure(name, task.repeats, call, [&] { y.zero_(); });
}

ProductWay OneDnn(const ProductTask& task, const Operands& x) {
  const Tensor a = x.a.to_mkldnn(), b = x.b.to_mkldnn();
  const auto call = [&] {
    switch (task.shape.form) {
      case ProductForm::kForward:
        return at::mkldnn_linear(a, b);
      case ProductForm::kInputGradient:
        return at::mkldnn_linear_backward_input({task.shape.rows, task.shape.columns}, a, x.b);
      default:
        return std::get<0>(at::mkldnn_linear_backward_weights(a, b, x.b, /*bias_defined=*/false));
    }
  };
  return Measure("oneDNN", task.repeats, call, [] {});
}

}  // namespace

std::vector<ProductWay> TimeProduct(const ComputeSpec& compute, const ProductTask& task) {
  if (compute.device() == "cuda") return TryProduct(task);
  const bool narrow = task.operand == native::Element::kBfloat16;
  const int threads_before = at::get_num_threads();
  at::set_num_threads(1);
  const Operands x = MakeOperands(task, narrow ? at::kBFloat16 : at::kFloat);
  ComputeSpec native = compute;
  native.set_matmul(NATIVE);
  std::vector<ProductWay> ways = {Native(native, task, x)};
  if (!TryThreads(compute.threads_per_rank()).ok()) return ways;
  at::set_num_threads(compute.threads_per_rank());
  if (narrow) {
    if (at::hasMKLDNN()) ways.push_back(Dense("oneDNN", task, x));
  } else {
    ways.push_back(Dense(at::hasMKL() ? "MKL" : "BLAS", task, x));
    if (at::hasMKLDNN()) ways.push_back(OneDnn(task, x));
  }
  at::set_num_threads(threads_before);
  return ways;
}

}  // namespace deepnet

#include "trainer/kernels/compute.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include <ATen/Parallel.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "parallel/base/clock.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/host.h"
#include "parallel/base/status_macros.h"
#include "trainer/kernels/aten.h"
#include "trainer/kernels/native/isa.h"

namespace deepnet {
namespace {

// Best rate of a product of `rows` rows, `products` of which are launched before one wait.
double ProductRate(Ops& ops, int64_t rows, int products, int64_t d, double seconds) {
  const auto random = [](int64_t n, int64_t cols, const at::TensorOptions& options) {
    return at::randn({n, cols}).to(options.dtype()).to(options.device());
  };
  const at::Tensor x = random(rows, d, ops.OperandOptions());
  const at::Tensor y = at::empty({rows, 4 * d}, ops.OperandOptions());
  const auto weight = ops.MakeWeight(random(4 * d, d, ops.ResidualOptions()), /*backward=*/false);
  ops.Refresh(*weight);
  const auto n = static_cast<double>(rows);
  return products * 2.0 * n * d * 4 * d * 1e-9 / FastestSeconds(seconds, [&] {
           for (int i = 0; i < products; ++i) {
             ops.Linear({.rows = rows, .x_RI = x, .weight_OI = weight.get(), .y_RO = y});
           }
           ops.session().ReadBack();
         });
}

std::unique_ptr<Ops> NativeOpsOf(ComputeSpec compute, DataType dtype) {
  compute.set_dtype(dtype);
  return MakeNativeOps(compute);
}

double NativeRate(Ops& ops, int64_t d, double seconds) {
  return ProductRate(ops, /*rows=*/2048, /*products=*/1, d, seconds);
}

// Both enums have the same numbers.
Isa BestIsa() { return static_cast<Isa>(native::BestIsa()); }

}  // namespace

at::ScalarType TypeOf(DataType dtype) {
  if (dtype == FLOAT16) return at::kHalf;
  return dtype == BFLOAT16 ? at::kBFloat16 : at::kFloat;
}

double FastestSeconds(double seconds, absl::FunctionRef<void()> call) {
  call();
  double fastest = INFINITY;
  const double start = SecondsNow();
  for (int i = 0; i < 3 || SecondsNow() - start < seconds; ++i) {
    const double begin = SecondsNow();
    call();
    fastest = std::min(fastest, SecondsNow() - begin);
  }
  return fastest;
}

std::optional<c10::DeviceType> GpuType() {
  for (const c10::DeviceType type : {c10::DeviceType::CUDA, c10::DeviceType::PrivateUse1}) {
    if (!c10::impl::hasDeviceGuardImpl(type)) continue;
    if (c10::impl::VirtualGuardImpl(type).deviceCount() > 0) return type;
  }
  return std::nullopt;
}

absl::StatusOr<std::string> CheckCurrentGpu() {
  return CheckGpu(c10::impl::VirtualGuardImpl(GpuType().value()).getDevice().index());
}

ComputeSpec ResolveCompute(const ComputeSpec& asked) {
  ComputeSpec compute = asked;
  if (compute.device().empty()) compute.set_device("cpu");
  const bool cpu = compute.device() == "cpu";
  if (compute.residual_dtype() == DATA_TYPE_UNSPECIFIED) compute.set_residual_dtype(FLOAT32);
  if (compute.matmul() == MATMUL_UNSPECIFIED) compute.set_matmul(cpu ? NATIVE : LIBRARY);
  if (compute.threads_per_rank() == 0) compute.set_threads_per_rank(UsableCores());
  const bool isa_is_open = compute.isa() == ISA_UNSPECIFIED;
  if (isa_is_open) compute.set_isa(BestIsa());
  if (compute.dtype() == DATA_TYPE_UNSPECIFIED) {
    compute.set_dtype(cpu ? FLOAT32 : BFLOAT16);
    if (cpu && compute.matmul() == NATIVE && CheckCompute(compute).ok()) {
      // In turns: other work on this host disturbs both, and must not decide a run's bits.
      const auto f32_ops = NativeOpsOf(compute, FLOAT32), bf16_ops = NativeOpsOf(compute, BFLOAT16);
      double f32 = 0.0, bf16 = 0.0;
      for (int round = 0; round < 5; ++round) {
        f32 = std::max(f32, NativeRate(*f32_ops, 256, 0.03));
        bf16 = std::max(bf16, NativeRate(*bf16_ops, 256, 0.03));
      }
      if (bf16 >= 1.25 * f32) compute.set_dtype(BFLOAT16);
    }
  }
  // A float32 run asks for no more than it uses, so that more hosts can resume it.
  if (isa_is_open && compute.dtype() == FLOAT32 && compute.isa() == AVX512_BF16) {
    compute.set_isa(AVX512);
  }
  return compute;
}

absl::Status CheckCompute(const ComputeSpec& resolved) {
  std::string wrong;
  if (resolved.device() == "cuda") {
    if (resolved.matmul() == NATIVE) {
      wrong = "compute.matmul: NATIVE works on \"cpu\" only";
    } else {
      RETURN_IF_ERROR(WithPrefix("compute.device: \"cuda\"", CountGpus().status()));
      if (!GpuType()) wrong = "compute.device: \"cuda\": LibTorch of this build sees no GPU";
    }
  } else if (resolved.device() != "cpu") {
    wrong =
        absl::StrCat("compute.device: \"", resolved.device(), "\": not one of \"cpu\", \"cuda\"");
  }
  if (resolved.device() == "cpu" && resolved.dtype() == FLOAT16) {
    wrong = "compute.dtype: FLOAT16 works on \"cuda\" only; on \"cpu\": BFLOAT16 or FLOAT32";
  }
  if (resolved.device() == "cpu" && resolved.attention() == FLASH) {
    wrong = "compute.attention: FLASH works on \"cuda\" only";
  }
  if (resolved.device() == "cpu" && resolved.cuda_graphs()) {
    wrong = "compute.cuda_graphs works on \"cuda\" only";
  }
  const auto isa = static_cast<native::Isa>(resolved.isa());
  if (resolved.device() == "cpu" && resolved.isa() != ISA_UNSPECIFIED && !native::Supports(isa)) {
    wrong = absl::StrCat("compute.isa: ", Isa_Name(resolved.isa()),
                         ": this host does not have it (best here: ", Isa_Name(BestIsa()),
                         "); a run resumes only where its instructions are");
  }
  if (wrong.empty()) return absl::OkStatus();
  return ConfigError(wrong);
}

absl::StatusOr<std::unique_ptr<Ops>> MakeOps(const ComputeSpec& resolved) {
  RETURN_IF_ERROR(CheckCompute(resolved));
  if (resolved.device() != "cuda") {
    RETURN_IF_ERROR(
        WithPrefix("compute.threads_per_rank", TryThreads(resolved.threads_per_rank())));
  }
  if (resolved.matmul() == NATIVE) return MakeNativeOps(resolved);
  if (resolved.device() == "cuda") {
    at::set_num_threads(1);
    const at::Device device = c10::impl::VirtualGuardImpl(*GpuType()).getDevice();
    return MakeCudaOps(device, TypeOf(resolved.dtype()), resolved.check_launches(),
                       resolved.attention(), resolved.cuda_graphs());
  }
  at::set_num_threads(resolved.threads_per_rank());
  // LibTorch's threads begin now, while the system gives them: without one the process ends.
  at::parallel_for(0, resolved.threads_per_rank(), 1, [](int64_t, int64_t) {});
  return MakeAtenOps(TypeOf(resolved.dtype()), at::kFloat);
}

double MeasureProductCeiling(const ComputeSpec& resolved, int64_t d, double seconds) {
  if (resolved.device() == "cuda") {
    const auto ops = MakeOps(resolved);
    return ops.ok() ? ProductRate(**ops, /*rows=*/16384, /*products=*/8, d, seconds) : 0.0;
  }
  const int threads = resolved.threads_per_rank();
  ComputeSpec compute;
  compute.set_isa(BestIsa());
  compute.set_threads_per_rank(threads);
  double best = 0.0;
  const int threads_before = at::get_num_threads();
  for (const DataType dtype : {FLOAT32, BFLOAT16}) {
    best = std::max(best, NativeRate(*NativeOpsOf(compute, dtype), d, seconds / 4));
  }
  if (!TryThreads(threads).ok()) return best;
  at::set_num_threads(threads);
  // Where the CPU has no products in bfloat16, LibTorch's are never the best, and one of them takes
  // longer than all that is measured here.
  const bool has_bfloat16 = native::BestIsa() == native::Isa::kAvx512Bf16;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    if (type == at::kBFloat16 && !has_bfloat16) continue;
    const at::Tensor x = at::randn({2048, d}).to(type), w = at::randn({4 * d, d}).to(type);
    const double fastest = FastestSeconds(seconds / 4, [&] { at::linear(x, w); });
    best = std::max(best, 2.0 * 2048 * d * 4 * d * 1e-9 / fastest);
  }
  at::set_num_threads(threads_before);
  return best;
}

}  // namespace deepnet

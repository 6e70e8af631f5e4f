// The arithmetic of a run on this host: what was asked for, completed once by measurement, and the
// implementations of Ops.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include <c10/core/DeviceType.h>

#include "proto/plan.pb.h"
#include "trainer/kernels/cuda/devices.h"
#include "trainer/kernels/kernel_times.h"
#include "trainer/kernels/ops.h"

namespace deepnet {

// Returns the type of LibTorch's devices that compute.device "cuda" stands for: CUDA, or the device
// that a test has registered in its place. Nullopt where this build or host has none.
std::optional<c10::DeviceType> GpuType();

// Returns CheckGpu of the calling thread's current GPU. Only where GpuType() has a value.
absl::StatusOr<std::string> CheckCurrentGpu();

// Returns `asked` with every open field but attention decided: device "cpu", isa the best here,
// threads_per_rank the cores this process may use, matmul NATIVE on the CPU and LIBRARY elsewhere,
// dtype of NATIVE the faster one of a short measurement (bfloat16 only if at least 1.25 times as
// fast as float32), else FLOAT32 on a CPU and BFLOAT16 on a GPU, residual_dtype FLOAT32. Stored
// with the run, so the measurement is made once in its life.
ComputeSpec ResolveCompute(const ComputeSpec& asked);

// Returns OK, or InvalidArgument (ExitCode::kBadConfig) naming the field that this host or build
// cannot do, or CountGpus' error.
absl::Status CheckCompute(const ComputeSpec& resolved);

// Makes the Ops of a resolved spec. Fails as CheckCompute does, and with ExitCode::kDoesNotFit
// where the system does not give threads_per_rank threads; throws as MakeCudaOps does.
absl::StatusOr<std::unique_ptr<Ops>> MakeOps(const ComputeSpec& resolved);

// Plain LibTorch on the CPU: the reference, and matmul LIBRARY. Operand and residual types: any
// floating type each.
std::unique_ptr<Ops> MakeAtenOps(at::ScalarType operand, at::ScalarType residual);

// This project's kernels and cuBLASLt on the GPU `device`, which is the current one of the calling
// thread; from now on the thread's copies by LibTorch are in the order of these operations. Operand
// type float32, bfloat16 or float16; residual float32. With FLASH the operands have 16 bits, and
// neither are attention weights dropped nor have heads another width than FlashObstacle
// (trainer/model/architecture.h) allows. Only where GpuType() has a value. Throws cuda::GpuError or
// c10::Error where CUDA, cuBLASLt or LibTorch refuses (StatusOfException). With
// `graphs` it is one whose session repeats passes.
std::unique_ptr<Ops> MakeCudaOps(at::Device device, at::ScalarType operand, bool check_launches,
                                 AttentionKernel attention = OWN, bool graphs = false);

// This project's kernels on the CPU (trainer/kernels/native). `compute` is resolved: dtype, isa and
// threads_per_rank say what to use; the isa must be supported here (see CheckCompute). Bits depend
// on dtype and isa, never on the number of threads.
std::unique_ptr<Ops> MakeNativeOps(const ComputeSpec& compute);

// Returns LibTorch's type of `dtype`.
at::ScalarType TypeOf(DataType dtype);

// Returns the seconds of the fastest of at least three calls, as many as begin within `seconds`,
// after one that does not count.
double FastestSeconds(double seconds, absl::FunctionRef<void()> call);

// Returns the best of several [rows x d] x [d x 4d] products in GFLOP/s: the ceiling that
// utilisation is measured against. On a CPU 2,048 rows, over this project's kernels and LibTorch's
// in float32 and bfloat16, with compute.threads_per_rank threads; on a GPU 16,384 rows, of
// compute.dtype. `compute` is resolved, and this device has it. Takes about `seconds`.
double MeasureProductCeiling(const ComputeSpec& compute, int64_t d, double seconds);

// Times the ways to do a product. On a CPU: NATIVE, and the libraries behind LibTorch's operations,
// MKL for float32 and oneDNN; of the latter's float32 the operands are in its own layout. What
// follows a product in a model is part of NATIVE's alone. On a GPU those of TryProduct
// (kernel_times.h). `compute` is resolved, this device has it, and task.operand is compute.dtype.
// Throws as MakeCudaOps does.
std::vector<ProductWay> TimeProduct(const ComputeSpec& compute, const ProductTask& task);

}  // namespace deepnet

// Compares every operation of an Ops with the reference in float64, on the same numbers.
#pragma once

#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include <ATen/core/Tensor.h>

#include "proto/doctor.pb.h"
#include "trainer/kernels/ops.h"

namespace deepnet {

// Runs each operation of `ops`, whose operands have `operand`, forward and backward, on some rows
// of packed sentences, and the plain LibTorch of MakeAtenOps in float64, whose arguments are
// rounded alike. An error is the largest difference of any result over the largest number expected
// in it; masks and chosen tokens must be equal. Exceptions become failures of their operation.
// `beat` is called after each.
std::vector<DoctorCheck> CheckKernels(
    Ops& ops, at::ScalarType operand, const std::function<void()>& beat = [] {});

// The results of attention forward and backward without dropout, for CompareAttention. Two Ops of
// one GPU must not live at the same time: copies are in the order of the one that was made last.
using AttentionResults = std::vector<std::vector<at::Tensor>>;
AttentionResults RunAttention(Ops& ops, at::ScalarType operand);
std::vector<DoctorCheck> CompareAttention(const AttentionResults& flash,
                                          const AttentionResults& own, at::ScalarType operand);

// The speed of an Ops on its device, while the others of the job work too.
struct Rates {
  double product_flops = 0.0;  // FLOP a second of Linear
  double copied_bytes = 0.0;   // bytes a second that Copy reads and writes
};

// Measures for some tenths of a second each, after a `barrier`. Sizes grow until one call takes
// long enough, or is as large as a step's, or takes much of `free_gpu_bytes`, 0 on a CPU.
absl::StatusOr<Rates> MeasureRates(Ops& ops, int64_t free_gpu_bytes,
                                   const std::function<absl::Status()>& barrier);

}  // namespace deepnet

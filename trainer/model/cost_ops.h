// An Ops that computes nothing and notes what CudaOps would launch: the one table of what every
// kernel on a GPU costs, in launches, operations and bytes. gpu_budgets_test holds it to what the
// emulated GPU counts.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "parallel/plan/inventory.h"
#include "trainer/kernels/ops.h"
#include "trainer/model/parameters.h"

namespace deepnet {

// Works on tensors without memory (at::kMeta): they have shapes and types.
class CostOps : public Ops {
 public:
  // Learns what to call products with matrices of `parameters`, and with their gradients.
  virtual void SetLabels(const Parameters& parameters) = 0;
  // From now on kernels are added to `kernels`, those that make weight gradients to
  // `weight_gradients`. Both must outlive the calls.
  virtual void NoteIn(std::vector<KernelWork>& kernels,
                      std::vector<KernelWork>& weight_gradients) = 0;
};

// `flash`: attention is LibTorch's flash attention. `sentences`: of equal length, in a microbatch.
std::unique_ptr<CostOps> MakeCostOps(at::ScalarType operand, bool flash, int64_t sentences);

// Adds launches to `kernels`, or with `sign` -1 takes them away. Those that are alike are one
// entry, in the order of their first launch.
void AddWork(const KernelWork& kernel, int sign, std::vector<KernelWork>& kernels);

}  // namespace deepnet

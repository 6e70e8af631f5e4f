// The one table of what every kernel on a GPU costs: launches, operations and bytes of a full
// microbatch, as functions of shapes. The planner's seconds come from it
// (parallel/plan/roofline.h).
//
// It follows CudaOps and the layers call by call, for models of every scheme; gpu_work_test holds
// it to what the emulated GPU counts. Left out is what depends on a layout: a pass that defers
// weight gradients copies their operands, a chunk that begins within a stack converts what it
// receives.
#pragma once

#include "parallel/plan/inventory.h"
#include "proto/data.pb.h"
#include "proto/model.pb.h"
#include "proto/plan.pb.h"

namespace deepnet {

// Adds to `inventory`, which is Describe(model, microbatch), the work of each layer with `compute`:
// its dtype, left open, is 16 bits. Adds nothing for a CPU.
void DescribeWork(const ModelSpec& model, const MicrobatchSpec& microbatch,
                  const ComputeSpec& compute, Inventory& inventory);

}  // namespace deepnet

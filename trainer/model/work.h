// States what a model's kernels on a GPU cost: launches, operations and bytes of a full microbatch.
// The planner's seconds come from it (parallel/plan/roofline.h).
//
// Layers run forward and backward on tensors without memory, by an Ops that notes what each
// operation would launch (trainer/model/cost_ops.h). Left out is what depends on a layout: a pass
// that defers weight gradients copies their operands, a chunk that begins within a stack converts
// what it receives.
#pragma once

#include "parallel/plan/inventory.h"
#include "proto/data.pb.h"
#include "proto/model.pb.h"
#include "proto/plan.pb.h"

namespace deepnet {

// Adds to `inventory`, which is Describe(model, microbatch), the work of each layer with `compute`:
// its dtype, left open, is 16 bits. Adds nothing for a CPU. Layers that are alike run once, so that
// a thousand take a tenth of a second; those of a model in one piece all run, in seconds.
void DescribeWork(const ModelSpec& model, const MicrobatchSpec& microbatch,
                  const ComputeSpec& compute, Inventory& inventory);

}  // namespace deepnet

// The model written from the paper, sentence by sentence, with LibTorch's autograd: the twin that
// hand-written backward passes are compared with. No packing, no dropout, no sharing of code.
#pragma once

#include <functional>
#include <string>

#include <ATen/core/Tensor.h>

#include "proto/model.pb.h"
#include "trainer/data/microbatch.h"

namespace deepnet::testing {

// Label-smoothed cross-entropy summed over the target tokens of `microbatch`. `parameter` returns
// the tensor of a name of the Inventory; `step`: steps taken before, for BRANCH_NORM.
at::Tensor PlainLoss(const ModelSpec& spec, const Microbatch& microbatch, double label_smoothing,
                     const std::function<at::Tensor(const std::string&)>& parameter,
                     int64_t step = 0);

}  // namespace deepnet::testing

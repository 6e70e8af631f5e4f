// The gradient of a tensor that several layers use: the sum over its uses in the order of the
// chain, (source + target) + output, wherever a pipeline has put those layers.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include <ATen/core/Tensor.h>

#include "parallel/plan/shard.h"
#include "trainer/kernels/ops.h"
#include "trainer/optim/groups.h"

namespace deepnet {

class TiedSums {
 public:
  // `gradient`: the rank's whole buffer. `groups.stages`: the pipeline.
  TiedSums(Ops& ops, at::Tensor gradient, std::vector<TiedTensor> tied, const Groups& groups);

  // Adds the uses of this replica's shares; the sums end in the place of the first use here.
  // Every stage that has a use sends it to the others that have one, and all add for themselves.
  // Collective over stages that hold the same tied tensors.
  absl::Status Fold();

 private:
  absl::Status FoldShare(const TiedTensor& tensor, const TiedTensor::Share& share);
  absl::Status Exchange(const TiedTensor& tensor, std::span<const at::Tensor> uses);
  at::Tensor PlaceOf(const TiedTensor::Use& use, const TiedTensor::Share& share);

  Ops& ops_;
  at::Tensor gradient_;
  std::vector<TiedTensor> tied_;
  Communicator* stages_;  // null: one stage
  absl::Duration limit_;
};

}  // namespace deepnet

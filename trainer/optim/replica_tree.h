// The sum over virtual replicas as a fixed binary tree (docs/design/sums.md).
//
// Replicas arrive in order 0, 1, .. R-1, R a power of two. Like a binary counter, two finished
// subtrees of equal height are added at once, so log2(R) + 1 buffers are enough (log2(R) with
// PushLast) and the tree is the same wherever the replicas were computed:
// ((0+1)+(2+3))+((4+5)+(6+7)).
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "trainer/kernels/ops.h"

namespace deepnet {

class ReplicaTree {
 public:
  // Adds the gradient of the next replica; it is copied.
  void Push(Ops& ops, const at::Tensor& gradient);
  // Writes the sum of all that were pushed into `gradient` and forgets them. The number pushed must
  // have been a power of two.
  void Finish(const at::Tensor& gradient);
  // Instead of the last Push and Finish: `gradient` is that of the last replica and becomes the
  // sum. Of other numbers than powers of two, subtrees are added from the last to the first.
  void PushLast(Ops& ops, const at::Tensor& gradient);
  // Forgets what was pushed.
  void Reset();

 private:
  struct Subtree {
    int height = 0;
    at::Tensor sum;
  };
  std::vector<Subtree> pending_;  // falling height
  std::vector<at::Tensor> free_;  // buffers to use again
};

}  // namespace deepnet

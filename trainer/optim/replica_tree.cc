#include "trainer/optim/replica_tree.h"

#include <ATen/ATen.h>

#include "parallel/base/check.h"

namespace deepnet {

void ReplicaTree::Push(Ops& ops, const at::Tensor& gradient) {
  at::Tensor buffer;
  if (free_.empty()) {
    buffer = at::empty_like(gradient);
  } else {
    buffer = free_.back();
    free_.pop_back();
  }
  buffer.copy_(gradient);
  pending_.push_back({0, buffer});
  while (pending_.size() > 1 && pending_.back().height == pending_[pending_.size() - 2].height) {
    const Subtree right = pending_.back();
    pending_.pop_back();
    ops.Add(pending_.back().sum, right.sum);
    pending_.back().height++;
    free_.push_back(right.sum);
  }
}

void ReplicaTree::Finish(const at::Tensor& gradient) {
  DEEPNET_CHECK_EQ(pending_.size(), 1u) << "replicas are not a power of two";
  gradient.copy_(pending_[0].sum);
  free_.push_back(pending_[0].sum);
  pending_.clear();
}

// Every subtree that waits stands to the left of what comes after it, and addition commutes.
void ReplicaTree::PushLast(Ops& ops, const at::Tensor& gradient) {
  for (; !pending_.empty(); pending_.pop_back()) {
    ops.Add(gradient, pending_.back().sum);
    free_.push_back(pending_.back().sum);
  }
}

void ReplicaTree::Reset() {
  for (const Subtree& subtree : pending_) free_.push_back(subtree.sum);
  pending_.clear();
}

}  // namespace deepnet

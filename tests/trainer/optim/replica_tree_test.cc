#include "trainer/optim/replica_tree.h"

#include <memory>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "trainer/kernels/native_ops.h"

namespace deepnet {
namespace {

constexpr int64_t kElements = 1000;

// Numbers of very different size, so that another order of additions is another sum.
at::Tensor Gradient(int replica) {
  const at::Tensor i = at::arange(kElements, at::kDouble);
  return (at::sin(i * (1.7 + replica)) * at::exp(at::cos(i + 3.0 * replica) * 8.0)).to(at::kFloat);
}

// (a + b) of subtrees, by definition.
at::Tensor TreeSum(int first, int count) {
  if (count == 1) return Gradient(first);
  return TreeSum(first, count / 2) + TreeSum(first + count / 2, count / 2);
}

std::vector<std::unique_ptr<Ops>> AllOps() {
  ComputeSpec compute;
  compute.set_dtype(FLOAT32);
  compute.set_threads_per_rank(2);
  std::vector<std::unique_ptr<Ops>> all;
  all.push_back(MakeAtenOps(at::kCPU, at::kFloat, at::kFloat));
  all.push_back(MakeNativeOps(compute));
  return all;
}

TEST(ReplicaTree, AddsAsABalancedTreeBitForBit) {
  for (const auto& ops : AllOps()) {
    for (const int replicas : {1, 2, 4, 8}) {
      ReplicaTree tree;
      for (int r = 0; r < replicas; ++r) tree.Push(*ops, Gradient(r));
      const at::Tensor sum = at::empty({kElements});
      tree.Finish(sum);
      EXPECT_TRUE(at::equal(sum, TreeSum(0, replicas))) << replicas;
    }
  }
}

TEST(ReplicaTree, TheLastReplicaCanBecomeTheSumWhereItIs) {
  for (const auto& ops : AllOps()) {
    ReplicaTree tree;
    for (const int replicas : {1, 2, 4, 8, 2}) {
      for (int r = 0; r + 1 < replicas; ++r) tree.Push(*ops, Gradient(r));
      const at::Tensor last = Gradient(replicas - 1);
      tree.PushLast(*ops, last);
      EXPECT_TRUE(at::equal(last, TreeSum(0, replicas))) << replicas;
    }
  }
}

TEST(ReplicaTree, ForgetsAStepThatDidNotEnd) {
  const auto ops = MakeAtenOps(at::kCPU, at::kFloat, at::kFloat);
  ReplicaTree tree;
  for (const int r : {5, 6, 7}) tree.Push(*ops, Gradient(r));
  tree.Reset();
  tree.Push(*ops, Gradient(0));
  const at::Tensor last = Gradient(1);
  tree.PushLast(*ops, last);
  EXPECT_TRUE(at::equal(last, TreeSum(0, 2)));
}

TEST(ReplicaTree, TheTestNumbersTellATreeFromAFold) {
  at::Tensor fold = Gradient(0);
  for (int r = 1; r < 8; ++r) fold = fold + Gradient(r);
  EXPECT_FALSE(at::equal(fold, TreeSum(0, 8)));
}

TEST(ReplicaTree, IsUsedAgainStepAfterStepAndLeavesWhatWasPushedAlone) {
  const auto ops = MakeAtenOps(at::kCPU, at::kFloat, at::kFloat);
  ReplicaTree tree;
  const at::Tensor gradient = at::empty({kElements});
  for (int step = 0; step < 3; ++step) {
    for (int r = 0; r < 4; ++r) {
      gradient.copy_(Gradient(r));  // one buffer for all replicas, as a step has it
      tree.Push(*ops, gradient);
      EXPECT_TRUE(at::equal(gradient, Gradient(r)));
    }
    tree.Finish(gradient);
    EXPECT_TRUE(at::equal(gradient, TreeSum(0, 4)));
  }
}

}  // namespace
}  // namespace deepnet

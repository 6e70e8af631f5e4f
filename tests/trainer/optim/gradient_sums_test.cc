#include "trainer/optim/gradient_sums.h"

#include <memory>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "parallel/base/status_macros.h"
#include "tests/support/one_bucket.h"
#include "tests/support/run_ranks.h"
#include "tests/trainer/optim/sharded_job.h"
#include "trainer/kernels/aten.h"
#include "trainer/kernels/compute.h"

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
  all.push_back(MakeAtenOps(at::kFloat, at::kFloat));
  all.push_back(MakeNativeOps(compute));
  return all;
}

TEST(ReplicaTree, AddsAsABalancedTreeBitForBitInThePlaceOfTheLastReplica) {
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
  const auto ops = MakeAtenOps(at::kFloat, at::kFloat);
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
  const auto ops = MakeAtenOps(at::kFloat, at::kFloat);
  ReplicaTree tree;
  const at::Tensor gradient = at::empty({kElements});
  for (int step = 0; step < 3; ++step) {
    for (int r = 0; r < 3; ++r) {
      gradient.copy_(Gradient(r));  // one buffer for all replicas, as a step has it
      tree.Push(*ops, gradient);
      EXPECT_TRUE(at::equal(gradient, Gradient(r)));
    }
    gradient.copy_(Gradient(3));
    tree.PushLast(*ops, gradient);
    EXPECT_TRUE(at::equal(gradient, TreeSum(0, 4)));
  }
}

TEST(AddParts, TheTestGradientsTellOneOrderFromAnother) {
  const auto ops = MakeJobOps(/*native=*/true);
  const Inventory model = SixLayers(/*tied=*/true);
  const auto sum = [&](std::vector<int> order, GradientSum how) {
    std::vector<at::Tensor> parts;
    for (const int r : order) {
      parts.push_back(JobGradient(model.layers[1], model.parameters[2], 1, r));
    }
    AddParts(*ops, parts, 0, how);
    return parts[0];
  };
  const at::Tensor tree = sum({0, 1, 2, 3, 4, 5, 6, 7}, STRICT);
  EXPECT_FALSE(at::equal(tree, sum({0, 1, 2, 3, 4, 5, 6, 7}, FAST)));
  EXPECT_FALSE(at::equal(tree, sum({0, 2, 1, 3, 4, 5, 6, 7}, STRICT)));
  EXPECT_TRUE(at::equal(tree, sum({1, 0, 3, 2, 5, 4, 7, 6}, STRICT))) << "addition commutes";
}

TEST(AddParts, EndsAtHomeWhereverThatIs) {
  const auto ops = MakeJobOps(/*native=*/true);
  const Inventory model = SixLayers(/*tied=*/true);
  for (const GradientSum order : {STRICT, FAST}) {
    for (int count = 1; count <= 8; ++count) {
      at::Tensor first;
      for (int home = 0; home < count; ++home) {
        std::vector<at::Tensor> parts;
        for (int r = 0; r < count; ++r) {
          parts.push_back(JobGradient(model.layers[1], model.parameters[2], 1, r));
        }
        AddParts(*ops, parts, home, order);
        if (home == 0) first = parts[0];
        EXPECT_TRUE(at::equal(parts[home], first)) << count << " " << home;
      }
    }
  }
}

TEST(GradientSums, AStepBeginsWithoutWhatAnotherOneLeft) {
  const Inventory model = SixLayers(/*tied=*/false);
  const auto ops = MakeJobOps(/*native=*/true);
  Parameters parameters(model, *ops, /*trainable=*/true);
  const ShardLayout layout = MakeShardLayout(model, model, testing::OneBucket(model), {});
  GradientSums sums(*ops, parameters, layout, {}, {.local_replicas = 2});
  sums.BeginStep();
  parameters.gradient().fill_(5.0f);
  ASSERT_TRUE(sums.ReplicaDone(0).ok());
  sums.BeginStep();  // that step did not end
  for (const float replica : {1.0f, 2.0f}) {
    parameters.gradient().add_(replica);
    ASSERT_TRUE(sums.ReplicaDone(0).ok());
  }
  ASSERT_TRUE(sums.Finish().ok());
  EXPECT_TRUE(at::equal(parameters.gradient(), at::full_like(parameters.gradient(), 3.0f)));
}

// Rank 1 hands its bucket over only when it has heard that rank 0 went on after doing so.
TEST(GradientSums, HandingOverABucketDoesNotWaitForOthers) {
  const Inventory model = SixLayers(/*tied=*/true);
  const absl::Status status = FirstError(RunRanks(2, [&](Communicator& world) -> absl::Status {
    ASSIGN_OR_RETURN(const OwnedGroups groups, SplitGroups(world, /*stage=*/0, world.rank()));
    const auto ops = MakeJobOps(/*native=*/true);
    Parameters parameters(model, *ops, /*trainable=*/true);
    const ShardLayout layout = MakeShardLayout(model, model, testing::OneBucket(model),
                                               {.num_replicas = 2, .replica = world.rank()});
    EXPECT_LE(parameters.gradient().numel(), kMaxWaiting) << "more may wait";
    GradientSums sums(*ops, parameters, layout, groups.all, {});
    sums.BeginStep();
    parameters.gradient().fill_(1.0f + world.rank());
    char word = 0;
    if (world.rank() == 0) {
      RETURN_IF_ERROR(sums.ReplicaDone(0));
      ASSIGN_OR_RETURN(const auto sent, world.Send(Buffer::Of(std::span(&word, 1)), 1, /*tag=*/0));
      RETURN_IF_ERROR(sent->Wait());
    } else {
      ASSIGN_OR_RETURN(const auto heard,
                       world.Receive(Buffer::Of(std::span(&word, 1)), 0, /*tag=*/0));
      RETURN_IF_ERROR(heard->Wait());
      RETURN_IF_ERROR(sums.ReplicaDone(0));
    }
    RETURN_IF_ERROR(sums.Finish());
    for (const Extent& e : layout.extents) {
      const double sum = layout.uses[0].count > e.weight ? 9.0 : 3.0;  // three uses, or one
      const at::Tensor mine = parameters.gradient().narrow(0, e.gradient, e.count);
      EXPECT_EQ(mine[e.count - 1].item<double>(), sum);
    }
    return absl::OkStatus();
  }));
  EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace deepnet

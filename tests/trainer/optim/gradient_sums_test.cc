#include "trainer/optim/gradient_sums.h"

#include <span>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "parallel/base/status_macros.h"
#include "tests/support/run_ranks.h"
#include "tests/trainer/optim/sharded_job.h"

namespace deepnet {
namespace {

// Rank 1 hands its bucket over only when it has heard that rank 0 went on after doing so.
TEST(GradientSums, HandingOverABucketDoesNotWaitForOthers) {
  const Inventory model = SixLayers(/*tied=*/true);
  const absl::Status status = FirstError(RunRanks(2, [&](Communicator& world) -> absl::Status {
    ASSIGN_OR_RETURN(const OwnedGroups groups, SplitGroups(world, /*stage=*/0, world.rank()));
    const auto ops = MakeJobOps(/*native=*/true);
    Parameters parameters(model, *ops, /*trainable=*/true);
    const ShardLayout layout = MakeShardLayout(model, model, OneBucket(model),
                                               {.num_replicas = 2, .replica = world.rank()});
    EXPECT_LE(parameters.gradient().numel(), GradientExchange::kMaxWaiting) << "more may wait";
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

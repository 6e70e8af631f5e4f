#include "trainer/optim/step_totals.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/run_ranks.h"
#include "tests/trainer/optim/sharded_job.h"
#include "trainer/kernels/aten.h"

namespace deepnet {
namespace {

// Losses whose sum depends on the order.
TEST(TotalLoss, IsTheSumInTheOrderOfMicrobatchesOnEveryRank) {
  constexpr int kMicrobatches = 16;
  std::vector<LossSums> all;
  for (int i = 0; i < kMicrobatches; ++i) {
    all.push_back(
        {.loss = std::exp(3.0 * std::sin(i)) / 3, .nll = std::exp(2.0 * std::cos(i)) / 7});
  }
  LossSums expected;
  for (const LossSums& one : all) {
    expected.loss += one.loss;
    expected.nll += one.nll;
  }
  for (const int ranks : {1, 2, 4, 8}) {
    const absl::Status status = FirstError(RunRanks(ranks, [&](Communicator& world) {
      std::vector<LossSums> mine(kMicrobatches);
      const int each = kMicrobatches / ranks;
      std::copy_n(all.begin() + world.rank() * each, each, mine.begin() + world.rank() * each);
      const absl::StatusOr<LossSums> total = TotalLoss(mine, {.world = &world});
      if (!total.ok()) return total.status();
      EXPECT_EQ(total->loss, expected.loss) << ranks;
      EXPECT_EQ(total->nll, expected.nll) << ranks;
      return absl::OkStatus();
    }));
    EXPECT_TRUE(status.ok()) << status;
  }
}

// A 1 at the start of each parameter among numbers whose squares are lost when they are added to 1
// but not when they are added to each other: any other block is another sum.
at::Tensor SensitiveGradient(const Inventory& model) {
  const at::Tensor gradient = at::full({model.NumElements()}, std::ldexp(1.0, -27), at::kFloat);
  for (const Parameter& p : model.parameters) gradient[p.offset].fill_(1.0);
  return gradient;
}

TEST(GradientNorm, AddsTheSameBlocksInEveryLayout) {
  for (const bool tied : {false, true}) {
    const Inventory model = SixLayers(tied);
    const at::Tensor gradient = SensitiveGradient(model);
    const double norm = TwinNorm(*MakeJobOps(/*native=*/true), model, gradient);
    const auto replace = [&](int, int64_t, const ShardLayout& layout, Parameters& parameters,
                             const Groups&) {
      for (const Extent& e : layout.extents) {
        parameters.gradient()
            .narrow(0, e.gradient, e.count)
            .copy_(gradient.narrow(0, e.whole, e.count));
      }
      return absl::OkStatus();
    };
    for (const Stages& stages : AllStages()) {
      for (const int replicas : {1, 2, 4}) {
        for (const int64_t piece : {3 * 4096, 1 << 24}) {
          const Job job{.stages = stages,
                        .replicas = replicas,
                        .virtual_replicas = replicas,
                        .piece_elements = piece,
                        .native = true,
                        .updates = 1};
          std::vector<RankResult> results;
          const absl::Status status = FirstError(RunJob(job, model, results, replace));
          EXPECT_TRUE(status.ok()) << status;
          for (const RankResult& result : results) {
            EXPECT_EQ(result.updates[0].gradient_norm, norm) << Describe(job);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace deepnet

#include "trainer/optim/loss_total.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/run_ranks.h"

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

}  // namespace
}  // namespace deepnet

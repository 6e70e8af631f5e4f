#include <string>
#include <vector>

#include "absl/strings/match.h"
#include <gtest/gtest.h>

#include "parallel/base/exit_code.h"
#include "tests/support/run_ranks.h"
#include "tests/trainer/optim/sharded_job.h"
#include "trainer/kernels/aten.h"
#include "trainer/optim/optimizer.h"

namespace deepnet {
namespace {

// Flips the lowest bit of one weight of `name` where rank is `bad`, then compares.
absl::Status FlipAndCheck(const Job& job, const Inventory& model, int bad,
                          const std::string& name) {
  const auto flip = [&](int rank, int64_t, const ShardLayout& layout, Parameters& parameters,
                        const Groups& groups) {
    if (rank == bad) {
      const at::Tensor weights = parameters.Get(name).reshape({-1});
      reinterpret_cast<uint32_t*>(weights.data_ptr<float>())[17] ^= 1;
    }
    return ReplicaCheck(model, layout).Run(parameters.weights(), groups);
  };
  std::vector<RankResult> results;
  return FirstError(RunJob(job, model, results, flip));
}

TEST(ReplicaCheck, NamesTheTensorAndTheRanksThatDiffer) {
  const Inventory model = SixLayers(/*tied=*/true);
  const Job job{
      .stages = AllStages()[1], .replicas = 3, .virtual_replicas = 3, .native = true, .updates = 1};
  const absl::Status status = FlipAndCheck(job, model, /*bad=*/1, "encoder.1.weight");
  EXPECT_EQ(GetExitCode(status), ExitCode::kReplicasDisagree);
  EXPECT_TRUE(absl::StrContains(status.message(), "encoder.1.weight")) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "ranks 0, 2 ")) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "rank 1 ")) << status;
}

// Ranks are those of the world, not of the group that compares.
TEST(ReplicaCheck, NamesTheRanksOfALaterStage) {
  const Inventory model = SixLayers(/*tied=*/true);
  const Job job{
      .stages = AllStages()[1], .replicas = 2, .virtual_replicas = 2, .native = true, .updates = 1};
  ASSERT_EQ(job.stages.size(), 2u);
  const absl::Status status = FlipAndCheck(job, model, /*bad=*/3, "decoder.0.weight");
  EXPECT_EQ(GetExitCode(status), ExitCode::kReplicasDisagree) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "rank 2 ")) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "rank 3 ")) << status;
}

TEST(ReplicaCheck, ComparesATiedTensorOverStages) {
  const Inventory model = SixLayers(/*tied=*/true);
  const Job job{.stages = AllStages()[2], .native = true, .updates = 1};
  const absl::Status status = FlipAndCheck(job, model, /*bad=*/2, "embed");
  EXPECT_EQ(GetExitCode(status), ExitCode::kReplicasDisagree);
  EXPECT_TRUE(absl::StrContains(status.message(), "embed")) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "ranks 0, 1 ")) << status;
}

TEST(ReplicaCheck, IsContentWithEqualWeights) {
  const Inventory model = SixLayers(/*tied=*/true);
  const Job job{.stages = AllStages()[3], .replicas = 2, .virtual_replicas = 2, .native = true};
  const absl::Status status = FlipAndCheck(job, model, /*bad=*/-1, "");
  EXPECT_TRUE(status.ok()) << status;
}

// A copy that is not its owner's is made anew with every update, so only the weights that the step
// of the comparison worked with show it.
TEST(OptimizerStep, ComparesTheWeightsOfEveryHundredthUpdateBeforeItChangesThem) {
  const Inventory model = SixLayers(/*tied=*/true);
  const Job job{.replicas = 2,
                .virtual_replicas = 2,
                .native = true,
                .updates = static_cast<int>(kUpdatesPerReplicaCheck)};
  const auto run_with_a_flip_at = [&](int64_t when) {
    const auto flip = [when](int rank, int64_t update, const ShardLayout&, Parameters& parameters,
                             const Groups&) {
      if (rank == 1 && update == when) parameters.weights()[0].add_(1e-3);
      return absl::OkStatus();
    };
    std::vector<RankResult> results;
    return FirstError(RunJob(job, model, results, flip));
  };
  EXPECT_EQ(GetExitCode(run_with_a_flip_at(kUpdatesPerReplicaCheck)), ExitCode::kReplicasDisagree);
  EXPECT_TRUE(run_with_a_flip_at(kUpdatesPerReplicaCheck - 1).ok());
}

}  // namespace
}  // namespace deepnet

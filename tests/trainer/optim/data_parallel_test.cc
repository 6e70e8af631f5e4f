// Sums, norms and updates on many ranks against one obvious loop, bit for bit.
#include <algorithm>
#include <cmath>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "tests/support/run_ranks.h"
#include "tests/trainer/optim/sharded_job.h"
#include "trainer/optim/gradient_exchange.h"
#include "trainer/optim/loss_total.h"
#include "trainer/optim/replica_check.h"

namespace deepnet {
namespace {

using Stages = std::vector<std::vector<LayerSpan>>;

// One rank; encoder and decoder; the tied matrix on three stages; a V whose first rank has both
// ends of the chain and, with it, the first and the last use.
const std::vector<Stages>& AllStages() {
  static const auto& stages = *new std::vector<Stages>{{{{0, 6}}},
                                                       {{{0, 3}}, {{3, 6}}},
                                                       {{{0, 2}}, {{2, 5}}, {{5, 6}}},
                                                       {{{0, 2}, {5, 6}}, {{2, 5}}}};
  return stages;
}

std::vector<RankResult> RunToTheEnd(const Job& job, const Inventory& model) {
  std::vector<RankResult> results;
  const absl::Status status = FirstError(RunJob(job, model, results));
  EXPECT_TRUE(status.ok()) << status;
  return results;
}

std::string Describe(const Job& job) {
  return absl::StrCat(job.stages.size(), " stages, ", job.replicas, " replicas, ",
                      job.virtual_replicas, " virtual, pieces of ", job.piece_elements);
}

void ExpectSameBits(const std::vector<RankResult>& results, const RankResult& twin,
                    const std::string& what) {
  std::map<std::string, at::Tensor> expected;
  for (size_t i = 0; i < twin.names.size(); ++i) expected[twin.names[i]] = twin.weights[i];
  for (size_t rank = 0; rank < results.size(); ++rank) {
    const RankResult& result = results[rank];
    for (size_t i = 0; i < result.names.size(); ++i) {
      EXPECT_TRUE(at::equal(result.weights[i], expected[result.names[i]]))
          << result.names[i] << " on rank " << rank << ", " << what;
    }
    ASSERT_EQ(result.updates.size(), twin.updates.size());
    for (size_t u = 0; u < twin.updates.size(); ++u) {
      EXPECT_EQ(result.updates[u].gradient_norm, twin.updates[u].gradient_norm) << what;
      EXPECT_FALSE(result.updates[u].skipped);
    }
  }
}

TEST(DataParallel, EveryNumberOfRanksGivesTheBitsOfOne) {
  for (const bool tied : {false, true}) {
    const Inventory model = SixLayers(tied);
    for (const int virtual_replicas : {1, 2, 4, 8}) {
      Job job{.virtual_replicas = virtual_replicas, .native = true};
      const RankResult twin = RunTwin(job, model);
      for (const Stages& stages : AllStages()) {
        job.stages = stages;
        for (job.replicas = 1; job.replicas <= virtual_replicas; job.replicas *= 2) {
          ExpectSameBits(RunToTheEnd(job, model), twin, Describe(job));
        }
      }
    }
  }
}

TEST(DataParallel, SizesOfPiecesChangeNoBit) {
  const Inventory model = SixLayers(/*tied=*/true);
  Job job{.stages = AllStages()[3], .replicas = 4, .virtual_replicas = 8, .native = true};
  const RankResult twin = RunTwin(job, model);
  for (const int64_t piece : {1, 2 * 4096, 5 * 4096, 1 << 24}) {
    job.piece_elements = piece;
    ExpectSameBits(RunToTheEnd(job, model), twin, Describe(job));
  }
}

TEST(DataParallel, NodesFirstGivesTheSameBitsAndSendsLessBetweenNodes) {
  const Inventory model = SixLayers(/*tied=*/true);
  for (const Stages& stages : {AllStages()[0], AllStages()[3]}) {
    Job job{.stages = stages, .replicas = 8, .virtual_replicas = 8, .native = true};
    const RankResult twin = RunTwin(job, model);
    for (const int local : {1, 2, 4, 8}) {
      job.replicas_per_node = local;
      const std::vector<RankResult> results = RunToTheEnd(job, model);
      ExpectSameBits(results, twin, Describe(job));
      const int64_t nodes = job.replicas / local;
      int64_t sent = 0, elements = 0;
      for (const RankResult& result : results) {
        sent += result.node_bytes_sent;
        elements += result.gradient_elements + result.weight_elements;
      }
      // Each of a node's replicas sends (nodes - 1) / nodes of the part that it has.
      EXPECT_EQ(sent, 4 * elements / (local * nodes) * (nodes - 1)) << local;
    }
  }
}

// A 1 at the start of each parameter among numbers whose squares are lost when they are added to 1
// but not when they are added to each other: any other block is another sum.
at::Tensor SensitiveGradient(const Inventory& model) {
  const at::Tensor gradient = at::full({model.NumElements()}, std::ldexp(1.0, -27), at::kFloat);
  for (const Parameter& p : model.parameters) gradient[p.offset].fill_(1.0);
  return gradient;
}

TEST(DataParallel, NormsAddTheSameBlocksInEveryLayout) {
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

TEST(DataParallel, TheReferenceOpsAgreeToo) {
  const Inventory model = SixLayers(/*tied=*/true);
  Job job{.stages = AllStages()[2], .replicas = 2, .virtual_replicas = 4};
  ExpectSameBits(RunToTheEnd(job, model), RunTwin(job, model), Describe(job));
}

// Rounding of sums of 8 numbers whose sizes differ by 2^12, through three updates of Adam, whose
// steps are at most the rate: a weight that a sum decides by its rounding may move the other way.
constexpr double kUpdateTolerance = 2.0 * 3 * 0.01;
constexpr double kNormTolerance = 1e-6;  // relative; float32 sums of at most 8 parts

void ExpectClose(const std::vector<RankResult>& results, const RankResult& twin, int replicas) {
  std::map<std::string, at::Tensor> expected, first;
  for (size_t i = 0; i < twin.names.size(); ++i) expected[twin.names[i]] = twin.weights[i];
  for (const RankResult& result : results) {
    for (size_t u = 0; u < twin.updates.size(); ++u) {
      const double norm = twin.updates[u].gradient_norm;
      EXPECT_NEAR(result.updates[u].gradient_norm, norm, kNormTolerance * norm) << replicas;
      EXPECT_EQ(result.updates[u].gradient_norm, results[0].updates[u].gradient_norm);
    }
    for (size_t i = 0; i < result.names.size(); ++i) {
      const at::Tensor error = (result.weights[i] - expected[result.names[i]]).abs();
      EXPECT_LE(error.max().item<double>(), kUpdateTolerance) << result.names[i];
      EXPECT_LE(error.mean().item<double>(), 1e-5) << result.names[i];
      const auto [other, is_new] = first.try_emplace(result.names[i], result.weights[i]);
      EXPECT_TRUE(at::equal(other->second, result.weights[i])) << "ranks differ";
    }
  }
}

TEST(DataParallel, FastSumsAndOtherNumbersOfRanksStayWithinRounding) {
  const Inventory model = SixLayers(/*tied=*/true);
  for (const int replicas : {1, 2, 4}) {
    Job job{.stages = AllStages()[1], .replicas = replicas, .virtual_replicas = 8, .order = FAST};
    job.native = true;
    ExpectClose(RunToTheEnd(job, model), RunTwin(job, model), replicas);
  }
}

// Three and five ranks with one virtual replica each: no tree, but one sum on all ranks.
TEST(DataParallel, RanksThatAreNoPowerOfTwoAgreeAmongThemselves) {
  const Inventory model = SixLayers(/*tied=*/true);
  for (const int replicas : {3, 5}) {
    for (const GradientSum order : {STRICT, FAST}) {
      const Job job{.stages = AllStages()[1],
                    .replicas = replicas,
                    .virtual_replicas = replicas,
                    .order = order,
                    .native = true};
      const std::vector<RankResult> results = RunToTheEnd(job, model);
      RankResult self = results[0];
      for (const std::string& name : results[replicas].names) {
        const size_t i =
            std::find(results[replicas].names.begin(), results[replicas].names.end(), name) -
            results[replicas].names.begin();
        if (std::find(self.names.begin(), self.names.end(), name) != self.names.end()) continue;
        self.names.push_back(name);
        self.weights.push_back(results[replicas].weights[i]);
      }
      ExpectSameBits(results, self, Describe(job));
    }
  }
}

TEST(DataParallel, EachReplicaKeepsMomentsOfItsShareOnly) {
  const Inventory model = SixLayers(/*tied=*/true);
  for (const int replicas : {1, 2, 3, 4, 8}) {
    const Job job{.stages = AllStages()[0],
                  .replicas = replicas,
                  .virtual_replicas = replicas,
                  .native = true,
                  .updates = 1};
    int64_t sum = 0;
    for (const RankResult& result : RunToTheEnd(job, model)) {
      sum += result.state_elements;
      EXPECT_LE(result.state_elements, model.NumElements() / replicas + 2 * kSumBlock);
    }
    EXPECT_EQ(sum, model.NumElements());
  }
}

// Gradients: each replica sends all but its share. Weights: each sends its share to all others.
TEST(DataParallel, SendsAsManyBytesAsARing) {
  const Inventory model = SixLayers(/*tied=*/false);
  for (const int replicas : {2, 4, 8}) {
    const Job job{.replicas = replicas, .virtual_replicas = replicas, .native = true, .updates = 1};
    int64_t sum = 0;
    for (const RankResult& result : RunToTheEnd(job, model)) {
      EXPECT_EQ(result.replica_bytes_sent, 4 * (result.gradient_elements - result.state_elements) +
                                               4 * (replicas - 1) * result.state_elements);
      sum += result.replica_bytes_sent;
    }
    EXPECT_EQ(sum, 2 * (replicas - 1) * 4 * model.NumElements());
  }
}

TEST(DataParallel, AloneSendsNothing) {
  const Job job{.virtual_replicas = 4, .native = true, .updates = 1};
  EXPECT_EQ(RunToTheEnd(job, SixLayers(true))[0].replica_bytes_sent, 0);
}

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

TEST(DataParallel, TheGradientsTellOneOrderFromAnother) {
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

TEST(DataParallel, ANonFiniteElementOnOneRankIsSkippedByAll) {
  const Inventory model = SixLayers(/*tied=*/true);
  const Job job{.stages = AllStages()[1], .replicas = 2, .virtual_replicas = 2, .native = true};
  const auto spoil = [](int rank, int64_t update, const ShardLayout& layout, Parameters& parameters,
                        const Groups&) {
    if (rank == 2 && update == 2) {
      parameters.gradient()[layout.extents.back().gradient].fill_(std::nanf(""));
    }
    return absl::OkStatus();
  };
  std::vector<RankResult> results;
  const absl::Status status = FirstError(RunJob(job, model, results, spoil));
  EXPECT_TRUE(status.ok()) << status;
  for (const RankResult& result : results) {
    EXPECT_FALSE(result.updates[0].skipped);
    EXPECT_TRUE(result.updates[1].skipped);
    EXPECT_FALSE(result.updates[2].skipped);
  }
}

// Flips the lowest bit of one weight of `name` where rank is `bad`, then compares.
absl::Status FlipAndCheck(const Job& job, const Inventory& model, int bad,
                          const std::string& name) {
  const auto flip = [&](int rank, int64_t, const ShardLayout& layout, Parameters& parameters,
                        const Groups& groups) {
    if (rank == bad) {
      const at::Tensor weights = parameters.Get(name).reshape({-1});
      reinterpret_cast<uint32_t*>(weights.data_ptr<float>())[17] ^= 1;
    }
    return CheckReplicas(model, layout, parameters.weights(), groups);
  };
  std::vector<RankResult> results;
  return FirstError(RunJob(job, model, results, flip));
}

TEST(CheckReplicas, NamesTheTensorAndTheRanksThatDiffer) {
  const Inventory model = SixLayers(/*tied=*/true);
  const Job job{
      .stages = AllStages()[1], .replicas = 3, .virtual_replicas = 3, .native = true, .updates = 1};
  const absl::Status status = FlipAndCheck(job, model, /*bad=*/1, "encoder.1.weight");
  EXPECT_EQ(GetExitCode(status), ExitCode::kReplicasDisagree);
  EXPECT_TRUE(absl::StrContains(status.message(), "encoder.1.weight")) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "ranks 0, 2 ")) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "rank 1 ")) << status;
}

TEST(CheckReplicas, ComparesATiedTensorOverStages) {
  const Inventory model = SixLayers(/*tied=*/true);
  const Job job{.stages = AllStages()[2], .native = true, .updates = 1};
  const absl::Status status = FlipAndCheck(job, model, /*bad=*/2, "embed");
  EXPECT_EQ(GetExitCode(status), ExitCode::kReplicasDisagree);
  EXPECT_TRUE(absl::StrContains(status.message(), "embed")) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "ranks 0, 1 ")) << status;
}

TEST(CheckReplicas, IsContentWithEqualWeights) {
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

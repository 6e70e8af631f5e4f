// Sums, norms and updates on many ranks against one obvious loop, bit for bit.
#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/run_ranks.h"
#include "tests/trainer/optim/sharded_job.h"
#include "trainer/kernels/aten.h"

namespace deepnet {
namespace {

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

}  // namespace
}  // namespace deepnet

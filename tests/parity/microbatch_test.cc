// The same pairs in one microbatch or in several give the same sums.
#include <cmath>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "parallel/comm/communicator.h"
#include "parallel/plan/schedule_generators.h"
#include "tests/support/tiny_model.h"
#include "trainer/data/batcher.h"
#include "trainer/kernels/aten.h"
#include "trainer/model/describe.h"
#include "trainer/train_step.h"

namespace deepnet {
namespace {

constexpr int kPairs = 8;

ModelSpec Spec() {
  ModelSpec spec = testing::TinySpec();
  spec.set_d_model(32);
  spec.set_ffn_dim(64);
  spec.set_vocabulary_size(61);
  spec.set_dropout(0.2);
  spec.set_attention_dropout(0.2);
  spec.set_activation_dropout(0.2);
  return spec;
}

MicrobatchSpec Limits() {
  MicrobatchSpec capacity;
  capacity.set_max_source_tokens(120);
  capacity.set_max_target_tokens(120);
  capacity.set_max_sentences(kPairs);
  return capacity;
}

// Eight pairs in `microbatches` equal shares; ordinals count through the step from `first_ordinal`.
StepBatch CutInto(int microbatches, int first_ordinal = 0) {
  std::mt19937 random(6);
  const auto sentence = [&] {
    std::vector<int32_t> ids;
    for (uint32_t n = random() % 13; n > 0; --n)
      ids.push_back(static_cast<int32_t>(4 + random() % 57));
    ids.push_back(2);
    return ids;
  };
  StepBatch batch;
  const MicrobatchSpec limits = Limits();
  for (int m = 0; m < microbatches; ++m) {
    MicrobatchBuilder builder(
        {limits.max_source_tokens(), limits.max_target_tokens(), limits.max_sentences()});
    for (int i = 0; i < kPairs / microbatches; ++i) {
      EncodedPair pair;
      pair.source = sentence();
      pair.labels = sentence();
      const int ordinal = first_ordinal + m * (kPairs / microbatches) + i;
      builder.Add(static_cast<uint32_t>(ordinal), pair);
    }
    batch.Add(std::move(builder).Build());
  }
  return batch;
}

struct Outcome {
  std::vector<double> losses, norms;
  at::Tensor weights;
};

// Steps of the same pairs, each cut as `cuts` says.
Outcome Train(const std::vector<int>& cuts, int virtual_replicas = 1, int first_ordinal = 0) {
  ComputeSpec compute;
  compute.set_dtype(FLOAT32);
  compute.set_threads_per_rank(2);
  compute.set_device("cpu");
  compute.set_matmul(NATIVE);
  RunSpec run;
  run.set_seed(9);
  *run.mutable_model() = Spec();
  *run.mutable_data()->mutable_microbatch() = Limits();
  *run.mutable_compute() = compute;
  OptimSpec& optim = *run.mutable_optim();
  optim.set_label_smoothing(0.1);
  optim.set_virtual_replicas(virtual_replicas);
  optim.set_schedule(CONSTANT);
  optim.set_warmup_steps(0);
  optim.set_learning_rate(1e-3);
  optim.set_beta1(0.9);
  optim.set_beta2(0.98);
  optim.set_epsilon(1e-4);  // not 1e-8: sign(g) of a tiny g would magnify its rounding
  const Inventory whole = Describe(run.model(), Limits());
  SelfCommunicator alone;
  const auto made = MakeRankContext(run, whole, LonePlan(whole, cuts[0]), alone);
  EXPECT_TRUE(made.ok()) << made.status();
  RankContext& part = **made;
  part.model->parameters().Initialize(5);
  part.model->Refresh();
  Outcome outcome;
  for (size_t step = 0; step < cuts.size(); ++step) {
    const StepBatch batch = CutInto(cuts[step], first_ordinal);
    part.schedule = *MakeNamedSchedule("single_stage", {.num_microbatches = cuts[step]});
    const auto result =
        RunTrainStep(batch, static_cast<int64_t>(step), static_cast<int64_t>(step) + 1, part);
    EXPECT_TRUE(result.ok()) << result.status();
    outcome.losses.push_back(result->loss);
    outcome.norms.push_back(result->update.gradient_norm);
  }
  outcome.weights = part.model->parameters().weights().clone();
  return outcome;
}

void ExpectNear(const Outcome& got, const Outcome& expected) {
  for (size_t i = 0; i < expected.losses.size(); ++i) {
    EXPECT_NEAR(got.losses[i], expected.losses[i], 1e-6 * expected.losses[i]) << i;
    EXPECT_NEAR(got.norms[i], expected.norms[i], 1e-5 * expected.norms[i]) << i;
  }
}

TEST(TrainStep, TheCutIntoMicrobatchesHardlyMattersDropoutOn) {
  const Outcome whole = Train({1, 1, 1});
  EXPECT_NE(whole.losses[0], whole.losses[2]);
  ExpectNear(Train({2, 2, 2}), whole);
  ExpectNear(Train({8, 4, 2}), whole);
}

TEST(TrainStep, DropoutFollowsThePairsOrdinal) {
  const double loss = Train({2}).losses[0];
  EXPECT_GT(std::abs(Train({2}, 1, /*first_ordinal=*/1).losses[0] / loss - 1), 1e-3);
}

TEST(TrainStep, TheNumberOfVirtualReplicasHardlyMatters) {
  const Outcome fold = Train({8, 8, 8});
  ExpectNear(Train({8, 8, 8}, 2), fold);
  ExpectNear(Train({8, 8, 8}, 8), fold);
  EXPECT_EQ(Train({8, 8, 8}, 8).losses[0], fold.losses[0]);  // no gradient in the first loss
}

TEST(TrainStep, TheSameCutIsTheSameBitForBit) {
  for (const int replicas : {1, 2, 4}) {
    const Outcome first = Train({4, 8, 4}, replicas), second = Train({4, 8, 4}, replicas);
    EXPECT_EQ(first.losses, second.losses);
    EXPECT_EQ(first.norms, second.norms);
    EXPECT_TRUE(at::equal(first.weights, second.weights));
  }
}

}  // namespace
}  // namespace deepnet

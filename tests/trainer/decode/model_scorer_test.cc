// Incremental decoding against the forward pass of training, and rows against each other.
#include "trainer/decode/model_scorer.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/devices.h"
#include "tests/support/host_scorer.h"
#include "tests/support/stepped_pair_scorer.h"
#include "tests/support/tiny_model.h"
#include "trainer/decode/search.h"
#include "trainer/kernels/aten.h"
#include "trainer/kernels/compute.h"

namespace deepnet {
namespace {

using testing::OnDevice;
using testing::StepForAll;
using testing::SteppedPairScorer;
using testing::TinySpec;

using Ids = std::vector<int32_t>;

MicrobatchSpec Capacity(int source, int target) {
  MicrobatchSpec capacity;
  capacity.set_max_source_tokens(source);
  capacity.set_max_target_tokens(target);
  capacity.set_max_sentences(target);
  return capacity;
}

std::unique_ptr<Ops> Native(DataType dtype) {
  ComputeSpec compute;
  compute.set_dtype(dtype);
  compute.set_threads_per_rank(2);
  return MakeNativeOps(compute);
}

// Wider than TinySpec: rows of several vectors, and products of several panels.
std::vector<ModelSpec> Variants() {
  std::vector<ModelSpec> specs;
  for (const Residual residual : testing::AllResiduals()) {
    ModelSpec spec = testing::WithResidual(TinySpec(), residual);
    spec.set_d_model(48);
    spec.set_ffn_dim(80);
    spec.set_num_heads(3);
    spec.set_vocabulary_size(61);
    spec.set_dropout(0.3);  // training's: nothing of it may be seen here
    spec.set_attention_dropout(0.3);
    spec.set_activation_dropout(0.3);
    if (residual != DEEPNORM) spec.set_positions(LEARNED);
    if (residual == PRE_LN) {
      spec.set_activation(GELU);
      spec.set_tied_embeddings(TIE_NONE);
    }
    specs.push_back(spec);
  }
  return specs;
}

std::unique_ptr<Transformer> MakeModel(const ModelSpec& spec, const MicrobatchSpec& capacity,
                                       Ops& ops) {
  auto model = std::make_unique<Transformer>(spec, capacity, ops, /*trainable=*/false);
  model->parameters().Initialize(5);
  const at::Tensor& w = model->parameters().weights();
  const at::Tensor moved =
      w.to(at::kCPU) + 0.1 * at::sin(at::arange(w.numel(), at::kDouble) * 1.7).to(at::kFloat);
  w.copy_(moved * testing::WeightScale(spec));
  model->Refresh();
  model->set_step(2);
  return model;
}

Ids Sentence(std::mt19937& random, int length) {
  Ids ids;
  for (int i = 1; i < length; ++i) ids.push_back(static_cast<int32_t>(4 + random() % 57));
  ids.push_back(kEos);
  return ids;
}

std::vector<EncodedPair> SomePairs() {
  std::mt19937 random(11);
  std::vector<EncodedPair> pairs;
  for (int i = 0; i < 7; ++i) {
    const int source = 1 + static_cast<int>(random() % 17),
              target = 1 + static_cast<int>(random() % 15);
    pairs.push_back({Sentence(random, source), Sentence(random, target)});
  }
  return pairs;
}

// Log-probabilities behind `history`, a token a row and step, for rows started together.
std::vector<float> Decode(ModelScorer& scorer, const std::vector<Ids>& sources,
                          const std::vector<Ids>& histories) {
  const auto state = scorer.Start(sources);
  std::vector<float> log_probs;
  for (size_t t = 0; t < histories[0].size(); ++t) {
    Ids tokens;
    for (const Ids& history : histories) tokens.push_back(history[t]);
    log_probs = StepForAll(scorer, *state, tokens);
  }
  return log_probs;
}

std::vector<float> Row(const std::vector<float>& log_probs, size_t row, int64_t vocabulary) {
  const auto begin = log_probs.begin() + static_cast<int64_t>(row) * vocabulary;
  return {begin, begin + vocabulary};
}

void ExpectNear(const std::vector<float>& got, const std::vector<float>& expected,
                double tolerance) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], tolerance) << i;
}

void ExpectEqualsTheForwardPassOfTraining(Ops& ops) {
  constexpr double kFloat32 = 1e-5;  // a token
  const std::vector<EncodedPair> pairs = SomePairs();
  for (const ModelSpec& spec : Variants()) {
    SCOPED_TRACE(spec.ShortDebugString());
    const auto model = MakeModel(spec, Capacity(40, 30), ops);
    ModelScorer scorer(*model);
    const std::vector<double> stepped =
        SteppedPairScorer(scorer, /*max_rows=*/5).LogProbabilities(pairs);
    const std::vector<double> at_once = ModelPairScorer(*model).LogProbabilities(pairs);
    for (size_t i = 0; i < pairs.size(); ++i) {
      const double tokens = static_cast<double>(pairs[i].labels.size());
      EXPECT_NEAR(stepped[i], at_once[i], kFloat32 * tokens);
      EXPECT_LT(at_once[i], -tokens);  // not by chance near 0
    }
  }
}

TEST(ModelScorer, EqualsTheForwardPassOfTrainingWithNativeKernels) {
  ExpectEqualsTheForwardPassOfTraining(*Native(FLOAT32));
}

TEST_P(OnDevice, EqualsTheForwardPassOfTrainingOnTheDevice) {
  ExpectEqualsTheForwardPassOfTraining(*MakeFloat32Ops());
}

TEST(ModelScorer, GivesDistributions) {
  const auto ops = Native(BFLOAT16);
  const auto model = MakeModel(Variants()[0], Capacity(40, 30), *ops);
  ModelScorer scorer(*model);
  const std::vector<float> log_probs = Decode(scorer, {{7, 9, 2}, {5, 2}}, {{2, 8}, {2, 6}});
  for (size_t row = 0; row < 2; ++row) {
    double sum = 0.0;
    for (const float x : Row(log_probs, row, 61)) sum += std::exp(x);
    EXPECT_NEAR(sum, 1.0, 1e-5);
  }
}

// Rows fork, vanish and change places; each then equals one that was decoded alone from the start.
void ExpectReorderedRowsEqualRowsAlone(Ops& ops, double tolerance) {
  for (const ModelSpec& spec : Variants()) {
    SCOPED_TRACE(spec.ShortDebugString());
    const auto model = MakeModel(spec, Capacity(60, 50), ops);
    ModelScorer scorer(*model);
    const std::vector<Ids> sources = {{9, 8, 7, 2}, {5, 2}, {33, 21, 40, 52, 11, 2}};
    std::vector<Ids> histories = {{2, 10}, {2, 20}, {2, 30}};
    std::vector<size_t> source_of = {0, 1, 2};
    const auto state = scorer.Start(sources);
    for (size_t t = 0; t < 2; ++t) {
      const Ids tokens = {histories[0][t], histories[1][t], histories[2][t]};
      StepForAll(scorer, *state, tokens);
    }
    for (const std::vector<int32_t>& parents :
         {std::vector<int32_t>{2, 0, 2, 0, 2}, {4, 1}, {0, 1, 1, 0, 1, 0}}) {
      scorer.Reorder(*state, parents);
      ASSERT_EQ(state->num_rows(), static_cast<int>(parents.size()));
      std::vector<Ids> moved;
      std::vector<size_t> moved_sources;
      Ids tokens;
      for (size_t row = 0; row < parents.size(); ++row) {
        moved.push_back(histories[parents[row]]);
        moved_sources.push_back(source_of[parents[row]]);
        tokens.push_back(static_cast<int32_t>(12 + row));
        moved.back().push_back(tokens.back());
      }
      histories = moved;
      source_of = moved_sources;
      const std::vector<float> log_probs = StepForAll(scorer, *state, tokens);
      for (size_t row = 0; row < parents.size(); ++row) {
        const std::vector<float> got = Row(log_probs, row, spec.vocabulary_size());
        const std::vector<float> alone =
            Decode(scorer, {sources[source_of[row]]}, {histories[row]});
        if (tolerance == 0.0) {
          EXPECT_EQ(got, alone);
        } else {
          ExpectNear(got, alone, tolerance);
        }
      }
    }
    scorer.Reorder(*state, {});
    EXPECT_EQ(state->num_rows(), 0);
  }
}

TEST(ModelScorer, ReorderedRowsEqualRowsAloneBitForBitWithNativeKernels) {
  for (const DataType dtype : {FLOAT32, BFLOAT16}) {
    ExpectReorderedRowsEqualRowsAlone(*Native(dtype), 0.0);
  }
}

TEST_P(OnDevice, ReorderedRowsEqualRowsAloneOnTheDevice) {
  ExpectReorderedRowsEqualRowsAlone(*MakeFloat32Ops(), 2e-5);
}

INSTANTIATE_TEST_SUITE_P(ModelScorer, OnDevice, ::testing::ValuesIn(testing::Devices()),
                         testing::DeviceName);

// With the best token alone left, a sample is the greedy translation.
TEST(ModelScorer, DrawsFromWhatTheCutsLeave) {
  const auto ops = Native(FLOAT32);
  const auto model = MakeModel(Variants()[0], Capacity(40, 30), *ops);
  ModelScorer scorer(*model);
  const SearchBatch batch = {.sources = {{9, 8, 7, 2}, {5, 2}, {33, 21, 40, 2}}};
  SearchOptions options = {.beam_size = 1, .max_tokens = 8};
  const auto greedy = Search(scorer, batch, options);
  options.sampling_temperature = 1.0;
  const native::TokenCuts all_cuts[] = {{.top_k = 1}, {.top_p = 1e-9}, {.epsilon = 1.0}};
  for (const native::TokenCuts& cuts : all_cuts) {
    options.sampling_cuts = cuts;
    const auto drawn = Search(scorer, batch, options);
    for (size_t i = 0; i < drawn.size(); ++i) EXPECT_EQ(drawn[i][0].tokens, greedy[i][0].tokens);
  }
  options.sampling_cuts = {};
  EXPECT_NE(Search(scorer, batch, options)[0][0].tokens, greedy[0][0].tokens);
}

TEST(ModelScorer, ManySourcesThroughASmallModelEqualOneBigBatchBitForBit) {
  std::mt19937 random(4);
  std::vector<Ids> sources, histories;
  for (int i = 0; i < 45; ++i) {
    // One has all tokens that a pass of the small model takes.
    sources.push_back(Sentence(random, i == 9 ? 24 : 1 + static_cast<int>(random() % 20)));
    histories.push_back({2, static_cast<int32_t>(4 + i), 17, 9});
  }
  for (const DataType dtype : {FLOAT32, BFLOAT16}) {
    const auto ops = Native(dtype);
    for (const ModelSpec& spec : Variants()) {
      const auto small = MakeModel(spec, Capacity(24, 7), *ops);
      const auto big = MakeModel(spec, Capacity(2000, 300), *ops);
      ModelScorer small_scorer(*small), big_scorer(*big);
      EXPECT_EQ(Decode(small_scorer, sources, histories), Decode(big_scorer, sources, histories));
    }
  }
}

// More target tokens than logits are kept of at a time.
TEST(ModelPairScorer, PairsOfALargePassHaveTheBitsOfASmallOne) {
  const std::vector<EncodedPair> pairs = SomePairs();
  std::vector<EncodedPair> many;
  size_t tokens = 0;
  for (int copy = 0; copy < 15; ++copy) {
    many.insert(many.end(), pairs.begin(), pairs.end());
    for (const EncodedPair& pair : pairs) tokens += pair.labels.size();
  }
  ASSERT_GT(tokens, 512u);
  const auto ops = Native(FLOAT32);
  const auto model = MakeModel(Variants()[0], Capacity(3000, static_cast<int>(tokens)), *ops);
  ModelPairScorer scorer(*model);
  const std::vector<double> few = scorer.LogProbabilities(pairs);
  const std::vector<double> all = scorer.LogProbabilities(many);
  for (size_t i = 0; i < many.size(); ++i) EXPECT_EQ(all[i], few[i % few.size()]) << i;
}

TEST(ModelPairScorer, PairsDoNotDependOnTheirNeighboursBitForBit) {
  const std::vector<EncodedPair> pairs = SomePairs();
  for (const DataType dtype : {FLOAT32, BFLOAT16}) {
    const auto ops = Native(dtype);
    const auto model = MakeModel(Variants()[0], Capacity(40, 30), *ops);
    ModelPairScorer scorer(*model);
    const std::vector<double> together = scorer.LogProbabilities(pairs);
    for (size_t i = 0; i < pairs.size(); ++i) {
      EXPECT_EQ(scorer.LogProbabilities({&pairs[i], 1})[0], together[i]) << i;
    }
  }
}

}  // namespace
}  // namespace deepnet

// Ensembles against their definition, from the models' own log-probabilities.
#include "trainer/decode/ensemble_scorer.h"

#include <cmath>
#include <memory>
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

using testing::HostScorer;
using testing::OnDevice;
using testing::StepForAll;
using testing::SteppedPairScorer;

using Ids = std::vector<int32_t>;

constexpr int kVocabulary = 61;

MicrobatchSpec Capacity(int target_tokens) {
  MicrobatchSpec capacity;
  capacity.set_max_source_tokens(40);
  capacity.set_max_target_tokens(target_tokens);
  capacity.set_max_sentences(target_tokens);
  return capacity;
}

// Models of different widths, depths, schemes and capacities over one vocabulary.
std::vector<std::unique_ptr<Transformer>> MakeModels(Ops& ops) {
  std::vector<std::unique_ptr<Transformer>> models;
  for (int i = 0; i < 3; ++i) {
    ModelSpec spec = testing::WithResidual(testing::TinySpec(), i == 1 ? PRE_LN : DEEPNORM);
    spec.set_d_model(16 + 8 * i);
    spec.set_ffn_dim(24);
    spec.set_decoder_layers(3 - i);
    spec.set_vocabulary_size(kVocabulary);
    auto model = std::make_unique<Transformer>(spec, Capacity(24 + 4 * i), ops, false);
    model->parameters().Initialize(static_cast<uint64_t>(5 + i));
    const at::Tensor& w = model->parameters().weights();
    w.copy_(w.to(at::kCPU) +
            0.1 * at::sin(at::arange(w.numel(), at::kDouble) * (1.7 + i)).to(at::kFloat));
    model->Refresh();
    models.push_back(std::move(model));
  }
  return models;
}

std::vector<Transformer*> Pointers(const std::vector<std::unique_ptr<Transformer>>& models) {
  std::vector<Transformer*> pointers;
  for (const auto& model : models) pointers.push_back(model.get());
  return pointers;
}

std::vector<Ids> Sentences(int count, int seed) {
  std::vector<Ids> sentences;
  for (int i = 0; i < count; ++i) {
    Ids& ids = sentences.emplace_back();
    for (int t = 0; t < (7 * i + seed) % 9; ++t) ids.push_back(4 + (seed * (i + t * t) + 11) % 57);
    ids.push_back(kEos);
  }
  return sentences;
}

// The definition, on the host: all log-probabilities of all members, averaged in double.
class SlowEnsemble : public HostScorer {
 public:
  explicit SlowEnsemble(const std::vector<Transformer*>& models) {
    for (Transformer* model : models) members_.push_back(std::make_unique<ModelScorer>(*model));
  }
  int64_t vocabulary_size() const override { return kVocabulary; }
  std::unique_ptr<DecoderState> Start(std::span<const Ids> sources) override {
    auto state = std::make_unique<State>();
    for (const auto& member : members_) state->members.push_back(member->Start(sources));
    return state;
  }
  void Reorder(DecoderState& state, std::span<const int32_t> parents) override {
    for (size_t i = 0; i < members_.size(); ++i) {
      members_[i]->Reorder(*static_cast<State&>(state).members[i], parents);
    }
  }
  void StepRows(DecoderState& state, std::span<const int32_t> tokens, float* log_probs) override {
    std::vector<double> sums(tokens.size() * kVocabulary, 0.0);
    for (size_t i = 0; i < members_.size(); ++i) {
      const std::vector<float> of_member =
          StepForAll(*members_[i], *static_cast<State&>(state).members[i], tokens);
      for (size_t j = 0; j < sums.size(); ++j) sums[j] += std::exp(double{of_member[j]});
    }
    for (size_t j = 0; j < sums.size(); ++j) {
      log_probs[j] = static_cast<float>(std::log(sums[j] / static_cast<double>(members_.size())));
    }
  }

 private:
  struct State : public DecoderState {
    int num_rows() const override { return members.front()->num_rows(); }
    std::vector<std::unique_ptr<DecoderState>> members;
  };

  std::vector<std::unique_ptr<ModelScorer>> members_;
};

// More rows than a slice of any member.
const SearchOptions kBeam{.beam_size = 5, .max_tokens = 7, .nbest = 5, .forbidden = {60}};

SearchBatch Batch() {
  SearchBatch batch{.sources = Sentences(6, 3), .tags = {}};
  for (size_t i = 0; i < 6; ++i) {
    batch.tags.emplace_back(i % 3, 7);
    batch.prefixes.emplace_back(i % 2, 9);
  }
  return batch;
}

std::vector<EncodedPair> Pairs() {
  const std::vector<Ids> sources = Sentences(6, 3), targets = Sentences(6, 4);
  std::vector<EncodedPair> pairs;
  for (size_t i = 0; i < sources.size(); ++i) pairs.push_back({sources[i], targets[i]});
  return pairs;
}

void ExpectSame(const std::vector<std::vector<Hypothesis>>& got,
                const std::vector<std::vector<Hypothesis>>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].size(), expected[i].size()) << i;
    for (size_t h = 0; h < got[i].size(); ++h) {
      EXPECT_EQ(got[i][h].tokens, expected[i][h].tokens) << i << " " << h;
      EXPECT_NEAR(got[i][h].log_prob, expected[i][h].log_prob, 1e-5) << i << " " << h;  // float32
    }
  }
}

TEST_P(OnDevice, SearchesAndSamplesAsTheDefinitionDoes) {
  const auto ops = MakeFloat32Ops();
  const auto owned = MakeModels(*ops);
  std::vector<Transformer*> models = Pointers(owned);
  for (; models.size() > 1; models.pop_back()) {
    SCOPED_TRACE(models.size());
    EnsembleScorer ensemble(models);
    SlowEnsemble slow(models);
    ExpectSame(Search(ensemble, Batch(), kBeam), Search(slow, Batch(), kBeam));
    const SearchOptions sampling{
        .max_tokens = 7, .nbest = 3, .sampling_temperature = 1.1, .sampling_cuts = {.top_k = 20}};
    ExpectSame(Search(ensemble, Batch(), sampling), Search(slow, Batch(), sampling));
  }
}

TEST_P(OnDevice, ScoresPairsAsItSearches) {
  const auto ops = MakeFloat32Ops();
  const auto models = MakeModels(*ops);
  EnsembleScorer ensemble(Pointers(models));
  const std::vector<double> stepped = SteppedPairScorer(ensemble).LogProbabilities(Pairs());
  const std::vector<double> at_once =
      EnsemblePairScorer(Pointers(models)).LogProbabilities(Pairs());
  const std::vector<double> of_first = ModelPairScorer(*models[0]).LogProbabilities(Pairs());
  ASSERT_EQ(at_once.size(), stepped.size());
  for (size_t i = 0; i < stepped.size(); ++i) {
    EXPECT_NEAR(at_once[i], stepped[i], 1e-4) << i;  // of 9 tokens in float32
    EXPECT_GT(std::abs(at_once[i] - of_first[i]), 1e-3) << i;
  }
}

void ExpectOneModelsBits(Ops& ops) {
  const auto models = MakeModels(ops);
  ModelScorer scorer(*models[0]);
  ModelPairScorer pair_scorer(*models[0]);
  for (const size_t n : {1, 2, 3, 5}) {
    const std::vector<Transformer*> same(n, models[0].get());
    EnsembleScorer ensemble(same);
    EXPECT_EQ(Search(ensemble, Batch(), kBeam), Search(scorer, Batch(), kBeam)) << n;
    EXPECT_EQ(EnsemblePairScorer(same).LogProbabilities(Pairs()),
              pair_scorer.LogProbabilities(Pairs()))
        << n;
  }
}

TEST_P(OnDevice, OfOneModelSeveralTimesHasItsBits) { ExpectOneModelsBits(*MakeFloat32Ops()); }

TEST(EnsembleScorer, OfOneModelSeveralTimesHasItsBitsWithNativeKernels) {
  ComputeSpec compute;
  compute.set_dtype(BFLOAT16);
  compute.set_threads_per_rank(2);
  ExpectOneModelsBits(*MakeNativeOps(compute));
}

INSTANTIATE_TEST_SUITE_P(EnsembleScorer, OnDevice, ::testing::ValuesIn(testing::Devices()),
                         testing::DeviceName);

}  // namespace
}  // namespace deepnet

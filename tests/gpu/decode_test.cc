// Searches, samples and scores on the emulated GPU: the CPU's tokens, and what a step costs in
// launches, waits and allocations.
#include <algorithm>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include "tests/gpu/emulated/device.h"
#include "tests/support/run_ranks.h"
#include "tests/support/tiny_model.h"
#include "trainer/decode/model_scorer.h"
#include "trainer/decode/pipeline_scorer.h"
#include "trainer/decode/search.h"
#include "trainer/kernels/compute.h"
#include "trainer/model/describe.h"

namespace deepnet {
namespace {

using Ids = std::vector<int32_t>;

constexpr int kVocabulary = 61;

ModelSpec Spec(Residual residual) {
  ModelSpec spec = testing::WithResidual(testing::TinySpec(), residual);
  spec.set_d_model(16);
  spec.set_ffn_dim(24);
  spec.set_vocabulary_size(kVocabulary);
  spec.set_dropout(0.3);  // training's: nothing of it may be seen here
  return spec;
}

MicrobatchSpec Capacity(int target_tokens) {
  MicrobatchSpec capacity;
  capacity.set_max_source_tokens(24);
  capacity.set_max_target_tokens(target_tokens);
  capacity.set_max_sentences(5);
  return capacity;
}

std::unique_ptr<Ops> MakeGpu(int index, at::ScalarType operand = at::kFloat) {
  const c10::impl::VirtualGuardImpl guard(GpuType().value());
  guard.setDevice({guard.type(), static_cast<c10::DeviceIndex>(index)});
  return MakeCudaOps(guard.getDevice(), operand, /*check_launches=*/false);
}

std::unique_ptr<Ops> MakeCpu() {
  ComputeSpec compute;
  compute.set_dtype(FLOAT32);
  compute.set_threads_per_rank(1);
  return MakeNativeOps(compute);
}

// Values with a life of their own, equal by name on whoever holds them; made on the host, because a
// device's tensors can only be copied.
void SetWeights(Transformer& model) {
  Parameters& parameters = model.parameters();
  parameters.Initialize(5);
  for (const Parameter& parameter : parameters.inventory().parameters) {
    const at::Tensor w = parameters.Get(parameter.name);
    const at::Tensor host = w.to(at::Device(at::kCPU), /*non_blocking=*/false, /*copy=*/true);
    host.add_(at::sin(at::arange(w.numel(), at::kDouble) * 1.7).view(w.sizes()).to(at::kFloat),
              0.1);
    w.copy_(host.mul_(testing::WeightScale(model.spec())));
  }
  model.Refresh();
}

std::vector<Ids> Sentences(int count, uint32_t longest, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<Ids> sentences;
  for (int i = 0; i < count; ++i) {
    Ids& ids = sentences.emplace_back(random() % longest);
    for (int32_t& id : ids) id = static_cast<int32_t>(4 + random() % (kVocabulary - 4));
    ids.push_back(kEos);
  }
  return sentences;
}

struct Results {
  std::vector<std::vector<Hypothesis>> beam, greedy, samples, nucleus;
  std::vector<double> log_probabilities;

  friend bool operator==(const Results&, const Results&) = default;
};

// More rows than a microbatch has room for, forced tags of some, and a forbidden token.
Results Use(Scorer& scorer, PairScorer& pair_scorer) {
  const std::vector<Ids> sources = Sentences(6, 14, 4);
  const SearchBatch batch{.sources = sources,
                          .tags = {{}, {7}, {}, {9, 8}, {}, {}},
                          .prefixes = {{}, {11}, {12, 13, 5}, {}, {}, {}}};
  Results results;
  results.beam =
      Search(scorer, batch, {.beam_size = 4, .max_tokens = 7, .nbest = 4, .forbidden = {5, 60}});
  results.greedy = Search(scorer, batch, {.beam_size = 1, .max_tokens = 7});
  results.samples = Search(
      scorer, batch,
      {.min_tokens = 2, .max_tokens = 7, .nbest = 3, .sampling_temperature = 1.2, .seed = 5});
  results.nucleus = Search(scorer, batch,
                           {.max_tokens = 7,
                            .nbest = 3,
                            .sampling_temperature = 1.2,
                            .sampling_cuts = {.top_k = 30, .top_p = 0.87, .epsilon = 0.021}});
  std::vector<EncodedPair> pairs;
  const std::vector<Ids> targets = Sentences(6, 11, 9);
  for (int i = 0; i < 6; ++i) pairs.push_back({sources[i], targets[i]});
  results.log_probabilities = pair_scorer.LogProbabilities(pairs);
  return results;
}

Results UseWhole(const ModelSpec& spec, Ops& ops) {
  Transformer model(spec, Capacity(16), ops, /*trainable=*/false);
  SetWeights(model);
  ModelScorer scorer(model);
  ModelPairScorer pair_scorer(model);
  return Use(scorer, pair_scorer);
}

void ExpectSame(const std::vector<std::vector<Hypothesis>>& got,
                const std::vector<std::vector<Hypothesis>>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].size(), expected[i].size()) << i;
    for (size_t h = 0; h < got[i].size(); ++h) {
      EXPECT_EQ(got[i][h].tokens, expected[i][h].tokens) << i << " " << h;
      EXPECT_NEAR(got[i][h].score, expected[i][h].score, 1e-5) << i << " " << h;
    }
  }
}

TEST(GpuDecode, GivesTheCpusTokensAndScores) {
  for (const Residual residual : {DEEPNORM, PRE_LN, ADMIN, MIX_LN}) {
    SCOPED_TRACE(Residual_Name(residual));
    const ModelSpec spec = Spec(residual);
    const Results cpu = UseWhole(spec, *MakeCpu()), gpu = UseWhole(spec, *MakeGpu(0));
    ExpectSame(gpu.beam, cpu.beam);
    ExpectSame(gpu.greedy, cpu.greedy);
    ExpectSame(gpu.samples, cpu.samples);
    ExpectSame(gpu.nucleus, cpu.nucleus);
    for (size_t i = 0; i < cpu.log_probabilities.size(); ++i) {
      EXPECT_NEAR(gpu.log_probabilities[i], cpu.log_probabilities[i], 1e-4) << i;  // of 11 tokens
    }
  }
}

// Tokens are chosen where the output layer is, of ranks each with a GPU of its own.
TEST(GpuDecode, PipelinesGiveTheBitsOfOneGpu) {
  const ModelSpec spec = Spec(DEEPNORM);
  for (const at::ScalarType operand : {at::kFloat, at::kBFloat16}) {
    const Results alone = UseWhole(spec, *MakeGpu(0, operand));
    const std::vector<int> ends = {6, 8};  // of a chain of 8 layers: both have decoder layers
    const Placement placement{.rank_of_chunk = {0, 1}};
    Results cut;
    const auto statuses = RunRanks(2, [&](Communicator& comm) -> absl::Status {
      const auto ops = MakeGpu(comm.rank(), operand);
      const ChunkSpec chunk{.layers = {comm.rank() == 0 ? 0 : ends[0], ends[comm.rank()]}};
      Transformer model(spec, Capacity(16), *ops, /*trainable=*/false, {chunk});
      SetWeights(model);
      PipelineLink link(
          MakePipelineRoute(Describe(spec, Capacity(16)), ends, placement, comm.rank()), comm, {});
      if (comm.rank() == 0) return ServePipeline(model, link);
      PipelineScorer scorer(model, link);
      cut = Use(scorer, scorer);
      return scorer.Stop();
    });
    ASSERT_TRUE(FirstError(statuses).ok()) << FirstError(statuses);
    EXPECT_EQ(cut, alone);
  }
}

// --- costs ---

// Counts what each step of a search costs, the re-ordering before it included.
class CountingScorer : public Scorer {
 public:
  explicit CountingScorer(Scorer& scorer) : scorer_(scorer) {}

  int64_t vocabulary_size() const override { return scorer_.vocabulary_size(); }
  std::unique_ptr<DecoderState> Start(std::span<const Ids> sources) override {
    auto state = scorer_.Start(sources);
    before_ = emulated_gpu::ReadCounters();
    return state;
  }
  void Reorder(DecoderState& state, std::span<const int32_t> parents) override {
    scorer_.Reorder(state, parents);
  }
  void Step(DecoderState& state, std::span<const int32_t> tokens,
            const native::TokenChoices& choices) override {
    scorer_.Step(state, tokens, choices);
    const emulated_gpu::Counters now = emulated_gpu::ReadCounters();
    steps.push_back({.launches = now.launches - before_.launches,
                     .copies = now.copies - before_.copies,
                     .waits = now.waits - before_.waits,
                     .allocations = now.allocations - before_.allocations});
    before_ = now;
  }

  std::vector<emulated_gpu::Counters> steps;

 private:
  Scorer& scorer_;
  emulated_gpu::Counters before_;
};

// The steps of a search, after one that has made buffers.
std::vector<emulated_gpu::Counters> StepsOf(const ModelSpec& spec, int sentences,
                                            const SearchOptions& options) {
  const auto ops = MakeGpu(0, at::kBFloat16);
  Transformer model(spec, Capacity(64), *ops, /*trainable=*/false);
  SetWeights(model);
  ModelScorer scorer(model);
  const SearchBatch batch{.sources = Sentences(sentences, 14, 4)};
  Search(scorer, batch, options);
  CountingScorer counting(scorer);
  Search(counting, batch, options);
  return counting.steps;
}

int64_t MostLaunches(const std::vector<emulated_gpu::Counters>& steps) {
  int64_t most = 0;
  for (const emulated_gpu::Counters& step : steps) most = std::max(most, step.launches);
  return most;
}

TEST(GpuDecode, AStepIsAFewLaunchesALayerHoweverManyRows) {
  const SearchOptions few{.beam_size = 1, .min_tokens = 5, .max_tokens = 5};
  const SearchOptions many{.beam_size = 3, .min_tokens = 5, .max_tokens = 5};
  ModelSpec spec = Spec(DEEPNORM);
  const int64_t launches = MostLaunches(StepsOf(spec, 1, few));
  EXPECT_EQ(MostLaunches(StepsOf(spec, 5, many)), launches);
  spec.set_decoder_layers(spec.decoder_layers() + 1);
  const int64_t of_layer = MostLaunches(StepsOf(spec, 1, few)) - launches;
  EXPECT_LE(of_layer, 13);
  // The embedding, the product with the output weights, log-probabilities and the choice.
  EXPECT_LE(launches - (spec.decoder_layers() - 1) * of_layer, 4);
}

TEST(GpuDecode, AStepIsOneCopyThereOneBackAndOneWait) {
  for (const double temperature : {0.0, 1.0}) {
    const auto steps = StepsOf(Spec(PRE_LN), 4,
                               {.beam_size = 3,
                                .min_tokens = 18,
                                .max_tokens = 20,
                                .nbest = 3,
                                .sampling_temperature = temperature});
    ASSERT_GE(steps.size(), 18u);
    for (size_t i = 0; i < steps.size(); ++i) {
      EXPECT_EQ(steps[i].waits, 1) << i;
      // There and back, and a fill; the first step also sends the kinds of tokens.
      EXPECT_LE(steps[i].copies, i == 0 ? 4 : 3) << i;
      EXPECT_EQ(steps[i].allocations, 0) << i;
    }
  }
}

}  // namespace
}  // namespace deepnet

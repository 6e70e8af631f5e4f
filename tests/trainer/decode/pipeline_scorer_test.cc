// Searches and scores through pipelines of threads against one scorer over the whole model.
#include "trainer/decode/pipeline_scorer.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel/base/exit_code.h"
#include "tests/support/fault_communicator.h"
#include "tests/support/forwarding_communicator.h"
#include "tests/support/host_scorer.h"
#include "tests/support/run_ranks.h"
#include "tests/support/tiny_model.h"
#include "trainer/decode/search.h"
#include "trainer/kernels/compute.h"
#include "trainer/model/describe.h"

namespace deepnet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Ids = std::vector<int32_t>;

// 4 + 4 layers: a chain of 11.
ModelSpec Spec(TiedEmbeddings tied, Residual residual) {
  ModelSpec spec = testing::TinySpec();
  spec.set_encoder_layers(4);
  spec.set_decoder_layers(4);
  spec.set_d_model(48);
  spec.set_ffn_dim(80);
  spec.set_num_heads(3);
  spec.set_vocabulary_size(61);
  spec.set_tied_embeddings(tied);
  spec.set_residual(residual);
  spec.set_dropout(0.3);  // training's: nothing of it may be seen here
  return spec;
}

// So small that a batch takes several slices.
MicrobatchSpec Capacity() {
  MicrobatchSpec capacity;
  capacity.set_max_source_tokens(24);
  capacity.set_max_target_tokens(16);
  capacity.set_max_sentences(5);
  return capacity;
}

std::unique_ptr<Ops> MakeRankOps(DataType dtype) {
  ComputeSpec compute;
  compute.set_dtype(dtype);
  compute.set_threads_per_rank(1);
  return MakeNativeOps(compute);
}

struct Layout {
  std::vector<int> ends;
  Placement placement;

  std::string ToText() const {
    return absl::StrCat("ends ", absl::StrJoin(ends, ","), " on ",
                        absl::StrJoin(placement.rank_of_chunk, ","));
  }
};

// Chunks of a chain of 11 layers, as even as can be.
Layout MakeLayout(Placement placement) {
  Layout layout{.ends = {}, .placement = std::move(placement)};
  const int chunks = layout.placement.NumChunks();
  for (int c = 1; c <= chunks; ++c) layout.ends.push_back(11 * c / chunks);
  return layout;
}

std::vector<Layout> Layouts() {
  std::vector<Layout> layouts;
  for (const int ranks : {1, 2, 3}) {
    for (const int chunks : {1, 2}) {
      layouts.push_back(MakeLayout(MakeLooped(ranks, chunks)));
      if (ranks > 1 && chunks > 1) layouts.push_back(MakeLayout(MakeV(ranks, chunks)));
    }
  }
  // Ranks without decoder layers, a cut on either side of the target embedding, the output alone.
  layouts.push_back({{2, 5, 6, 10, 11}, {.rank_of_chunk = {0, 1, 2, 0, 1}}});
  layouts.push_back({{5, 6, 10, 11}, {.rank_of_chunk = {0, 1, 2, 3}}});
  return layouts;
}

// Values with a life of their own, equal by name on whoever holds them.
void SetWeights(Transformer& model) {
  Parameters& parameters = model.parameters();
  parameters.Initialize(5);
  for (const Parameter& parameter : parameters.inventory().parameters) {
    const at::Tensor w = parameters.Get(parameter.name);
    w.add_(at::sin(at::arange(w.numel(), at::kDouble) * 1.7).view(w.sizes()).to(w.options()), 0.1);
  }
  model.Refresh();
}

std::vector<ChunkSpec> ChunksOf(const Layout& layout, int rank) {
  std::vector<ChunkSpec> chunks;
  for (int c = 0; c < layout.placement.NumChunks(); ++c) {
    if (layout.placement.rank_of_chunk[c] != rank) continue;
    chunks.push_back({.layers = {c == 0 ? 0 : layout.ends[c - 1], layout.ends[c]}});
  }
  return chunks;
}

using Drive = std::function<void(PipelineScorer& scorer)>;

// A pipeline of threads; `drive` runs on the rank with the output layer.
std::vector<absl::Status> RunPipeline(
    const ModelSpec& spec, DataType dtype, const Layout& layout, const Drive& drive,
    const std::function<bool()>& is_stopping = [] { return false; }) {
  return RunRanks(layout.placement.NumRanks(), [&](Communicator& comm) -> absl::Status {
    const auto ops = MakeRankOps(dtype);
    Transformer model(spec, Capacity(), *ops, /*trainable=*/false, ChunksOf(layout, comm.rank()));
    SetWeights(model);
    const PipelineRoute route =
        MakePipelineRoute(Describe(spec, Capacity()), layout.ends, layout.placement, comm.rank());
    PipelineLink link(route, comm, {});
    if (route.rank != route.driver) return ServePipeline(model, link);
    PipelineScorer scorer(model, link, is_stopping);
    drive(scorer);
    return scorer.Stop();
  });
}

Ids Sentence(std::mt19937& random, uint32_t longest) {
  Ids ids(random() % longest);
  for (int32_t& id : ids) id = static_cast<int32_t>(4 + random() % 57);
  ids.push_back(kEos);
  return ids;
}

std::vector<Ids> Sources(int count) {
  std::mt19937 random(4);
  std::vector<Ids> sources;
  for (int i = 0; i < count; ++i) sources.push_back(Sentence(random, 17));
  return sources;
}

// Results of a scorer: hypotheses of a search over nine sentences, and scores of seven pairs.
struct Results {
  std::vector<std::vector<Hypothesis>> hypotheses;
  std::vector<double> log_probabilities;

  friend bool operator==(const Results&, const Results&) = default;
};

std::vector<EncodedPair> Pairs() {
  std::mt19937 random(11);
  std::vector<EncodedPair> pairs;
  for (int i = 0; i < 7; ++i) pairs.push_back({Sentence(random, 17), Sentence(random, 15)});
  return pairs;
}

Results Use(Scorer& scorer, PairScorer& pair_scorer) {
  const SearchOptions options{.beam_size = 3, .max_tokens = 9, .nbest = 3};
  SearchBatch batch{.sources = Sources(9)};
  for (size_t i = 0; i < batch.sources.size(); ++i) batch.prefixes.emplace_back(i % 3, 7);
  return {Search(scorer, batch, options), pair_scorer.LogProbabilities(Pairs())};
}

Results UseWhole(const ModelSpec& spec, DataType dtype) {
  const auto ops = MakeRankOps(dtype);
  Transformer model(spec, Capacity(), *ops, /*trainable=*/false);
  SetWeights(model);
  ModelScorer scorer(model);
  ModelPairScorer pair_scorer(model);
  return Use(scorer, pair_scorer);
}

TEST(PipelineScorer, EveryLayoutGivesTheHypothesesAndScoresOfOneRankBitForBit) {
  for (const auto& [tied, residual, dtype] :
       {std::tuple(TIE_ALL, DEEPNORM, FLOAT32), std::tuple(TIE_NONE, DEEPNORM, BFLOAT16),
        std::tuple(TIE_NONE, PRE_LN, FLOAT32), std::tuple(TIE_ALL, PRE_LN, BFLOAT16)}) {
    const ModelSpec spec = Spec(tied, residual);
    const Results expected = UseWhole(spec, dtype);
    for (const Layout& layout : Layouts()) {
      SCOPED_TRACE(absl::StrCat(layout.ToText(), " ", DataType_Name(dtype)));
      Results got;
      const absl::Status status = FirstError(RunPipeline(
          spec, dtype, layout, [&](PipelineScorer& scorer) { got = Use(scorer, scorer); }));
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_EQ(got, expected);
    }
  }
}

// One row of each state, fed alternately, with a third state that lives in between.
std::vector<float> TwoStatesAtOnce(Scorer& scorer) {
  const std::vector<Ids> sources = Sources(2);
  auto first = scorer.Start({&sources[0], 1});
  auto second = scorer.Start({&sources[1], 1});
  std::vector<float> all;
  for (const int32_t token : {2, 17, 30}) {
    scorer.Start(sources);
    for (DecoderState* state : {first.get(), second.get()}) {
      const std::vector<float> log_probs = testing::StepForAll(scorer, *state, {&token, 1});
      all.insert(all.end(), log_probs.begin(), log_probs.end());
    }
  }
  return all;
}

TEST(PipelineScorer, StatesThatLiveAtTheSameTimeDoNotMeet) {
  const ModelSpec spec = Spec(TIE_ALL, DEEPNORM);
  std::vector<float> whole, cut;
  const auto run = [&](const Layout& layout, std::vector<float>& result) {
    EXPECT_TRUE(FirstError(RunPipeline(spec, FLOAT32, layout, [&](PipelineScorer& scorer) {
                  result = TwoStatesAtOnce(scorer);
                })).ok());
  };
  run(MakeLayout(MakeLooped(1, 1)), whole);
  run(MakeLayout(MakeV(2, 2)), cut);
  EXPECT_EQ(whole, cut);
}

TEST(PipelineScorer, ProgressIsShownOnTheOtherRanks) {
  const ModelSpec spec = Spec(TIE_ALL, DEEPNORM);
  const Layout layout = MakeLayout(MakeLooped(2, 1));
  std::vector<std::string> shown;
  const auto statuses = RunRanks(2, [&](Communicator& comm) -> absl::Status {
    const auto ops = MakeRankOps(FLOAT32);
    Transformer model(spec, Capacity(), *ops, false, ChunksOf(layout, comm.rank()));
    PipelineLink link(
        MakePipelineRoute(Describe(spec, Capacity()), layout.ends, layout.placement, comm.rank()),
        comm, {});
    if (comm.rank() == 0) {
      return ServePipeline(model, link, [&](const std::string& what, double fraction) {
        shown.push_back(absl::StrCat(what, " ", fraction));
      });
    }
    PipelineScorer scorer(model, link);
    scorer.Show("de-en", 0.0);
    scorer.Show("en-de", 0.25);
    return scorer.Stop();
  });
  EXPECT_TRUE(FirstError(statuses).ok()) << FirstError(statuses);
  EXPECT_THAT(shown, ::testing::ElementsAre("de-en 0", "en-de 0.25"));
}

TEST(PipelineRoute, NamesWhoNeedsTheMemoryAndWhoSteps) {
  const Layout layout{{2, 5, 6, 10, 11}, {.rank_of_chunk = {0, 1, 2, 3, 1}}};
  const ModelSpec spec = Spec(TIE_ALL, DEEPNORM);
  const PipelineRoute route =
      MakePipelineRoute(Describe(spec, Capacity()), layout.ends, layout.placement, 1);
  EXPECT_EQ(route, (PipelineRoute{.rank = 1,
                                  .chunks = {1, 4},
                                  .rank_of_chunk = {0, 1, 2, 3, 1},
                                  .driver = 1,
                                  .encoder_end = 1,
                                  .encoder_output_to = {3},
                                  .steppers = {2, 3},
                                  .followers = {0, 2, 3}}));
}

// It is asked again after every microbatch of pairs: a command may wait for its answer meanwhile.
TEST(PipelineScorer, WhatStopsIsNotAskedAnyMoreAndEndsInOrder) {
  const ModelSpec spec = Spec(TIE_ALL, DEEPNORM);
  bool stops = false;
  int asked = 0;
  Results before, after;
  const auto statuses = RunPipeline(
      spec, FLOAT32, MakeLayout(MakeLooped(2, 1)),
      [&](PipelineScorer& scorer) {
        before.log_probabilities = scorer.LogProbabilities(Pairs());
        stops = true;
        after = Use(scorer, scorer);
      },
      [&] {
        if (!stops) ++asked;
        return stops;
      });
  EXPECT_TRUE(FirstError(statuses).ok()) << FirstError(statuses);
  EXPECT_GE(asked, 1 + 4);
  for (const double log_probability : before.log_probabilities) EXPECT_LT(log_probability, 0.0);
  for (const auto& hypotheses : after.hypotheses) EXPECT_TRUE(hypotheses.empty());
  for (const double log_probability : after.log_probabilities) {
    EXPECT_TRUE(std::isnan(log_probability));
  }
}

// Counts the sends of the driver, which are over only when it waits for them.
class LazyCommunicator final : public ForwardingCommunicator {
 public:
  explicit LazyCommunicator(Communicator& inner) : ForwardingCommunicator(inner) {}

  int sends = 0, pending = 0, most_pending = 0;

 private:
  struct Lazy final : public Transfer {
    Lazy(std::unique_ptr<Transfer> transfer, LazyCommunicator& comm)
        : inner(std::move(transfer)), owner(comm) {}
    bool Done() override { return false; }
    absl::Status Wait(absl::Duration limit) override {
      --owner.pending;
      return inner->Wait(limit);
    }
    std::unique_ptr<Transfer> inner;
    LazyCommunicator& owner;
  };

  TransferOr StartMessage(Direction direction, const Buffer& buffer, int peer, int tag) override {
    auto started = ForwardingCommunicator::StartMessage(direction, buffer, peer, tag);
    if (!started.ok() || direction != Direction::kSend) return started;
    ++sends;
    most_pending = std::max(most_pending, ++pending);
    return std::make_unique<Lazy>(*std::move(started), *this);
  }
};

TEST(PipelineScorer, HoldsFewMessagesAndNoStatesThatAreGone) {
  const ModelSpec spec = Spec(TIE_ALL, DEEPNORM);
  const Layout layout = MakeLayout(MakeLooped(2, 2));
  const auto statuses = RunRanks(2, [&](Communicator& world) -> absl::Status {
    const auto ops = MakeRankOps(FLOAT32);
    Transformer model(spec, Capacity(), *ops, false, ChunksOf(layout, world.rank()));
    LazyCommunicator comm(world);
    const PipelineRoute route =
        MakePipelineRoute(Describe(spec, Capacity()), layout.ends, layout.placement, world.rank());
    PipelineLink link(route, comm, {});
    if (route.rank != route.driver) return ServePipeline(model, link);
    PipelineScorer scorer(model, link);
    for (int i = 0; i < 40; ++i) scorer.Show("de-en", 0.0);
    EXPECT_EQ(comm.most_pending, 16);
    auto state = scorer.Start(Sources(1));
    const int before = comm.sends;
    state = nullptr;
    EXPECT_EQ(comm.sends - before, 2 * std::ssize(route.steppers));
    EXPECT_GT(std::ssize(route.steppers), 0);
    return scorer.Stop();
  });
  EXPECT_TRUE(FirstError(statuses).ok()) << FirstError(statuses);
}

// --- errors ---

// Rank 0 serves; rank 1, the driver, does nothing until the job ends.
std::vector<absl::Status> ServeASilentDriver(std::vector<Fault> faults) {
  const Layout layout = MakeLayout(MakeLooped(2, 1));
  const ModelSpec spec = Spec(TIE_ALL, DEEPNORM);
  return RunRanks(2, [&](Communicator& world) -> absl::Status {
    if (world.rank() == 1) {
      char byte = 0;
      auto never = world.Receive({&byte, 1, {}}, 0, 0);
      return never.ok() ? (*never)->Wait() : never.status();
    }
    FaultCommunicator comm(world, faults);
    const auto ops = MakeRankOps(FLOAT32);
    Transformer model(spec, Capacity(), *ops, false, ChunksOf(layout, 0));
    PipelineLink link(
        MakePipelineRoute(Describe(spec, Capacity()), layout.ends, layout.placement, 0), comm,
        {.rows = absl::Milliseconds(10), .command = absl::Milliseconds(20)});
    return ServePipeline(model, link);
  });
}

TEST(PipelineLink, ASilentPeerIsNamedAndEndsEveryRankOfTheJob) {
  const auto statuses = ServeASilentDriver({});
  EXPECT_EQ(GetExitCode(statuses[0]), ExitCode::kHang);
  EXPECT_THAT(std::string(statuses[0].message()),
              AllOf(HasSubstr("rank 0"), HasSubstr("command of the driver from rank 1"),
                    HasSubstr("has not moved for 20ms")));
  EXPECT_TRUE(absl::IsAborted(statuses[1])) << statuses[1];
}

TEST(PipelineLink, ALostPeerIsNamedAndEndsEveryRankWithItsCode) {
  const auto statuses = ServeASilentDriver({{.kind = Fault::Kind::kDie, .at_call = 0}});
  EXPECT_EQ(GetExitCode(statuses[0]), ExitCode::kPeerLost);
  EXPECT_EQ(statuses[0].message(),
            "decoding, rank 0: command of the driver from rank 1 is lost: rank 0 died at call 0");
  EXPECT_TRUE(absl::IsAborted(statuses[1])) << statuses[1];
}

TEST(PipelineScorer, ASearchEndsWithoutResultsWhenAnotherRankEndsTheJob) {
  const Layout layout = MakeLayout(MakeLooped(2, 1));
  const ModelSpec spec = Spec(TIE_ALL, DEEPNORM);
  Results got;
  const auto statuses = RunRanks(2, [&](Communicator& comm) -> absl::Status {
    if (comm.rank() == 0) return absl::InternalError("gone");
    const auto ops = MakeRankOps(FLOAT32);
    Transformer model(spec, Capacity(), *ops, false, ChunksOf(layout, 1));
    SetWeights(model);
    PipelineLink link(
        MakePipelineRoute(Describe(spec, Capacity()), layout.ends, layout.placement, 1), comm, {});
    PipelineScorer scorer(model, link);
    got = Use(scorer, scorer);
    return scorer.Stop();
  });
  EXPECT_TRUE(absl::IsAborted(statuses[1])) << statuses[1];
  for (const auto& hypotheses : got.hypotheses) EXPECT_TRUE(hypotheses.empty());
  for (const double log_probability : got.log_probabilities) {
    EXPECT_TRUE(std::isnan(log_probability));
  }
}

}  // namespace
}  // namespace deepnet

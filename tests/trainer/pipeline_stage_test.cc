// The model in chunks against the model in one piece: losses and the gradient of every use of every
// parameter, bit for bit, wherever the chain is cut, whoever has the chunks, in whatever order the
// schedule takes them.
#include "trainer/pipeline_stage.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "parallel/plan/schedule_generators.h"
#include "tests/support/plain_transformer.h"
#include "tests/support/tiny_model.h"
#include "tests/trainer/pipeline_rig.h"
#include "trainer/kernels/aten.h"
#include "trainer/kernels/compute.h"
#include "trainer/model/describe.h"

namespace deepnet {
namespace {

using testing::InOneOrder;
using testing::Layout;
using testing::OneRank;
using testing::PipelineOptions;
using testing::PipelineRig;
using testing::RandomOrder;
using testing::TinyCapacity;
using testing::TinyMicrobatch;
using Gradients = std::map<std::string, at::Tensor>;

constexpr int kMicrobatches = 4;
constexpr int64_t kStep = 77;

// A model, the arithmetic it runs in, and a step of it on one rank in one piece.
struct Case {
  ModelSpec spec;
  std::unique_ptr<Ops> ops;
  std::string operand_type = "float32";
  StepBatch batch;

  int NumLayers() const { return 3 + spec.encoder_layers() + spec.decoder_layers(); }
};

ModelSpec Spec(Residual residual, TiedEmbeddings tied, int encoder_layers, int decoder_layers) {
  ModelSpec spec = testing::TinySpec();
  spec.set_encoder_layers(encoder_layers);
  spec.set_decoder_layers(decoder_layers);
  spec.set_d_model(16);
  spec.set_ffn_dim(24);
  spec.set_residual(residual);
  spec.set_tied_embeddings(tied);
  spec.set_activation(tied == TIE_NONE ? GELU : RELU);
  spec.set_positions(tied == TIE_DECODER ? LEARNED : SINUSOIDAL);
  spec.set_dropout(0.2);
  spec.set_attention_dropout(0.15);
  spec.set_activation_dropout(0.1);
  return spec;
}

enum class Arithmetic { kNativeFloat32, kNativeBfloat16, kReferenceFloat64 };

std::unique_ptr<Ops> MakeOpsFor(Arithmetic arithmetic) {
  if (arithmetic == Arithmetic::kReferenceFloat64) {
    return MakeAtenOps(at::kDouble, at::kDouble);
  }
  ComputeSpec compute;
  compute.set_dtype(arithmetic == Arithmetic::kNativeBfloat16 ? BFLOAT16 : FLOAT32);
  compute.set_threads_per_rank(1);
  return MakeNativeOps(compute);
}

Case MakeCase(const ModelSpec& spec, Arithmetic arithmetic) {
  Case made{.spec = spec, .ops = MakeOpsFor(arithmetic), .batch = {}};
  if (arithmetic == Arithmetic::kNativeBfloat16) made.operand_type = "bfloat16";
  for (uint32_t m = 0; m < kMicrobatches; ++m) {
    made.batch.microbatches.push_back(TinyMicrobatch(spec, m + 1));
    made.batch.num_target_tokens += made.batch.microbatches.back().num_target_tokens;
  }
  return made;
}

struct Outcome {
  std::vector<LossSums> losses;
  Gradients gradients;
};

Outcome RunLayout(const Case& c, const Layout& layout, const std::vector<Action>& order,
                  int replicas) {
  PipelineRig rig(c.spec, TinyCapacity(), *c.ops, layout, {replicas, c.operand_type});
  rig.Run(c.batch, kStep, order);
  return {rig.losses(), rig.Gradients()};
}

Outcome RunInOnePiece(const Case& c, int replicas) {
  return RunLayout(
      c, OneRank(c.NumLayers()),
      InOneOrder(*MakeNamedSchedule("single_stage", {.num_microbatches = kMicrobatches}), 1),
      replicas);
}

void ExpectEqual(const Outcome& got, const Outcome& expected) {
  ASSERT_EQ(got.losses.size(), expected.losses.size());
  for (size_t m = 0; m < expected.losses.size(); ++m) {
    EXPECT_EQ(got.losses[m].loss, expected.losses[m].loss);
    EXPECT_EQ(got.losses[m].nll, expected.losses[m].nll);
  }
  ASSERT_EQ(got.gradients.size(), expected.gradients.size());
  for (const auto& [name, gradient] : expected.gradients) {
    ASSERT_TRUE(at::equal(got.gradients.at(name), gradient)) << name;
  }
}

// All ways to cut a chain of `layers` into `chunks`.
std::vector<std::vector<int>> CutsInto(int chunks, int layers) {
  if (chunks == 1) return {{layers}};
  std::vector<std::vector<int>> cuts;
  for (int end = layers - 1; end >= chunks - 1; --end) {
    for (std::vector<int> cut : CutsInto(chunks - 1, end)) {
      cut.push_back(layers);
      cuts.push_back(cut);
    }
  }
  return cuts;
}

// Laps over `ranks` until there are `chunks`, the last one perhaps not to its end.
Placement Truncated(Placement placement, int chunks) {
  placement.rank_of_chunk.resize(chunks);
  return placement;
}

std::vector<Placement> Placements(int chunks) {
  std::vector<Placement> placements;
  for (int ranks = 1; ranks <= std::min(4, chunks); ++ranks) {
    const int laps = (chunks + ranks - 1) / ranks;
    placements.push_back(Truncated(MakeLooped(ranks, laps), chunks));
    if (laps > 1 && ranks > 1) placements.push_back(Truncated(MakeV(ranks, laps), chunks));
  }
  return placements;
}

std::vector<Layout> AllLayouts(int layers) {
  std::vector<Layout> layouts;
  for (int chunks = 1; chunks <= 5; ++chunks) {
    for (const std::vector<int>& cut : CutsInto(chunks, layers)) {
      for (const Placement& placement : Placements(chunks)) {
        layouts.push_back({.chunk_ends = cut, .placement = placement});
      }
    }
  }
  return layouts;
}

std::vector<RecomputeChoice> RandomRecompute(int chunks, std::mt19937& random) {
  const std::vector<RecomputeChoice> levels = {{NONE, 1},           {NONE, 1}, {SELECTIVE_FFN, 1},
                                               {SELECTIVE_GEMM, 1}, {FULL, 1}, {FULL, 2}};
  std::vector<RecomputeChoice> chosen;
  for (int c = 0; c < chunks; ++c) chosen.push_back(levels[random() % levels.size()]);
  return chosen;
}

// Every `stride`-th layout in a random order with random levels of recomputation.
void ExpectEveryLayoutEqualsOnePiece(const ModelSpec& spec, Arithmetic arithmetic, size_t stride) {
  SCOPED_TRACE(spec.ShortDebugString());
  const Case c = MakeCase(spec, arithmetic);
  const std::map<int, Outcome> expected = {
      {1, RunInOnePiece(c, 1)}, {2, RunInOnePiece(c, 2)}, {4, RunInOnePiece(c, 4)}};
  std::mt19937 random(spec.tied_embeddings() * 10 + spec.residual());
  const std::vector<Layout> layouts = AllLayouts(c.NumLayers());
  for (size_t i = random() % stride; i < layouts.size(); i += stride) {
    Layout layout = layouts[i];
    const int chunks = layout.placement.NumChunks();
    const int replicas = 1 << random() % 3;
    layout.recompute = RandomRecompute(chunks, random);
    SCOPED_TRACE(layout.ToText() + " replicas " + std::to_string(replicas));
    const auto order = RandomOrder(chunks, kMicrobatches, random() % 2 == 0, random);
    ExpectEqual(RunLayout(c, layout, order, replicas), expected.at(replicas));
    if (::testing::Test::HasFailure()) return;
  }
}

// Three decoder layers: with two, the order in which they add to the encoder output's gradient
// cannot show.
TEST(PipelineStage, EveryCutAndPlacementGivesTheBitsOfOnePieceInBfloat16) {
  ExpectEveryLayoutEqualsOnePiece(Spec(DEEPNORM, TIE_ALL, 2, 3), Arithmetic::kNativeBfloat16, 1);
}

TEST(PipelineStage, EveryCutAndPlacementGivesTheBitsOfOnePieceInFloat32) {
  ExpectEveryLayoutEqualsOnePiece(Spec(PRE_LN, TIE_DECODER, 2, 3), Arithmetic::kNativeFloat32, 1);
}

TEST(PipelineStage, OtherModelsDoToo) {
  for (const Arithmetic arithmetic :
       {Arithmetic::kNativeBfloat16, Arithmetic::kNativeFloat32, Arithmetic::kReferenceFloat64}) {
    for (const Residual residual : {DEEPNORM, PRE_LN}) {
      for (const TiedEmbeddings tied : {TIE_ALL, TIE_DECODER, TIE_NONE}) {
        ExpectEveryLayoutEqualsOnePiece(Spec(residual, tied, 3, 2), arithmetic, 37);
        ExpectEveryLayoutEqualsOnePiece(Spec(residual, tied, 2, 4), arithmetic, 101);
      }
    }
  }
}

TEST(PipelineStage, EveryResidualSchemeDoesToo) {
  for (const Residual residual : testing::AllResiduals()) {
    if (!testing::CanBeCut(residual)) continue;
    const bool odd = residual % 2 == 1;
    ModelSpec spec = testing::WithResidual(
        Spec(residual, odd ? TIE_ALL : TIE_NONE, odd ? 2 : 3, odd ? 3 : 2), residual);
    spec.set_norm(residual % 3 == 0 ? RMS_NORM : residual % 5 == 0 ? BATCH_NORM : LAYER_NORM);
    ExpectEveryLayoutEqualsOnePiece(
        spec, odd ? Arithmetic::kNativeBfloat16 : Arithmetic::kNativeFloat32, 41);
  }
}

// Models that no pipeline can cut: every level of recomputation, B and W split or not.
class InOnePiece : public ::testing::TestWithParam<Residual> {};

TEST_P(InOnePiece, AStackIsTheSameAtEveryLevelOfRecomputation) {
  for (const Arithmetic arithmetic : {Arithmetic::kNativeBfloat16, Arithmetic::kNativeFloat32}) {
    const Case c =
        MakeCase(testing::WithResidual(Spec(GetParam(), TIE_ALL, 3, 4), GetParam()), arithmetic);
    const Outcome expected = RunInOnePiece(c, 2);
    std::mt19937 random(7);
    for (const RecomputeChoice& choice : std::vector<RecomputeChoice>{
             {SELECTIVE_FFN, 1}, {SELECTIVE_GEMM, 1}, {FULL, 1}, {FULL, 2}, {FULL, 9}}) {
      Layout layout = OneRank(c.NumLayers());
      layout.recompute = {choice};
      SCOPED_TRACE(layout.ToText());
      ExpectEqual(RunLayout(c, layout, RandomOrder(1, kMicrobatches, true, random), 2), expected);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(PipelineStage, InOnePiece, ::testing::Values(DLCL, RESIDUAL_DUAL),
                         [](const auto& info) { return Residual_Name(info.param); });

// Chunk ends as even as they can be.
std::vector<int> EvenCut(int chunks, int layers) {
  std::vector<int> ends;
  for (int c = 1; c <= chunks; ++c) ends.push_back(c * layers / chunks);
  return ends;
}

TEST(PipelineStage, EveryNamedScheduleGivesTheBitsOfOnePiece) {
  for (const Residual residual : {DEEPNORM, PRE_LN}) {
    const Case c = MakeCase(Spec(residual, TIE_ALL, 3, 4), Arithmetic::kNativeBfloat16);
    const std::map<int, Outcome> expected = {
        {1, RunInOnePiece(c, 1)}, {2, RunInOnePiece(c, 2)}, {4, RunInOnePiece(c, 4)}};
    for (const ScheduleKind& kind : ScheduleKinds()) {
      for (int ranks = 1; ranks <= 4; ++ranks) {
        for (int v = kind.min_virtual_pipeline_size;
             v <= std::min(3, kind.max_virtual_pipeline_size); ++v) {
          const PipelineShape shape{ranks, kMicrobatches, v};
          const auto placement = MakeNamedPlacement(kind.name, shape);
          const auto schedule = MakeNamedSchedule(kind.name, shape);
          if (ranks * v > c.NumLayers() || !placement.ok() || !schedule.ok()) continue;
          const Layout layout{EvenCut(ranks * v, c.NumLayers()), *placement, {}};
          for (const int replicas : {1, 2, 4}) {
            SCOPED_TRACE(std::string(kind.name) + " " + layout.ToText());
            ExpectEqual(RunLayout(c, layout, InOneOrder(*schedule, ranks * v), replicas),
                        expected.at(replicas));
          }
        }
      }
    }
  }
}

TEST(PipelineStage, AStageServesManyStepsWithTheSameBuffers) {
  const Case c = MakeCase(Spec(DEEPNORM, TIE_ALL, 2, 2), Arithmetic::kNativeFloat32);
  const Layout layout{{2, 4, 5, 7}, MakeLooped(2, 2), {}};
  std::mt19937 random(1);
  PipelineRig rig(c.spec, TinyCapacity(), *c.ops, layout, {2, c.operand_type});
  PipelineRig one(c.spec, TinyCapacity(), *c.ops, OneRank(7), {2, c.operand_type});
  for (int64_t step = 0; step < 3; ++step) {
    rig.Run(c.batch, step, RandomOrder(4, kMicrobatches, true, random));
    one.Run(c.batch, step,
            InOneOrder(*MakeNamedSchedule("single_stage", {.num_microbatches = kMicrobatches}), 1));
    ExpectEqual({rig.losses(), rig.Gradients()}, {one.losses(), one.Gradients()});
  }
}

TEST(PipelineStage, SendsWhatTheStageMessagesSay) {
  for (const Arithmetic arithmetic : {Arithmetic::kNativeBfloat16, Arithmetic::kNativeFloat32}) {
    const Case c = MakeCase(Spec(DEEPNORM, TIE_ALL, 2, 2), arithmetic);
    std::mt19937 random(2);
    for (const Layout& layout : AllLayouts(c.NumLayers())) {
      if (random() % 20 != 0) continue;
      SCOPED_TRACE(layout.ToText());
      const int chunks = layout.placement.NumChunks();
      PipelineRig rig(c.spec, TinyCapacity(), *c.ops, layout, {1, c.operand_type});
      rig.Run(c.batch, kStep, RandomOrder(chunks, kMicrobatches, false, random));
      int64_t bytes = 0;
      for (const StageMessages& messages :
           MakeStageMessages(Describe(c.spec, TinyCapacity()), layout.chunk_ends, layout.placement,
                             c.operand_type)) {
        bytes += BytesOf(messages.forward) + BytesOf(messages.backward);
      }
      EXPECT_EQ(rig.bytes_sent(), bytes * kMicrobatches);
    }
  }
}

// The same model from the paper's sentences, in one piece, with LibTorch's autograd.
Gradients AutogradGradients(const Case& c, PipelineRig& rig) {
  Gradients leaves;
  for (int r = 0; r < rig.num_ranks(); ++r) {
    for (const Parameter& p : rig.model(r).parameters().inventory().parameters) {
      const at::Tensor master = rig.model(r).parameters().Get(p.name);
      if (leaves.count(p.name) == 0) leaves[p.name] = master.clone().set_requires_grad(true);
    }
  }
  at::Tensor loss = at::zeros({}, at::kDouble);
  for (const Microbatch& mb : c.batch.microbatches) {
    loss = loss + testing::PlainLoss(c.spec, mb, 0.1,
                                     [&](const std::string& name) { return leaves.at(name); });
  }
  loss.div(static_cast<double>(c.batch.num_target_tokens)).backward();
  return leaves;
}

// Relative to the largest element of a tensor; gradients of key biases are 0 by theory.
constexpr double kFloat64Rounding = 1e-12, kFloor = 1e-3;

TEST(PipelineStage, GradientsAreAutogradsInFloat64) {
  for (const Residual residual : {DEEPNORM, PRE_LN}) {
    for (const TiedEmbeddings tied : {TIE_ALL, TIE_DECODER, TIE_NONE}) {
      ModelSpec spec = Spec(residual, tied, 2, 3);
      spec.clear_dropout();
      spec.clear_attention_dropout();
      spec.clear_activation_dropout();
      const Case c = MakeCase(spec, Arithmetic::kReferenceFloat64);
      const Layout layout{{2, 4, 5, 7, 8}, Truncated(MakeV(3, 2), 5), {}};
      std::mt19937 random(3);
      PipelineRig rig(c.spec, TinyCapacity(), *c.ops, layout, {1, c.operand_type});
      rig.Run(c.batch, kStep, RandomOrder(5, kMicrobatches, true, random));
      Gradients sums;  // over the uses of a tensor
      for (const auto& [name, gradient] : rig.Gradients()) {
        at::Tensor& sum = sums[name.substr(name.find(':') + 1)];
        sum = sum.defined() ? sum + gradient : gradient.clone();
      }
      for (const auto& [name, leaf] : AutogradGradients(c, rig)) {
        const at::Tensor expected = leaf.grad();
        const at::Tensor got = sums.at(name).view_as(expected);
        const double scale = std::max(expected.abs().max().item<double>(), kFloor);
        EXPECT_LE((got - expected).abs().max().item<double>(), kFloat64Rounding * scale) << name;
      }
    }
  }
}

TEST(PipelineStage, BucketsCoverTheGradientWithTheOutputLayerApart) {
  const ModelSpec spec = Spec(DEEPNORM, TIE_ALL, 2, 2);
  const auto ops = MakeOpsFor(Arithmetic::kNativeFloat32);
  const Transformer whole(spec, TinyCapacity(), *ops, /*trainable=*/true);
  const std::vector<GradientBucket> all = MakeBuckets(whole);
  ASSERT_EQ(all.size(), 7u);  // the model is so small that every layer is a group
  for (int b = 0; b < 7; ++b) {
    EXPECT_EQ(all[b].first_layer, b);
    EXPECT_EQ(all[b].completes_in_forward, b == 6);
  }
  EXPECT_EQ(all[6].count, spec.vocabulary_size() * spec.d_model());
  const Transformer part(spec, TinyCapacity(), *ops, /*trainable=*/true,
                         {{.layers = {0, 2}}, {.layers = {5, 6}}, {.layers = {6, 7}}});
  int64_t reached = 0;
  std::vector<int> chunks, first_layers;
  for (const GradientBucket& bucket : MakeBuckets(part)) {
    EXPECT_EQ(bucket.begin, reached);
    reached += bucket.count;
    chunks.push_back(bucket.chunk);
    first_layers.push_back(bucket.first_layer);
  }
  EXPECT_EQ(reached, part.parameters().gradient().numel());
  EXPECT_EQ(chunks, (std::vector<int>{0, 0, 1, 2}));
  EXPECT_EQ(first_layers, (std::vector<int>{0, 1, 5, 6}));
}

TEST(PipelineStageDeathTest, NamesWhatCannotBe) {
  const Case c = MakeCase(Spec(DEEPNORM, TIE_ALL, 2, 2), Arithmetic::kNativeFloat32);
  Transformer model(c.spec, TinyCapacity(), *c.ops, /*trainable=*/true);
  const Inventory& whole = model.parameters().inventory();
  GradientSums sums(*c.ops, model.parameters(),
                    MakeShardLayout(whole, whole, MakeBuckets(model), {}), Groups{}, {});
  PipelineStage stage(model, {.seed = 9}, sums);
  stage.BeginStep(c.batch, kStep);
  EXPECT_DEATH((void)stage.Forward(1, 0), "chunk 1 is another rank's");
  EXPECT_DEATH((void)stage.Backward(0, 2), "microbatch 2 has no forward pass");
  EXPECT_DEATH((void)stage.BackwardWeight(0, 0), "no weight gradients wait");
}

}  // namespace
}  // namespace deepnet

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "parallel/comm/communicator.h"
#include "tests/support/tied_gradient.h"
#include "tests/support/tiny_model.h"
#include "tests/support/whole_pass.h"
#include "trainer/instruments/meters.h"
#include "trainer/kernels/aten.h"
#include "trainer/kernels/compute.h"
#include "trainer/model/architecture.h"
#include "trainer/model/scheme.h"
#include "trainer/model/transformer.h"

namespace deepnet {
namespace {

// A tiny model with its initial weights, and one microbatch in training mode.
struct Pass {
  static constexpr uint64_t kSeed = 1;

  Pass(const ModelSpec& spec, Ops& ops)
      : microbatch(testing::TinyMicrobatch(spec, 3)),
        model(spec, testing::TinyCapacity(), ops, /*trainable=*/true),
        kept(model.MakeActivations(/*shared=*/false)) {
    model.parameters().Initialize(4);
    model.Refresh();
  }
  void Forward(int64_t step, SublayerProbe* probe) {
    MicrobatchPass pass = MakePass(model.ops(), microbatch, kSeed, step, /*training=*/true);
    pass.probe = probe;
    model.chunks()[0].Forward(pass, kept->values, model.work(), kept->kept,
                              {.dhidden_RD = kept->gradients.target_RD});
  }
  std::vector<SublayerInstruments> Look(int64_t step) {
    SublayerMeter meter(model.spec());
    Forward(step, &meter);
    SelfCommunicator alone;
    Groups groups;
    groups.world = &alone;
    const auto gathered = meter.Gather(groups);
    EXPECT_TRUE(gathered.ok()) << gathered.status();
    return gathered.ok() ? *gathered : std::vector<SublayerInstruments>();
  }
  int64_t Rows(int stack) const {
    return stack == 0 ? microbatch.source.NumTokens() : microbatch.target.NumTokens();
  }
  const ResidualConnection::Saved& SavedOf(const SublayerPlace& place) const {
    const size_t layer = static_cast<size_t>(place.layer);
    const auto& side = place.stack == 0 ? kept->kept.source : kept->kept.target;
    const TransformerLayer::Saved& saved = side.layers.saved[layer];
    if (place.kind == SublayerKind::kFeedForward) return saved.feed_forward.residual;
    return place.kind == SublayerKind::kCrossAttention ? saved.cross_attention.residual
                                                       : saved.self_attention.residual;
  }

  Microbatch microbatch;
  Transformer model;
  std::unique_ptr<Activations> kept;
};

std::vector<SublayerInstruments> Look(const ModelSpec& spec, int64_t step = 0) {
  const auto ops = MakeAtenOps(at::kDouble, at::kDouble);
  return Pass(spec, *ops).Look(step);
}

TEST(SublayerMeter, NamesEverySublayerInChainOrder) {
  const auto seen = Look(testing::TinySpec());
  ASSERT_EQ(seen.size(), 2u * 2 + 3 * 3);
  EXPECT_EQ(seen[0].name(), "encoder.layers.0.self_attn");
  EXPECT_EQ(seen[3].name(), "encoder.layers.1.final");
  EXPECT_EQ(seen[4].name(), "decoder.layers.0.self_attn");
  EXPECT_EQ(seen[5].name(), "decoder.layers.0.encoder_attn");
  EXPECT_EQ(seen[12].name(), "decoder.layers.2.final");
}

// Behind a LayerNorm with gains of 1 every row has the length sqrt(width), nearly: epsilon.
TEST(SublayerMeter, SeesAlphaTimesANormalisedStream) {
  const ModelSpec spec = testing::TinySpec();
  const double root = std::sqrt(static_cast<double>(spec.d_model()));
  const double alpha = MakeDepthScaling(spec).decoder_alpha;
  const auto seen = Look(spec);
  constexpr double kOfEpsilon = 1e-4;
  EXPECT_NEAR(seen[6].input_norm(), root, kOfEpsilon * root);
  EXPECT_NEAR(seen[6].stream_norm(), alpha * root, kOfEpsilon * alpha * root);
  const double branch = seen[6].branch_norm(), stream = seen[6].stream_norm();
  EXPECT_DOUBLE_EQ(seen[6].stream_share(), stream * stream / (stream * stream + branch * branch));
  EXPECT_GT(seen[6].norm_input(), std::abs(stream - branch));
  EXPECT_LT(seen[6].norm_input(), stream + branch);
}

TEST(SublayerMeter, SeesWhatAPreNormReadsAndNoNormWhereThereIsNone) {
  for (const SublayerInstruments& one : Look(testing::WithResidual(testing::TinySpec(), PRE_LN))) {
    EXPECT_DOUBLE_EQ(one.norm_input(), one.stream_norm()) << one.name();
  }
  for (const SublayerInstruments& one : Look(testing::WithResidual(testing::TinySpec(), REZERO))) {
    EXPECT_EQ(one.norm_input(), 0.0) << one.name();
    EXPECT_EQ(one.branch_norm(), 0.0) << one.name();  // a = 0 at first
    EXPECT_EQ(one.stream_share(), 1.0) << one.name();
  }
}

// Only the part of a branch that joins is seen: nothing at first, all of it after BRANCH_NORM's 5
// steps.
TEST(SublayerMeter, SeesABranchGrowWithTheStep) {
  const ModelSpec spec = testing::WithResidual(testing::TinySpec(), BRANCH_NORM);
  const auto first = Look(spec)[0], third = Look(spec, 2)[0], sixth = Look(spec, 5)[0];
  EXPECT_EQ(first.branch_norm(), 0.0);
  EXPECT_EQ(first.stream_share(), 1.0);
  EXPECT_NEAR(third.branch_norm(), 0.4 * sixth.branch_norm(), 1e-12);
  EXPECT_LT(sixth.stream_share(), third.stream_share());
}

// Works out from a norm's state what it read: RMSNorm keeps row times rstd, and rstd.
double ReadByNorm(const NormState& norm, int64_t rows) {
  const at::Tensor read_RD =
      norm.xhat_RD.narrow(0, 0, rows) / norm.rstd.narrow(0, 0, rows).unsqueeze(1);
  return std::sqrt(read_RD.square().sum().item<double>() / static_cast<double>(rows));
}

TEST(SublayerMeter, SeesWhatTheNormBehindTheSumReallyReads) {
  constexpr double kRounding = 1e-12;
  for (const Residual residual :
       {DEEPNORM, POST_LN, ADMIN, B2T, KEEL, NORM_ONLY, RESIDUAL_DUAL, BRANCH_NORM}) {
    SCOPED_TRACE(Residual_Name(residual));
    ModelSpec spec = testing::WithResidual(testing::TinySpec(), residual);
    spec.set_norm(RMS_NORM);
    spec.set_dropout(0.4);
    const auto ops = MakeAtenOps(at::kDouble, at::kDouble);
    Pass pass(spec, *ops);
    const std::vector<SublayerInstruments> seen = pass.Look(/*step=*/3);
    ASSERT_EQ(seen.size(), static_cast<size_t>(NumSublayers(spec)));
    for (int i = 0; i < NumSublayers(spec); ++i) {
      const SublayerPlace place = SublayerAt(spec, i);
      const ResidualConnection::Saved& saved = pass.SavedOf(place);
      const NormState& behind = saved.norms[residual == KEEL ? 1 : 0];
      const double read = ReadByNorm(behind, pass.Rows(place.stack));
      EXPECT_NEAR(seen[static_cast<size_t>(i)].norm_input(), read, kRounding * read)
          << seen[static_cast<size_t>(i)].name();
    }
  }
}

// A branch of ones adds 1 / 0.6 where dropout keeps it, and nothing elsewhere.
TEST(SublayerMeter, SeesABranchBehindItsDropout) {
  ModelSpec spec = testing::TinySpec();
  spec.set_dropout(0.4);
  const auto ops = MakeAtenOps(at::kDouble, at::kDouble);
  Pass pass(spec, *ops);
  const std::string last = "encoder.layers.0.self_attn.out_proj";
  pass.model.parameters().Get(last + ".weight").zero_();
  pass.model.parameters().Get(last + ".bias").fill_(1.0);
  pass.model.Refresh();
  const double norm = pass.Look(0)[0].branch_norm();
  const double kept = norm * norm * 0.6 * 0.6 * static_cast<double>(pass.Rows(0));
  const double all = static_cast<double>(pass.Rows(0) * spec.d_model());
  EXPECT_NEAR(kept, std::round(kept), 1e-9);
  EXPECT_NEAR(kept / all, 0.6, 4 * std::sqrt(0.6 * 0.4 / all));
}

TEST(SublayerMeter, LookingChangesNoBit) {
  ComputeSpec compute;
  compute.set_dtype(FLOAT32);
  compute.set_threads_per_rank(1);
  for (const Residual residual : testing::AllResiduals()) {
    SCOPED_TRACE(Residual_Name(residual));
    ModelSpec spec = testing::WithResidual(testing::TinySpec(), residual);
    spec.set_dropout(0.4);
    const auto gradients = [&](bool looks) {
      const auto ops = MakeNativeOps(ResolveCompute(compute));
      Pass pass(spec, *ops);
      looks ? (void)pass.Look(3) : pass.Forward(3, nullptr);
      testing::Backward(pass.model, pass.microbatch, Pass::kSeed, 3, *pass.kept);
      return testing::FlatGradient(pass.model.parameters());
    };
    EXPECT_TRUE(at::equal(gradients(true), gradients(false)));
  }
}

}  // namespace
}  // namespace deepnet

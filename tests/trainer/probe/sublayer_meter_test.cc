#include "trainer/probe/sublayer_meter.h"

#include <cmath>
#include <memory>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "parallel/comm/self_communicator.h"
#include "tests/support/tiny_model.h"
#include "trainer/model/depth_scaling.h"
#include "trainer/model/transformer.h"

namespace deepnet {
namespace {

std::vector<SublayerInstruments> Look(const ModelSpec& spec, int64_t step = 0) {
  const auto ops = MakeAtenOps(at::kCPU, at::kDouble, at::kDouble);
  Transformer model(spec, testing::TinyCapacity(), *ops, /*trainable=*/true);
  model.parameters().Initialize(4);
  model.Refresh();
  SublayerMeter meter(spec);
  const Microbatch microbatch = testing::TinyMicrobatch(spec, 3);
  MicrobatchPass pass = MakePass(microbatch, 1, step, /*training=*/true);
  pass.probe = &meter;
  const auto kept = model.MakeActivations(/*shared=*/false);
  model.chunks()[0].Forward(pass, kept->values, model.work(), kept->kept, {},
                            kept->gradients.target_RD);
  SelfCommunicator alone;
  Groups groups;
  groups.world = &alone;
  const auto gathered = meter.Gather(groups);
  EXPECT_TRUE(gathered.ok()) << gathered.status();
  return gathered.ok() ? *gathered : std::vector<SublayerInstruments>();
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
  const double root = std::sqrt(static_cast<double>(spec.width()));
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

// Of a branch, what joins: nothing at first, all of it after BRANCH_NORM's 5 steps.
TEST(SublayerMeter, SeesABranchGrowWithTheStep) {
  const ModelSpec spec = testing::WithResidual(testing::TinySpec(), BRANCH_NORM);
  const auto first = Look(spec)[0], third = Look(spec, 2)[0], sixth = Look(spec, 5)[0];
  EXPECT_EQ(first.branch_norm(), 0.0);
  EXPECT_EQ(first.stream_share(), 1.0);
  EXPECT_NEAR(third.branch_norm(), 0.4 * sixth.branch_norm(), 1e-12);
  EXPECT_LT(sixth.stream_share(), third.stream_share());
}

}  // namespace
}  // namespace deepnet

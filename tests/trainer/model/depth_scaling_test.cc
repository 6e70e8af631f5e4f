#include <cmath>

#include <gtest/gtest.h>

#include "trainer/model/scheme.h"

namespace deepnet {
namespace {

// The tables below are printed with four decimals.
constexpr double kLastDecimal = 0.5e-4;

ModelSpec DeepNorm(int encoder_layers, int decoder_layers) {
  ModelSpec model;
  model.set_residual(DEEPNORM);
  model.set_encoder_layers(encoder_layers);
  model.set_decoder_layers(decoder_layers);
  return model;
}

TEST(DepthScaling, MatchesThePapersTable) {
  struct Row {
    int depth;
    double encoder_alpha, encoder_beta, decoder_alpha, decoder_beta;
  };
  for (const Row& row :
       {Row{6, 1.4179, 0.4970, 2.0598, 0.3433}, Row{18, 1.9987, 0.3526, 2.7108, 0.2608},
        Row{50, 2.7505, 0.2562, 3.4996, 0.2021}, Row{100, 3.4157, 0.2063, 4.1618, 0.1699},
        Row{500, 5.6482, 0.1248, 6.2233, 0.1136}}) {
    const DepthScaling scaling = MakeDepthScaling(DeepNorm(row.depth, row.depth));
    EXPECT_NEAR(scaling.encoder_alpha, row.encoder_alpha, kLastDecimal) << row.depth;
    EXPECT_NEAR(scaling.encoder_beta, row.encoder_beta, kLastDecimal) << row.depth;
    EXPECT_NEAR(scaling.decoder_alpha, row.decoder_alpha, kLastDecimal) << row.depth;
    EXPECT_NEAR(scaling.decoder_beta, row.decoder_beta, kLastDecimal) << row.depth;
  }
}

TEST(DepthScaling, TorchscaleChangesOnlyTheEncodersBeta) {
  struct Row {
    int depth;
    double encoder_beta;
  };
  for (const Row& row :
       {Row{6, 0.6569}, Row{18, 0.4660}, Row{50, 0.3387}, Row{100, 0.2727}, Row{500, 0.1649}}) {
    ModelSpec model = DeepNorm(row.depth, row.depth);
    DepthScaling expected = MakeDepthScaling(model);
    model.mutable_deepnorm()->set_beta_rule(TORCHSCALE);
    const DepthScaling scaling = MakeDepthScaling(model);
    EXPECT_NEAR(scaling.encoder_beta, row.encoder_beta, kLastDecimal) << row.depth;
    expected.encoder_beta = scaling.encoder_beta;
    EXPECT_EQ(scaling, expected);
  }
}

TEST(DepthScaling, EncoderUsesBothDepthsAndDecoderOnlyItsOwn) {
  const DepthScaling shallow_decoder = MakeDepthScaling(DeepNorm(100, 1));
  EXPECT_NEAR(shallow_decoder.encoder_alpha, 0.81 * std::pow(1e8, 1.0 / 16), 1e-12);
  EXPECT_NEAR(shallow_decoder.decoder_alpha, std::pow(3.0, 0.25), 1e-12);
  EXPECT_EQ(MakeDepthScaling(DeepNorm(1, 7)).decoder_beta,
            MakeDepthScaling(DeepNorm(100, 7)).decoder_beta);
}

TEST(DepthScaling, SettingsReplaceFormulasOneByOne) {
  ModelSpec model = DeepNorm(6, 6);
  const DepthScaling formula = MakeDepthScaling(model);
  model.mutable_deepnorm()->set_encoder_alpha(2.0);
  model.mutable_deepnorm()->set_decoder_beta(0.25);
  EXPECT_EQ(MakeDepthScaling(model), (DepthScaling{.encoder_alpha = 2.0,
                                                   .encoder_beta = formula.encoder_beta,
                                                   .decoder_alpha = formula.decoder_alpha,
                                                   .decoder_beta = 0.25}));
}

ModelSpec Alone(Architecture architecture, int layers) {
  ModelSpec model = architecture == ENCODER_ONLY ? DeepNorm(layers, 0) : DeepNorm(0, layers);
  model.set_architecture(architecture);
  return model;
}

TEST(DepthScaling, AStackAloneMatchesThePapersTable) {
  struct Row {
    int depth;
    double alpha, beta;
  };
  for (const Row& row : {Row{6, 1.8612, 0.3799}, Row{18, 2.4495, 0.2887}, Row{50, 3.1623, 0.2236},
                         Row{100, 3.7606, 0.1880}, Row{500, 5.6234, 0.1257}}) {
    const DepthScaling encoder = MakeDepthScaling(Alone(ENCODER_ONLY, row.depth));
    EXPECT_NEAR(encoder.encoder_alpha, row.alpha, kLastDecimal) << row.depth;
    EXPECT_NEAR(encoder.encoder_beta, row.beta, kLastDecimal) << row.depth;
    const DepthScaling decoder = MakeDepthScaling(Alone(DECODER_ONLY, row.depth));
    EXPECT_EQ(decoder, (DepthScaling{.decoder_alpha = encoder.encoder_alpha,
                                     .decoder_beta = encoder.encoder_beta}));
  }
}

TEST(DepthScaling, AStackAloneHasTheSettingsOfOthers) {
  ModelSpec model = Alone(DECODER_ONLY, 50);
  model.mutable_deepnorm()->set_adam(true);
  EXPECT_EQ(MakeDepthScaling(model), (DepthScaling{.decoder_alpha = 10, .decoder_beta = 0.1}));
  model.mutable_deepnorm()->set_decoder_alpha(3);
  model.mutable_deepnorm()->set_encoder_alpha(2);  // of no stack
  EXPECT_EQ(MakeDepthScaling(model), (DepthScaling{.decoder_alpha = 3, .decoder_beta = 0.1}));
}

TEST(DepthScaling, OtherResidualsAreNotScaled) {
  for (const Residual residual : {POST_LN, PRE_LN}) {
    ModelSpec model = DeepNorm(100, 100);
    model.set_residual(residual);
    model.mutable_deepnorm()->set_encoder_alpha(2.0);
    EXPECT_EQ(MakeDepthScaling(model), DepthScaling{});
  }
}

}  // namespace
}  // namespace deepnet

#include "trainer/model/depth_scaling.h"

#include <cmath>
#include <map>

#include <gtest/gtest.h>

#include "tests/support/tiny_model.h"

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

// --- MakeStackScaling: the numbers that are printed of a scheme are those of its paper ---

constexpr int kEncoderLayers = 8, kDecoderLayers = 5;
constexpr double kRelative = 1e-12;

ModelSpec Model(Residual residual) {
  ModelSpec model = testing::WithResidual(testing::TinySpec(), residual);
  model.set_encoder_layers(kEncoderLayers);
  model.set_decoder_layers(kDecoderLayers);
  return model;
}

void ExpectRange(const ValueRange& range, const ValueRange& expected, const char* what) {
  EXPECT_NEAR(range.least, expected.least, kRelative * std::abs(expected.least)) << what;
  EXPECT_NEAR(range.greatest, expected.greatest, kRelative * std::abs(expected.greatest)) << what;
}

struct Expected {
  StackScaling encoder, decoder;
};

// One of each scheme that is not 1 throughout.
std::map<Residual, Expected> ByHand() {
  const double n = kEncoderLayers, m = kDecoderLayers, root = std::sqrt(0.5);
  const double depth = std::pow(n * n * n * n * m, 1.0 / 16), k = 2 * n + 3 * m;
  const auto omega = [](double r) { return std::sqrt((r + 1) / std::log(r + 1) - 1); };
  const ValueRange one{1, 1}, fairseq{root, root};
  const auto same = [](double value) { return ValueRange{value, value}; };
  const ValueRange fixup{0, root * std::pow(k, -1.0 / 6)};  // fc1's k^(-1/2) is between
  const ValueRange fixup_qk = same(root * std::pow(k, -1.0 / 6));
  const double sub_ln = std::sqrt(std::log(3 * m));
  return {
      {DEEPNORM,
       {{same(0.81 * depth), same(0.87 / depth), one},
        {same(std::pow(3 * m, 0.25)), same(std::pow(12 * m, -0.25)), one}}},
      {POST_LN_INIT, {{one, {1 / n, 1}, {1 / n, 1}}, {one, {1 / m, 1}, {1 / m, 1}}}},
      {DS_INIT,
       {{one, {1 / std::sqrt(n), 1}, {1 / std::sqrt(n), 1}},
        {one, {1 / std::sqrt(m), 1}, {1 / std::sqrt(m), 1}}}},
      {ADMIN, {{same(omega(2 * n)), {root, 1}, fairseq}, {same(omega(3 * m)), {root, 1}, fairseq}}},
      {R_FIXUP, {{one, fixup, fixup_qk}, {one, fixup, fixup_qk}}},
      {T_FIXUP,
       {{one, same(0.67 * std::pow(n, -0.25)), fairseq},
        {one, same(std::pow(9 * m, -0.25)), fairseq}}},
      {SUB_LN,
       {{one, same(std::sqrt(std::log(3 * m) * std::log(2 * n) / 3)), one},
        {one, {1, sub_ln}, one}}},  // cross-attention 1
      {NORM_ONLY, {{{0, 0}, one, one}, {{0, 0}, one, one}}},
      {NEITHER, {{{0, 0}, one, one}, {{0, 0}, one, one}}},
      {B2T,
       {{one, same(1 / std::sqrt(n)), same(1 / std::sqrt(n))},
        {one, same(1 / std::sqrt(m)), same(1 / std::sqrt(m))}}},
      {KEEL, {{same(2 * n), one, one}, {same(3 * m), one, one}}},
  };
}

TEST(StackScaling, IsWhatThePapersSay) {
  const std::map<Residual, Expected> by_hand = ByHand();
  const StackScaling plain{{1, 1}, {1, 1}, {1, 1}};
  for (const Residual residual : testing::AllResiduals()) {
    SCOPED_TRACE(Residual_Name(residual));
    const auto found = by_hand.find(residual);
    const Expected expected = found == by_hand.end() ? Expected{plain, plain} : found->second;
    for (const int stack : {0, 1}) {
      const StackScaling scaling = MakeStackScaling(Model(residual), stack);
      const StackScaling& by_paper = stack == 0 ? expected.encoder : expected.decoder;
      ExpectRange(scaling.alpha, by_paper.alpha, "alpha");
      ExpectRange(scaling.beta, by_paper.beta, "beta");
      ExpectRange(scaling.query_key, by_paper.query_key, "q, k");
    }
  }
}

TEST(StackScaling, AProfiledOmegaIsARange) {
  ModelSpec model = Model(ADMIN);
  for (int i = 0; i < 2 * kEncoderLayers + 3 * kDecoderLayers; ++i) {
    model.mutable_scheme()->add_admin_omega(1.0 + i);
  }
  EXPECT_EQ(MakeStackScaling(model, 0).alpha, (ValueRange{1, 16}));
  EXPECT_EQ(MakeStackScaling(model, 1).alpha, (ValueRange{17, 31}));
}

TEST(StackScaling, AStackThatIsNotThereIsZero) {
  const ModelSpec model = testing::WithArchitecture(Model(DEEPNORM), DECODER_ONLY);
  EXPECT_EQ(MakeStackScaling(model, 0), StackScaling());
  EXPECT_NEAR(MakeStackScaling(model, 1).alpha.least, std::pow(2 * 3, 0.25), kRelative);
}

}  // namespace
}  // namespace deepnet

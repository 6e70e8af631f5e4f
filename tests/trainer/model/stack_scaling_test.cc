// What is printed of a scheme is what its paper says: by hand, at one shape with N != M.
#include "trainer/model/stack_scaling.h"

#include <cmath>
#include <map>

#include <gtest/gtest.h>

#include "tests/support/tiny_model.h"

namespace deepnet {
namespace {

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

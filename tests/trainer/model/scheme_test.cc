// Gains and parts of every scheme, by the numbers of the papers at one shape with N != M.
#include "trainer/model/scheme.h"

#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include <gtest/gtest.h>

#include "parallel/base/exit_code.h"
#include "parallel/plan/planner.h"
#include "tests/support/tiny_model.h"
#include "trainer/model/describe.h"

namespace deepnet {
namespace {

constexpr int kEncoderLayers = 8, kDecoderLayers = 5;
constexpr double kRelative = 1e-12;

ModelSpec Model(Residual residual) {
  ModelSpec model = testing::WithResidual(testing::TinySpec(), residual);
  model.set_encoder_layers(kEncoderLayers);
  model.set_decoder_layers(kDecoderLayers);
  model.set_tied_embeddings(TIE_NONE);
  return model;
}

const Parameter& Find(const Inventory& inventory, const std::string& name) {
  for (const Parameter& p : inventory.parameters) {
    if (p.name == name) return p;
  }
  ADD_FAILURE() << "no " << name;
  return inventory.parameters.front();
}

bool Has(const Inventory& inventory, const std::string& name) {
  for (const Parameter& p : inventory.parameters) {
    if (p.name == name) return true;
  }
  return false;
}

// Deviation over Xavier's, sqrt(2 / (in + out)).
double GainOf(const Inventory& inventory, const std::string& name) {
  const Parameter& p = Find(inventory, name + ".weight");
  return p.initial_std / std::sqrt(2.0 / static_cast<double>(p.shape[0] + p.shape[1]));
}

struct GainRow {
  Residual residual;
  std::string matrix;
  double gain;
};

TEST(Scheme, MatricesStartWithTheGainsOfThePapers) {
  const double n = kEncoderLayers, m = kDecoderLayers, root = std::sqrt(0.5);
  const double sublayers = 2 * n + 3 * m;
  const std::vector<GainRow> rows = {
      // DeepNet, section 3: layer l of L is divided by L - l + 1.
      {POST_LN_INIT, "encoder.layers.0.self_attn.q_proj", 1.0 / 8},
      {POST_LN_INIT, "encoder.layers.7.fc2", 1.0},
      {POST_LN_INIT, "decoder.layers.2.encoder_attn.v_proj", 1.0 / 3},
      // Zhang et al., 2019: l^(-1/2).
      {DS_INIT, "encoder.layers.0.fc1", 1.0},
      {DS_INIT, "encoder.layers.3.self_attn.k_proj", 0.5},
      {DS_INIT, "decoder.layers.4.self_attn.out_proj", 1 / std::sqrt(5.0)},
      // Liu et al., 2020: fairseq's Xavier.
      {ADMIN, "encoder.layers.3.self_attn.q_proj", root},
      {ADMIN, "encoder.layers.3.fc1", 1.0},
      // Zhang, Dauphin, Ma, 2019: L^(-1/(2m - 2)), the last matrix 0.
      {R_FIXUP, "encoder.layers.1.self_attn.v_proj", root * std::pow(sublayers, -1.0 / 6)},
      {R_FIXUP, "decoder.layers.1.encoder_attn.out_proj", 0.0},
      {R_FIXUP, "decoder.layers.1.fc1", std::pow(sublayers, -0.5)},
      {R_FIXUP, "decoder.layers.1.fc2", 0.0},
      // Huang et al., 2020.
      {T_FIXUP, "encoder.layers.0.self_attn.q_proj", root},
      {T_FIXUP, "encoder.layers.0.self_attn.v_proj", 0.67 * std::pow(n, -0.25)},
      {T_FIXUP, "encoder.layers.0.fc1", 0.67 * std::pow(n, -0.25)},
      {T_FIXUP, "decoder.layers.0.encoder_attn.out_proj", std::pow(9 * m, -0.25)},
      // Wang et al., 2022 (Magneto), table 2.
      {SUB_LN, "encoder.layers.0.fc2", std::sqrt(std::log(3 * m) * std::log(2 * n) / 3)},
      {SUB_LN, "decoder.layers.0.self_attn.v_proj", std::sqrt(std::log(3 * m))},
      {SUB_LN, "decoder.layers.0.encoder_attn.v_proj", 1.0},
      {SUB_LN, "decoder.layers.0.self_attn.k_proj", 1.0},
      // Takase et al., 2022.
      {B2T, "encoder.layers.5.self_attn.k_proj", 1 / std::sqrt(n)},
      {B2T, "decoder.layers.1.fc1", 1 / std::sqrt(m)},
  };
  for (const GainRow& row : rows) {
    SCOPED_TRACE(Residual_Name(row.residual) + " " + row.matrix);
    const Inventory inventory = Describe(Model(row.residual), testing::TinyCapacity());
    EXPECT_NEAR(GainOf(inventory, row.matrix), row.gain, kRelative * std::abs(row.gain));
  }
}

TEST(Scheme, TheReleasedExponentOfDsInitIsASetting) {
  ModelSpec model = Model(DS_INIT);
  model.mutable_scheme()->set_ds_exponent(0.25);
  EXPECT_NEAR(GainOf(Describe(model, testing::TinyCapacity()), "encoder.layers.3.fc1"),
              std::pow(4.0, -0.25), kRelative);
}

TEST(Scheme, TheOthersStartAsXavier) {
  for (const Residual residual :
       {POST_LN, PRE_LN, REZERO, NORMFORMER, RESIDUAL_ONLY, NORM_ONLY, NEITHER, MIX_LN,
        LAYERNORM_SCALING, PERI_LN, KEEL, RESIDUAL_DUAL, BRANCH_NORM}) {
    const Inventory inventory = Describe(Model(residual), testing::TinyCapacity());
    for (const Parameter& p : inventory.parameters) {
      const bool matrix = p.shape.size() == 2 && p.role != Role::kEmbedding;
      if (!matrix) continue;
      const std::string block = p.name.substr(0, p.name.size() - std::string(".weight").size());
      EXPECT_NEAR(GainOf(inventory, block), 1, kRelative) << p.name;
    }
  }
}

TEST(Scheme, TFixupShrinksEmbeddingsAndRFixupStartsItsOutputAtZero) {
  const double width = testing::TinySpec().d_model();
  const Inventory small = Describe(Model(T_FIXUP), testing::TinyCapacity());
  EXPECT_NEAR(Find(small, "encoder.embed_tokens.weight").initial_std,
              std::pow(9.0 * kEncoderLayers, -0.25) / std::sqrt(width), kRelative);
  EXPECT_NEAR(Find(small, "decoder.embed_tokens.weight").initial_std,
              std::pow(9.0 * kDecoderLayers, -0.25) / std::sqrt(width), kRelative);
  const Inventory zero = Describe(Model(R_FIXUP), testing::TinyCapacity());
  EXPECT_EQ(Find(zero, "lm_head.weight").initial_std, 0.0);
  EXPECT_EQ(Find(zero, "lm_head.weight").initial_value, 0.0f);
  EXPECT_FALSE(Has(zero, "encoder.layers.0.fc1.bias"));
}

TEST(Scheme, TrainedNumbersStartWhereTheSchemeSays) {
  const Inventory rezero = Describe(Model(REZERO), testing::TinyCapacity());
  EXPECT_EQ(Find(rezero, "encoder.layers.4.branch_scale").initial_value, 0.0f);
  EXPECT_EQ(Find(rezero, "encoder.layers.4.branch_scale").shape, (std::vector<int64_t>{1}));
  const Inventory fixup = Describe(Model(R_FIXUP), testing::TinyCapacity());
  EXPECT_EQ(Find(fixup, "decoder.layers.0.final_branch_scale").initial_value, 1.0f);
  EXPECT_EQ(Find(fixup, "decoder.layers.0.final_middle_shift").initial_value, 0.0f);
  // admin-torch: sqrt((R + 1) / ln(R + 1) - 1), R sub-layers of the stack.
  const Inventory admin = Describe(Model(ADMIN), testing::TinyCapacity());
  const double r = 3.0 * kDecoderLayers;
  EXPECT_FLOAT_EQ(Find(admin, "decoder.layers.3.encoder_attn_stream_scale").initial_value,
                  static_cast<float>(std::sqrt((r + 1) / std::log(r + 1) - 1)));
}

TEST(Scheme, AdminTakesTheNumbersOfItsProfileInTheOrderOfTheSublayers) {
  ModelSpec model = Model(ADMIN);
  for (int i = 0; i < 2 * kEncoderLayers + 3 * kDecoderLayers; ++i) {
    model.mutable_scheme()->add_admin_omega(1.0 + i);
  }
  const Inventory admin = Describe(model, testing::TinyCapacity());
  const auto omega = [&](const std::string& name) { return Find(admin, name).initial_value; };
  EXPECT_EQ(omega("encoder.layers.0.self_attn_stream_scale"), 1.0f);
  EXPECT_EQ(omega("encoder.layers.2.final_stream_scale"), 6.0f);
  EXPECT_EQ(omega("decoder.layers.0.self_attn_stream_scale"), 17.0f);
  EXPECT_EQ(omega("decoder.layers.4.final_stream_scale"), 31.0f);
}

ModelSpec Alone(Residual residual, Architecture architecture) {
  return testing::WithArchitecture(Model(residual), architecture);  // 3 layers
}

TEST(Scheme, AStackAloneHasTheFormsOfTwoSublayersALayer) {
  const double layers = 3;
  for (const Architecture architecture : {DECODER_ONLY, ENCODER_ONLY}) {
    SCOPED_TRACE(Architecture_Name(architecture));
    const int stack = architecture == ENCODER_ONLY ? 0 : 1;
    const std::string name = StackName(stack);
    const auto gain = [&](Residual residual, const std::string& matrix) {
      const ModelSpec model = Alone(residual, architecture);
      return GainOf(Describe(model, testing::TinyCapacityOf(model)), name + matrix);
    };
    const double deep = std::pow(8 * layers, -0.25);
    EXPECT_NEAR(gain(DEEPNORM, "layers.0.self_attn.v_proj"), deep, kRelative);
    EXPECT_NEAR(gain(DEEPNORM, "layers.2.fc2"), deep, kRelative);
    EXPECT_NEAR(gain(DEEPNORM, "layers.2.self_attn.q_proj"), 1.0, kRelative);
    EXPECT_NEAR(gain(SUB_LN, "layers.1.fc1"), std::sqrt(std::log(2 * layers)), kRelative);
    EXPECT_NEAR(gain(R_FIXUP, "layers.1.fc1"), std::pow(2 * layers, -0.5), kRelative);
    EXPECT_NEAR(gain(POST_LN_INIT, "layers.0.fc1"), 1 / layers, kRelative);
    EXPECT_NEAR(gain(B2T, "layers.0.fc1"), 1 / std::sqrt(layers), kRelative);
    const auto scheme = [&](Residual residual) {
      return MakeSublayerScheme(Alone(residual, architecture),
                                {stack, 1, SublayerKind::kFeedForward});
    };
    EXPECT_NEAR(scheme(DEEPNORM).alpha, std::pow(2 * layers, 0.25), kRelative);
    EXPECT_EQ(scheme(KEEL).alpha, 2 * layers);
    EXPECT_NEAR(scheme(ADMIN).stream_scale,
                std::sqrt((2 * layers + 1) / std::log(2 * layers + 1) - 1), kRelative);
  }
}

TEST(Scheme, AdminsProfileOfADecoderAloneHasTwoNumbersALayer) {
  ModelSpec model = Alone(ADMIN, DECODER_ONLY);
  for (int i = 0; i < 6; ++i) model.mutable_scheme()->add_admin_omega(1.0 + i);
  const Inventory admin = Describe(model, testing::TinyCapacityOf(model));
  EXPECT_EQ(Find(admin, "decoder.layers.1.self_attn_stream_scale").initial_value, 3.0f);
  EXPECT_EQ(Find(admin, "decoder.layers.2.final_stream_scale").initial_value, 6.0f);
}

TEST(Scheme, ConstantsFollowDepthAndLayer) {
  const auto scheme = [](Residual residual, int stack, int layer) {
    return MakeSublayerScheme(Model(residual), {stack, layer, SublayerKind::kFeedForward});
  };
  EXPECT_EQ(scheme(KEEL, 0, 3).alpha, 2.0 * kEncoderLayers);
  EXPECT_EQ(scheme(KEEL, 1, 3).alpha, 3.0 * kDecoderLayers);
  EXPECT_EQ(scheme(LAYERNORM_SCALING, 1, 3).input_scale, 0.5);
  EXPECT_TRUE(scheme(MIX_LN, 0, 3).end_norm);  // half of 8 layers
  EXPECT_TRUE(scheme(MIX_LN, 0, 4).input_norm);
  EXPECT_EQ(scheme(NORM_ONLY, 0, 0).alpha, 0.0);
}

TEST(Scheme, ABranchOfBranchNormIsLetInStepByStep) {
  ModelSpec model = Model(BRANCH_NORM);
  model.mutable_scheme()->clear_branch_norm_steps();
  const auto ramp = [&](int64_t step) {
    return MakeSublayerScheme(model, {1, 2, SublayerKind::kCrossAttention}).RampAt(step);
  };
  EXPECT_EQ(ramp(0), 0.0);
  EXPECT_EQ(ramp(1000), 0.25);  // T = 4000 (Liu et al., 2023)
  EXPECT_EQ(ramp(4000), 1.0);
  EXPECT_EQ(ramp(9999), 1.0);
  model.mutable_scheme()->set_branch_norm_steps(10);
  EXPECT_EQ(ramp(1), 0.1);
  EXPECT_EQ(MakeSublayerScheme(Model(POST_LN), {0, 0, SublayerKind::kFeedForward}).RampAt(0), 1.0);
}

TEST(Scheme, TheSecondStreamOfResidualDualEndsInANormOfItsOwn) {
  const ModelSpec model = Model(RESIDUAL_DUAL);
  EXPECT_EQ(EndOf(model), StackEnd::kSecondNorm);
  const double s = model.scheme().residual_dual_scale();
  EXPECT_NEAR(SecondNormEpsilon(model), 1e-7 / (s * s), kRelative * 1e-7 / (s * s));
  const Inventory inventory = Describe(model, testing::TinyCapacity());
  EXPECT_EQ(Find(inventory, "encoder.layer_norm.weight").initial_value, 1.0f);
  EXPECT_TRUE(Has(inventory, "decoder.layer_norm.bias"));
  EXPECT_NE(inventory.one_piece.find("model.residual: RESIDUAL_DUAL"), std::string::npos);
}

// A stack that no cut can go through, by the planner's own words.
TEST(Scheme, APipelineRefusesByNameWhatItCannotCut) {
  for (const auto& [residual, why] :
       {std::pair{DLCL, "DLCL: a layer reads all before it"},
        std::pair{RESIDUAL_DUAL, "RESIDUAL_DUAL: a second stream passes all layers of a stack"}}) {
    const Inventory inventory = Describe(Model(residual), testing::TinyCapacity());
    DataSpec data;
    data.set_global_microbatches(4);
    ClusterSpec four_ranks;
    four_ranks.set_nodes(4);
    const auto plan = [&](const ParallelSpec& parallel) {
      return MakePlan(inventory, {data, OptimSpec(), ComputeSpec(), four_ranks, parallel});
    };
    ParallelSpec two_stages, two_chunks;
    two_stages.set_pipeline_parallel_size(2);
    two_chunks.set_virtual_pipeline_size(2);
    EXPECT_EQ(
        plan(two_stages).status().message(),
        absl::StrCat("parallel.pipeline_parallel_size: 2: must be 1 with model.residual: ", why));
    EXPECT_EQ(
        plan(two_chunks).status().message(),
        absl::StrCat("parallel.virtual_pipeline_size: 2: must be 1 with model.residual: ", why));
    EXPECT_EQ(GetExitCode(plan(two_stages).status()), ExitCode::kBadConfig);
    const auto left_open = plan(ParallelSpec());
    ASSERT_TRUE(left_open.ok()) << left_open.status();
    EXPECT_EQ(left_open->pipeline_parallel_size(), 1);
    EXPECT_EQ(left_open->data_parallel_size(), 4);
  }
}

TEST(Scheme, WhatDependsOnItsMicrobatchIsRefusedByName) {
  ModelSpec model = Model(POST_LN);
  EXPECT_TRUE(CheckRowsAreIndependent(model).ok());
  model.set_norm(BATCH_NORM);
  const absl::Status refused = CheckRowsAreIndependent(model);
  EXPECT_EQ(GetExitCode(refused), ExitCode::kCheckpoint);
  EXPECT_NE(refused.message().find("model.norm: BATCH_NORM"), absl::string_view::npos);
}

TEST(Scheme, NormsWithoutMeanHaveNoBias) {
  for (const Residual residual : testing::AllResiduals()) {
    ModelSpec model = Model(residual);
    model.set_norm(RMS_NORM);
    for (const Parameter& p : Describe(model, testing::TinyCapacity()).parameters) {
      EXPECT_NE(p.role, Role::kNormBias) << Residual_Name(residual) << " " << p.name;
    }
  }
}

// --- MakeStackScaling: the numbers that are printed of a scheme are those of its paper ---

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

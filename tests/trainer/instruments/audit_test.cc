// Audits of initial weights: right ones pass at every depth and scheme, every kind of wrong one is
// found by name, and `train` refuses it.
#include "trainer/instruments/audit.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include "launch/defaults.h"
#include "launch/validate.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/file_system.h"
#include "parallel/base/logging.h"
#include "parallel/comm/communicator.h"
#include "tests/parity/training_runs.h"
#include "tests/support/tiny_model.h"
#include "trainer/kernels/aten.h"
#include "trainer/kernels/compute.h"
#include "trainer/model/describe.h"
#include "trainer/resolve_run.h"
#include "trainer/train_session.h"

namespace deepnet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr int64_t kAll = int64_t{1} << 40;

RunSpec SmallRun(Residual residual, int encoder_layers, int decoder_layers) {
  RunSpec run;
  ModelSpec& model = *run.mutable_model();
  model.set_residual(residual);
  model.set_encoder_layers(encoder_layers);
  model.set_decoder_layers(decoder_layers);
  model.set_d_model(64);
  model.set_ffn_dim(128);
  model.set_num_heads(2);
  model.set_vocabulary_size(500);
  run.mutable_data()->set_max_sentence_tokens(20);
  run.mutable_data()->mutable_microbatch()->set_max_target_tokens(100);
  run.mutable_optim()->set_learning_rate(1e-3);
  return WithDefaults(run);
}

Inventory InventoryOf(const ModelSpec& model) { return Describe(model, {}); }

AuditReport Audit(const ModelSpec& model) {
  return AuditInitialWeights(model, InventoryOf(model), /*seed=*/1, kAll);
}

const AuditGroup& GroupOf(const AuditReport& report, LayerKind kind, Role role) {
  return *std::find_if(report.groups.begin(), report.groups.end(), [&](const AuditGroup& group) {
    return group.kind == kind && group.role == role && group.drawn;
  });
}

// Weights of a whole model, to be spoilt.
struct Held {
  explicit Held(const ModelSpec& spec)
      : model(spec), whole(InventoryOf(spec)), parameters(whole, *ops, /*trainable=*/false) {
    parameters.Initialize(1);
  }
  AuditReport Audit() const { return AuditHeldWeights(model, whole, parameters); }

  const std::unique_ptr<Ops> ops = MakeAtenOps(at::kFloat, at::kFloat);
  ModelSpec model;
  Inventory whole;
  Parameters parameters;
};

RunSpec RunAlone(Residual residual, Architecture architecture, int layers) {
  const bool encoder = architecture == ENCODER_ONLY;
  RunSpec run = SmallRun(residual, encoder ? layers : 0, encoder ? 0 : layers);
  run.mutable_model()->set_architecture(architecture);
  return WithDefaults(run);
}

ModelSpec Alone(Residual residual, Architecture architecture, int layers) {
  return RunAlone(residual, architecture, layers).model();
}

// Every scheme goes with every architecture and every norm: no case may be missing.
class EveryScheme : public ::testing::TestWithParam<std::tuple<Residual, Architecture, Norm, int>> {
 protected:
  RunSpec Run() const {
    const auto [residual, architecture, norm, layers] = GetParam();
    RunSpec run = architecture == ENCODER_DECODER ? SmallRun(residual, layers, layers + 1)
                                                  : RunAlone(residual, architecture, layers);
    run.mutable_model()->set_norm(norm);
    return run;
  }
};

TEST_P(EveryScheme, StartsAsItsDescriptionSays) {
  const RunSpec run = Run();
  ASSERT_TRUE(ValidateForPlan(run).ok()) << ValidateForPlan(run);
  const AuditReport drawn = Audit(run.model());
  EXPECT_THAT(drawn.faults, IsEmpty());
  EXPECT_EQ(drawn.tensors.size(), InventoryOf(run.model()).parameters.size());
  EXPECT_THAT(Held(run.model()).Audit().faults, IsEmpty());
}

std::string NameOfCase(const ::testing::TestParamInfo<EveryScheme::ParamType>& info) {
  const auto [residual, architecture, norm, layers] = info.param;
  return absl::StrCat(Residual_Name(residual), "_", Architecture_Name(architecture), "_",
                      Norm_Name(norm), "_", layers);
}

INSTANTIATE_TEST_SUITE_P(
    Audit, EveryScheme,
    ::testing::Combine(::testing::ValuesIn(testing::AllResiduals()),
                       ::testing::Values(ENCODER_DECODER, DECODER_ONLY, ENCODER_ONLY),
                       ::testing::Values(LAYER_NORM, RMS_NORM, BATCH_NORM), ::testing::Values(2)),
    NameOfCase);
INSTANTIATE_TEST_SUITE_P(AuditDeep, EveryScheme,
                         ::testing::Combine(::testing::ValuesIn(testing::AllResiduals()),
                                            ::testing::Values(ENCODER_DECODER, DECODER_ONLY,
                                                              ENCODER_ONLY),
                                            ::testing::Values(LAYER_NORM), ::testing::Values(40)),
                         NameOfCase);

// Figure 2 of the paper with the decimals of the table in docs/design/residuals.md.
TEST(Audit, WeightsHaveTheBetaOfThePaper) {
  struct Row {
    int layers;
    double encoder_beta, decoder_beta;
  };
  for (const Row& row : {Row{6, 0.4970, 0.3433}, Row{18, 0.3526, 0.2608}, Row{50, 0.2562, 0.2021},
                         Row{100, 0.2063, 0.1699}}) {
    const AuditReport report = Audit(SmallRun(DEEPNORM, row.layers, row.layers).model());
    const auto measured = [&](LayerKind kind, Role role) {
      const AuditGroup& group = GroupOf(report, kind, role);
      return group.least_gain * group.all.std_ratio;
    };
    for (const Role role : {Role::kValue, Role::kAttentionOutput, Role::kFeedForward}) {
      EXPECT_NEAR(measured(LayerKind::kEncoder, role) / row.encoder_beta, 1, kStdTolerance);
      EXPECT_NEAR(measured(LayerKind::kDecoder, role) / row.decoder_beta, 1, kStdTolerance);
    }
    for (const Role role : {Role::kQuery, Role::kKey}) {
      EXPECT_NEAR(measured(LayerKind::kEncoder, role), 1, kStdTolerance);
      EXPECT_NEAR(measured(LayerKind::kDecoder, role), 1, kStdTolerance);
    }
  }
}

// The paper's column of one stack: (8 L)^(-1/4) with four decimals.
TEST(Audit, WeightsOfAStackAloneHaveTheBetaOfThePaper) {
  for (const auto& [layers, beta] : {std::pair{6, 0.3799}, {18, 0.2887}, {50, 0.2236}}) {
    for (const Architecture architecture : {DECODER_ONLY, ENCODER_ONLY}) {
      const AuditReport report = Audit(Alone(DEEPNORM, architecture, layers));
      const auto measured = [&](Role role) {
        const AuditGroup& group = GroupOf(report, LayerKind::kDecoder, role);
        return group.least_gain * group.all.std_ratio;
      };
      for (const Role role : {Role::kValue, Role::kAttentionOutput, Role::kFeedForward}) {
        EXPECT_NEAR(measured(role) / beta, 1, kStdTolerance);
      }
      EXPECT_NEAR(measured(Role::kQuery), 1, kStdTolerance);
      EXPECT_NEAR(measured(Role::kKey), 1, kStdTolerance);
    }
  }
}

// Drawn as described, but described wrongly: only the formula can tell.
TEST(Audit, AGainThatIsNotTheFormulasIsFoundThoughTheWeightsHaveIt) {
  const ModelSpec model = SmallRun(DEEPNORM, 6, 6).model();
  Inventory wrong = InventoryOf(model);
  for (Parameter& p : wrong.parameters) {
    if (p.role == Role::kValue) p.initial_std *= 0.9;
  }
  EXPECT_THAT(AuditInitialWeights(model, wrong, 1, kAll).faults,
              ElementsAre(HasSubstr("encoder layer, value, 6 tensors together: gain"),
                          HasSubstr("decoder layer, value, 12 tensors together: gain")));
}

// The audit's own side of the comparison, beside the table in docs/design/residuals.md: four
// decimals.
TEST(Audit, HasThePapersConstantsFromItsOwnFormulas) {
  constexpr double kLastDecimal = 0.5e-4;
  struct Row {
    int layers;
    double encoder_alpha, encoder_beta, decoder_alpha, decoder_beta, alone_alpha, alone_beta;
  };
  for (const Row& row : {Row{6, 1.4179, 0.4970, 2.0598, 0.3433, 1.8612, 0.3799},
                         Row{18, 1.9987, 0.3526, 2.7108, 0.2608, 2.4495, 0.2887},
                         Row{50, 2.7505, 0.2562, 3.4996, 0.2021, 3.1623, 0.2236},
                         Row{100, 3.4157, 0.2063, 4.1618, 0.1699, 3.7606, 0.1880},
                         Row{500, 5.6482, 0.1248, 6.2233, 0.1136, 5.6234, 0.1257}}) {
    const auto expect = [](const PaperScaling& scaling, double alpha, double beta) {
      EXPECT_NEAR(scaling.alpha, alpha, kLastDecimal);
      EXPECT_NEAR(scaling.beta, beta, kLastDecimal);
    };
    const ModelSpec model = SmallRun(DEEPNORM, row.layers, row.layers).model();
    expect(PaperScalingOf(model, 0), row.encoder_alpha, row.encoder_beta);
    expect(PaperScalingOf(model, 1), row.decoder_alpha, row.decoder_beta);
    expect(PaperScalingOf(Alone(DEEPNORM, ENCODER_ONLY, row.layers), 0), row.alone_alpha,
           row.alone_beta);
    expect(PaperScalingOf(Alone(DEEPNORM, DECODER_ONLY, row.layers), 1), row.alone_alpha,
           row.alone_beta);
  }
}

// Settings change the theory as they change the model: two codes, one answer.
TEST(Audit, SettingsOfDeepNormPassTheirAudit) {
  for (const char* settings :
       {"beta_rule: TORCHSCALE", "adam: true", "encoder_alpha: 2 decoder_beta: 0.5",
        "adam: true decoder_alpha: 3 encoder_beta: 0.25"}) {
    SCOPED_TRACE(settings);
    ModelSpec model = SmallRun(DEEPNORM, 4, 3).model();
    ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(settings, model.mutable_deepnorm()));
    EXPECT_THAT(Audit(model).faults, IsEmpty());
  }
}

// Weights of one model under the name of another: the tensors are as described, the scheme is not.
TEST(Audit, AModelThatDoesNotHaveTheFormulasBetaIsRefused) {
  ModelSpec model = SmallRun(DEEPNORM, 6, 6).model();
  const Inventory inventory = InventoryOf(model);
  model.mutable_deepnorm()->set_beta_rule(TORCHSCALE);
  EXPECT_THAT(AuditInitialWeights(model, inventory, 1, kAll).faults,
              ::testing::Contains(HasSubstr("encoder layer, value, 6 tensors together: gain "
                                            "0.496989 to 0.496989, by the formula 0.65694")));
}

TEST(Audit, EveryTensorIsBesideItsTheory) {
  Held held(SmallRun(POST_LN, 2, 2).model());
  held.parameters.Get("decoder.layers.0.fc1.bias")[3].fill_(0.5);
  const AuditReport report = held.Audit();
  ASSERT_EQ(report.tensors.size(), held.whole.parameters.size());
  for (size_t i = 0; i < report.tensors.size(); ++i) {
    const TensorAudit& tensor = report.tensors[i];
    const Parameter& p = held.whole.parameters[i];
    SCOPED_TRACE(p.name);
    EXPECT_EQ(tensor.name, p.name);
    EXPECT_EQ(tensor.theory_std, p.initial_std);
    EXPECT_EQ(tensor.spread.elements, p.NumElements() - (p.zero_row < 0 ? 0 : p.shape[1]));
    at::Tensor values = held.parameters.Get(p.name).to(at::kDouble);
    if (p.zero_row >= 0) values = at::cat({values.slice(0, 0, 1), values.slice(0, 2)});
    if (p.initial_std == 0) values = values - p.initial_value;
    const double by_hand = p.initial_std == 0
                               ? std::sqrt(values.square().mean().item<double>())
                               : std::sqrt(values.var(/*unbiased=*/false).item<double>());
    EXPECT_NEAR(tensor.drawn_std, by_hand, 1e-9 * by_hand);
    EXPECT_EQ(tensor.spread.fault.empty(), p.name != "decoder.layers.0.fc1.bias");
  }
}

TEST(Audit, ASampleOfFirstRowsIsAsGoodAsTheWhole) {
  const ModelSpec model = SmallRun(DEEPNORM, 6, 6).model();
  const AuditReport report = AuditInitialWeights(model, InventoryOf(model), 1, 64 * 10);
  EXPECT_THAT(report.faults, IsEmpty());
  const AuditGroup& table = GroupOf(report, LayerKind::kSourceEmbedding, Role::kEmbedding);
  EXPECT_EQ(table.all.elements, 64 * 9);  // ten rows but that of <pad>
  EXPECT_EQ(table.elements, 64 * 500);
}

TEST(Audit, AScaledMatrixIsFound) {
  Held held(SmallRun(DEEPNORM, 6, 6).model());
  held.parameters.Get("encoder.layers.3.fc2.weight").mul_(1.2);
  EXPECT_THAT(held.Audit().faults,
              ElementsAre(HasSubstr("encoder.layers.3.fc2.weight: standard deviation 1.19")));
}

// Three per cent are inside the sampling error of one matrix of 64 x 64, but not of all.
TEST(Audit, ASmallErrorInAllMatricesOfARoleIsFound) {
  Held held(SmallRun(DEEPNORM, 20, 6).model());
  for (const Parameter& p : held.whole.parameters) {
    if (p.role == Role::kQuery && p.name.starts_with("encoder.")) {
      held.parameters.Get(p.name).mul_(1.03);
    }
  }
  EXPECT_THAT(held.Audit().faults,
              ElementsAre(HasSubstr("encoder layer, query, 20 tensors together")));
}

TEST(Audit, AShiftedMatrixIsFound) {
  Held held(SmallRun(POST_LN, 2, 2).model());
  held.parameters.Get("decoder.layers.1.fc1.weight").add_(0.02);
  EXPECT_THAT(held.Audit().faults,
              ::testing::Contains(HasSubstr("decoder.layers.1.fc1.weight: mean")));
}

TEST(Audit, WhatIsNotDrawnMustBeExact) {
  Held held(SmallRun(PRE_LN, 2, 2).model());
  held.parameters.Get("encoder.layers.0.fc1.bias")[7].fill_(1e-30);
  held.parameters.Get("decoder.layer_norm.weight")[0].fill_(std::nextafter(1.0f, 2.0f));
  held.parameters.Get("shared.weight")[1][63].fill_(1e-9);  // the row of <pad>
  EXPECT_THAT(held.Audit().faults, ElementsAre(HasSubstr("shared.weight: row 1 must be zero, 1 of"),
                                               HasSubstr("encoder.layers.0.fc1.bias: 1 of 128"),
                                               HasSubstr("decoder.layer_norm.weight: 1 of 64")));
}

TEST(Audit, NumbersThatAreNoneAreFaults) {
  Held held(SmallRun(DEEPNORM, 2, 2).model());
  held.parameters.Get("encoder.layers.0.fc1.weight")[3][5].fill_(
      std::numeric_limits<float>::quiet_NaN());
  held.parameters.Get("encoder.layers.0.fc1.bias")[0].fill_(
      std::numeric_limits<float>::quiet_NaN());
  EXPECT_THAT(held.Audit().faults,
              ::testing::IsSupersetOf({HasSubstr("encoder.layers.0.fc1.weight: standard"),
                                       HasSubstr("encoder.layers.0.fc1.bias: 1 of")}));
}

TEST(Audit, AStatusNamesTheFirstFaultsAndCountsTheOthers) {
  AuditReport report;
  EXPECT_TRUE(AuditStatus(report).ok());
  for (int i = 0; i < 8; ++i) report.faults.push_back("tensor " + std::to_string(i));
  const absl::Status status = AuditStatus(report);
  EXPECT_EQ(GetExitCode(status), ExitCode::kPreflight);
  EXPECT_THAT(std::string(status.message()), HasSubstr("tensor 4\nand 3 more"));
  EXPECT_THAT(std::string(status.message()), Not(HasSubstr("tensor 5")));
}

// The theory is bent instead of the weights: to the audit it is the same.
TEST(Audit, TrainRefusesAModelWhoseWeightsAreNotWhatTheoryWants) {
  const std::filesystem::path root =
      std::filesystem::path(::testing::TempDir()) / ("deepnet_audit_" + std::to_string(getpid()));
  std::filesystem::create_directories(root);
  ASSERT_TRUE(testing::MakeCorpus(root, "corpus", {"de", "fr"}, 300).ok());
  RunSpec run = SmallRun(DEEPNORM, 2, 2);
  run.mutable_model()->set_vocabulary_size(0);
  run.mutable_data()->set_folder("corpus");
  run.mutable_data()->set_max_sentence_tokens(60);
  run.set_folder("run");
  run.mutable_compute()->set_dtype(FLOAT32);
  run = WithDefaults(run);

  SelfCommunicator alone;
  const auto fs = MakePosixFileSystem();
  std::ostringstream text;
  Logger log({.stream = &text});
  auto start = ResolveRun(run, {.root = root.string()}, alone, *fs, log);
  ASSERT_TRUE(start.ok()) << start.status();
  EXPECT_TRUE(MakeTrainSession(*start, {}, alone, *fs, log).ok());
  for (Parameter& p : start->inventory.parameters) {
    if (p.name == "decoder.layers.1.fc1.weight") p.initial_std *= 1.5;
  }
  const absl::Status refused = MakeTrainSession(*start, {}, alone, *fs, log).status();
  EXPECT_EQ(GetExitCode(refused), ExitCode::kPreflight) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("decoder.layers.1.fc1.weight"));
  start->lock.reset();
  std::filesystem::remove_all(root);
}

}  // namespace
}  // namespace deepnet

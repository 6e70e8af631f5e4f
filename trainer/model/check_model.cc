#include "trainer/model/check_model.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "parallel/base/exit_code.h"
#include "trainer/kernels/native/attention.h"
#include "trainer/kernels/native/dropout.h"
#include "trainer/model/architecture.h"

namespace deepnet {
namespace {

// The most that a field may say.
constexpr std::pair<const char*, double> kLimits[] = {
    {"encoder_layers", 20'000},     {"decoder_layers", 20'000}, {"d_model", 1 << 18},
    {"ffn_dim", 1 << 20},           {"num_heads", 1 << 14},     {"max_positions", 1 << 20},
    {"vocabulary_size", 10'000'000}};

void CheckDeepNorm(const ModelSpec& model, Mistakes* mistakes) {
  if (model.deepnorm().ByteSizeLong() > 0 && model.residual() != RESIDUAL_UNSPECIFIED) {
    Fields(model, "model.", mistakes)
        .Require(model.residual() == DEEPNORM, "deepnorm", Residual_Name(model.residual()),
                 "only with model.residual: DEEPNORM");
  }
  const Fields deepnorm(model.deepnorm(), "model.deepnorm.", mistakes);
  for (const char* name : {"encoder_alpha", "encoder_beta", "decoder_alpha", "decoder_beta"}) {
    deepnorm.AtLeast(0, name, "must be above 0, or 0 for the formula");
  }
}

// Refuses settings of schemes other than model.residual: they would be a misunderstanding.
void CheckScheme(const ModelSpec& model, Mistakes* mistakes) {
  const SchemeSpec& scheme = model.scheme();
  const Fields fields(scheme, "model.scheme.", mistakes);
  const auto only_with = [&](bool set, const char* name, Residual residual) {
    fields.Require(!set || model.residual() == residual, name, Residual_Name(model.residual()),
                   absl::StrCat("only with model.residual: ", Residual_Name(residual)));
  };
  only_with(scheme.ds_exponent() != 0, "ds_exponent", DS_INIT);
  only_with(scheme.mix_ln_fraction() != 0, "mix_ln_fraction", MIX_LN);
  only_with(scheme.keel_alpha() != 0, "keel_alpha", KEEL);
  only_with(scheme.normformer_scaled_residual(), "normformer_scaled_residual", NORMFORMER);
  only_with(scheme.admin_omega_size() > 0, "admin_omega", ADMIN);
  only_with(scheme.residual_dual_scale() != 0, "residual_dual_scale", RESIDUAL_DUAL);
  only_with(scheme.branch_norm_steps() != 0, "branch_norm_steps", BRANCH_NORM);
  fields.AtLeast(0, "residual_dual_scale", "must be above 0, or 0 for 1");
  fields.AtLeast(0, "branch_norm_steps", "must be at least 1, or 0 for 4000");
  fields.AtLeast(0, "ds_exponent", "must be above 0, or 0 for 0.5");
  fields.Within(0, 1, "mix_ln_fraction", "must be from 0 to 1; 0 stands for 0.25");
  fields.AtLeast(0, "keel_alpha", "must be above 0, or 0 for the number of sub-layers");
  const int sublayers = NumSublayers(model), omegas = scheme.admin_omega_size();
  fields.Require(
      omegas == 0 || omegas == sublayers, "admin_omega", absl::StrCat(omegas),
      absl::StrCat("must have a number for each of the ", sublayers, " sub-layers, or none"));
  for (int i = 0; i < omegas; ++i) {
    fields.Require(scheme.admin_omega(i) > 0, absl::StrCat("admin_omega[", i, "]"),
                   absl::StrCat(scheme.admin_omega(i)), "must be above 0");
  }
}

// Requires layers where the architecture has a stack, and none where it has not.
void CheckStacks(const ModelSpec& model, Mistakes* mistakes) {
  const Fields fields(model, "model.", mistakes);
  const Fields deepnorm(model.deepnorm(), "model.deepnorm.", mistakes);
  const std::string only = absl::StrCat(
      "with model.architecture: ", Architecture_Name(model.architecture()), ": must be 0");
  const auto stack = [&](const std::string& name, Architecture without) {
    if (model.architecture() != without) {
      fields.AtLeast(1, name + "_layers");
      return;
    }
    fields.Is0(name + "_layers", only);
    deepnorm.Is0(name + "_alpha", only);
    deepnorm.Is0(name + "_beta", only);
  };
  stack("encoder", DECODER_ONLY);
  stack("decoder", ENCODER_ONLY);
}

}  // namespace

void CheckModel(const ModelSpec& model, bool from_corpus, Mistakes* mistakes) {
  const Fields fields(model, "model.", mistakes);
  bool bounded = true;
  for (const auto& [field, most] : kLimits) bounded &= fields.AtMost(most, field);
  CheckStacks(model, mistakes);
  const bool has_width = fields.AtLeast(1, "d_model");
  if (has_width && model.positions() == SINUSOIDAL) {
    fields.Require(model.d_model() % 2 == 0 && model.d_model() >= 4, "d_model",
                   "must be even and at least 4 with positions: SINUSOIDAL");
  } else if (has_width) {
    fields.AtLeast(4, "d_model");
  }
  fields.AtLeast(1, "ffn_dim");
  if (fields.AtLeast(1, "num_heads") && has_width) {
    fields.Require(model.d_model() % model.num_heads() == 0, "num_heads",
                   absl::StrCat("must divide model.d_model (", model.d_model(), ")"));
    constexpr int64_t kMaxHeads = native::kMaxDropoutFeatures / native::kMaxAttentionKeys;
    fields.Require(model.attention_dropout() <= 0 || model.num_heads() <= kMaxHeads, "num_heads",
                   absl::StrCat("must be at most ", kMaxHeads, " with model.attention_dropout"));
  }
  std::vector<std::string> names;
  for (int i = 1; i < Residual_descriptor()->value_count(); ++i) {
    names.push_back(Residual_descriptor()->value(i)->name());
  }
  fields.Require(model.residual() != RESIDUAL_UNSPECIFIED, "residual",
                 absl::StrCat("required: one of ", absl::StrJoin(names, ", ")));
  CheckDeepNorm(model, mistakes);
  if (bounded) CheckScheme(model, mistakes);
  fields.Require(model.vocabulary_size() > 4 || (from_corpus && model.vocabulary_size() == 0),
                 "vocabulary_size",
                 from_corpus ? "must be above 4 (the special ids), or 0: taken from the corpus"
                             : "required here, above 4 (the special ids)");
  fields.AtLeast(1, "max_positions");
  fields.Probability("dropout");
  fields.Probability("attention_dropout");
  fields.Probability("activation_dropout");
  fields.Above0("layer_norm_epsilon");
}

absl::Status CheckStoredModel(const RunSpec& run) {
  Mistakes mistakes;
  const bool fits = Fields(run.model(), "model.", &mistakes).CheckValues();
  if (Fields(run.data(), "data.", &mistakes).CheckValues() && fits) {
    CheckModel(run.model(), /*from_corpus=*/false, &mistakes);
  }
  if (mistakes.empty()) return absl::OkStatus();
  return CheckpointRefused("no model can be as this one says: ", absl::StrJoin(mistakes, "; "));
}

}  // namespace deepnet

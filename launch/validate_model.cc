#include "launch/validate_model.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "google/protobuf/descriptor.h"

#include "trainer/kernels/native/attention.h"
#include "trainer/kernels/native/dropout.h"
#include "trainer/model/sublayer_order.h"

namespace deepnet {
namespace {

void CheckDeepNorm(const ModelSpec& model, Mistakes* mistakes) {
  const DeepNormSpec& deepnorm = model.deepnorm();
  if (model.has_deepnorm() && model.residual() != RESIDUAL_UNSPECIFIED) {
    mistakes->Require(model.residual() == DEEPNORM, "model.deepnorm",
                      Residual_Name(model.residual()).c_str(),
                      "only with model.residual: DEEPNORM");
  }
  const auto positive = [&](const char* name, double value) {
    mistakes->Require(value >= 0, absl::StrCat("model.deepnorm.", name), value,
                      "must be above 0, or 0 for the formula");
  };
  positive("encoder_alpha", deepnorm.encoder_alpha());
  positive("encoder_beta", deepnorm.encoder_beta());
  positive("decoder_alpha", deepnorm.decoder_alpha());
  positive("decoder_beta", deepnorm.decoder_beta());
}

// A setting of another scheme would be a misunderstanding.
void CheckScheme(const ModelSpec& model, Mistakes* mistakes) {
  const SchemeSpec& scheme = model.scheme();
  const auto only_with = [&](bool set, const char* name, Residual residual) {
    mistakes->Require(!set || model.residual() == residual, absl::StrCat("model.scheme.", name),
                      Residual_Name(model.residual()).c_str(),
                      absl::StrCat("only with model.residual: ", Residual_Name(residual)));
  };
  only_with(scheme.ds_exponent() != 0, "ds_exponent", DS_INIT);
  only_with(scheme.mix_ln_fraction() != 0, "mix_ln_fraction", MIX_LN);
  only_with(scheme.keel_alpha() != 0, "keel_alpha", KEEL);
  only_with(scheme.normformer_scaled_residual(), "normformer_scaled_residual", NORMFORMER);
  only_with(scheme.admin_omega_size() > 0, "admin_omega", ADMIN);
  only_with(scheme.residual_dual_scale() != 0, "residual_dual_scale", RESIDUAL_DUAL);
  only_with(scheme.branch_norm_steps() != 0, "branch_norm_steps", BRANCH_NORM);
  mistakes->Require(scheme.residual_dual_scale() >= 0, "model.scheme.residual_dual_scale",
                    scheme.residual_dual_scale(), "must be above 0, or 0 for 1");
  mistakes->Require(scheme.branch_norm_steps() >= 0, "model.scheme.branch_norm_steps",
                    scheme.branch_norm_steps(), "must be at least 1, or 0 for 4000");
  mistakes->Require(scheme.ds_exponent() >= 0, "model.scheme.ds_exponent", scheme.ds_exponent(),
                    "must be above 0, or 0 for 0.5");
  mistakes->Require(scheme.mix_ln_fraction() >= 0 && scheme.mix_ln_fraction() <= 1,
                    "model.scheme.mix_ln_fraction", scheme.mix_ln_fraction(),
                    "must be from 0 to 1; 0 stands for 0.25");
  mistakes->Require(scheme.keel_alpha() >= 0, "model.scheme.keel_alpha", scheme.keel_alpha(),
                    "must be above 0, or 0 for the number of sub-layers");
  const int sublayers = NumSublayers(model);
  mistakes->Require(
      scheme.admin_omega_size() == 0 || scheme.admin_omega_size() == sublayers,
      "model.scheme.admin_omega", scheme.admin_omega_size(),
      absl::StrCat("must have a number for each of the ", sublayers, " sub-layers, or none"));
  for (int i = 0; i < scheme.admin_omega_size(); ++i) {
    mistakes->Require(scheme.admin_omega(i) > 0, absl::StrCat("model.scheme.admin_omega[", i, "]"),
                      scheme.admin_omega(i), "must be above 0");
  }
}

// "DEEPNORM, POST_LN, ...": all that `model.residual` can be.
std::string ResidualNames() {
  std::vector<std::string> names;
  for (int value = Residual_MIN; value <= Residual_MAX; ++value) {
    if (Residual_IsValid(value) && value != RESIDUAL_UNSPECIFIED) {
      names.push_back(Residual_Name(static_cast<Residual>(value)));
    }
  }
  return absl::StrJoin(names, ", ");
}

// Layers where the architecture has a stack, none where it has not.
void CheckStacks(const ModelSpec& model, Mistakes* mistakes) {
  const std::string only = absl::StrCat(
      "with model.architecture: ", Architecture_Name(model.architecture()), ": must be 0");
  const auto stack = [&](const char* name, bool present, int layers, double alpha, double beta) {
    mistakes->Require(present ? layers >= 1 : layers == 0, absl::StrCat("model.", name, "_layers"),
                      layers, present ? "must be at least 1" : only);
    if (present) return;
    mistakes->Require(alpha == 0, absl::StrCat("model.deepnorm.", name, "_alpha"), alpha, only);
    mistakes->Require(beta == 0, absl::StrCat("model.deepnorm.", name, "_beta"), beta, only);
  };
  const DeepNormSpec& deepnorm = model.deepnorm();
  stack("encoder", model.architecture() != DECODER_ONLY, model.encoder_layers(),
        deepnorm.encoder_alpha(), deepnorm.encoder_beta());
  stack("decoder", model.architecture() != ENCODER_ONLY, model.decoder_layers(),
        deepnorm.decoder_alpha(), deepnorm.decoder_beta());
}

}  // namespace

void CheckModel(const ModelSpec& model, Vocabulary vocabulary, Mistakes* mistakes) {
  const auto at_least_one = [&](const char* name, int64_t value) {
    return mistakes->Require(value >= 1, absl::StrCat("model.", name), value, "must be at least 1");
  };
  CheckStacks(model, mistakes);
  const bool has_width = at_least_one("width", model.width());
  if (has_width && model.positions() == SINUSOIDAL) {
    mistakes->Require(model.width() % 2 == 0 && model.width() >= 4, "model.width", model.width(),
                      "must be even and at least 4 with positions: SINUSOIDAL");
  } else if (has_width) {
    mistakes->Require(model.width() >= 4, "model.width", model.width(), "must be at least 4");
  }
  at_least_one("ffn_width", model.ffn_width());
  if (at_least_one("heads", model.heads()) && has_width) {
    mistakes->Require(model.width() % model.heads() == 0, "model.heads", model.heads(),
                      absl::StrCat("must divide model.width (", model.width(), ")"));
    constexpr int64_t kMostHeads = native::kMaxDropoutFeatures / native::kMaxAttentionKeys;
    mistakes->Require(
        model.attention_dropout() <= 0 || model.heads() <= kMostHeads, "model.heads", model.heads(),
        absl::StrCat("must be at most ", kMostHeads, " with model.attention_dropout"));
  }
  mistakes->Require(model.residual() != RESIDUAL_UNSPECIFIED, "model.residual",
                    Residual_Name(RESIDUAL_UNSPECIFIED).c_str(),
                    absl::StrCat("required: one of ", ResidualNames()));
  CheckDeepNorm(model, mistakes);
  CheckScheme(model, mistakes);
  const bool from_corpus = vocabulary == Vocabulary::kFromCorpus && model.vocabulary_size() == 0;
  mistakes->Require(from_corpus || model.vocabulary_size() > 4, "model.vocabulary_size",
                    model.vocabulary_size(),
                    vocabulary == Vocabulary::kFromCorpus
                        ? "must be above 4 (the special ids), or 0: taken from the corpus"
                        : "required here, above 4 (the special ids)");
  at_least_one("max_positions", model.max_positions());
  const auto probability = [&](const char* name, double value) {
    mistakes->Require(value >= 0 && value < 1, absl::StrCat("model.", name), value,
                      "must be at least 0 and below 1");
  };
  probability("dropout", model.dropout());
  probability("attention_dropout", model.attention_dropout());
  probability("activation_dropout", model.activation_dropout());
  mistakes->Require(model.layer_norm_epsilon() > 0, "model.layer_norm_epsilon",
                    model.layer_norm_epsilon(), "must be above 0");
}

}  // namespace deepnet

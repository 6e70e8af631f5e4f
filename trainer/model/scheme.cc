// One function answers each question for all schemes, so that a scheme is read across: its parts,
// its gains, its ends.
#include "trainer/model/scheme.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"

#include "parallel/base/check.h"
#include "parallel/base/exit_code.h"

namespace deepnet {
namespace {

double OrDefault(double chosen, double otherwise) { return chosen != 0.0 ? chosen : otherwise; }

// The constants by DEEPNORM's formulas alone.
DepthScaling ScalingByFormula(const ModelSpec& model) {
  const double n = model.encoder_layers(), m = model.decoder_layers();
  const DeepNormSpec& chosen = model.deepnorm();
  if (!IsEncoderDecoder(model)) {  // section 4.3; the constants of the missing stack are 1
    const double layers = LayersOf(model, LabelledStack(model));
    DEEPNET_CHECK(layers >= 1) << layers << " layers";
    const double alpha = chosen.adam() ? std::sqrt(2.0 * layers) : std::pow(2.0 * layers, 0.25);
    const double beta = chosen.adam() ? 1.0 / alpha : std::pow(8.0 * layers, -0.25);
    if (LabelledStack(model) == 0) return {.encoder_alpha = alpha, .encoder_beta = beta};
    return {.decoder_alpha = alpha, .decoder_beta = beta};
  }
  DEEPNET_CHECK(n >= 1 && m >= 1) << n << " encoder and " << m << " decoder layers";
  if (chosen.adam()) {
    return {std::sqrt(2.0 * n), 1.0 / std::sqrt(2.0 * n), std::sqrt(3.0 * m),
            1.0 / std::sqrt(3.0 * m)};
  }
  const double depth = std::pow(n * n * n * n * m, 1.0 / 16.0);
  const double beta_constant = chosen.beta_rule() == TORCHSCALE ? 1.15 : 0.87;
  return {0.81 * depth, beta_constant / depth, std::pow(3.0 * m, 0.25), std::pow(12.0 * m, -0.25)};
}

SublayerScheme PreNorm() { return {.input_norm = true}; }

SublayerScheme PostNorm(double alpha = 1.0) { return {.end_norm = true, .alpha = alpha}; }

// With a profile (`deepnet lab admin-profile`): a number for every sub-layer in chain order.
// Without one (admin-torch): what the branches before would have added on average.
double AdminOmega(const ModelSpec& model, const SublayerPlace& place) {
  const auto& profile = model.scheme().admin_omega();
  if (!profile.empty()) {
    const int index = SublayerIndex(model, place);
    DEEPNET_CHECK_LT(index, profile.size());
    return profile[index];
  }
  const double r = NumSublayers(model, place.stack);
  return std::sqrt((r + 1.0) / std::log(r + 1.0) - 1.0);
}

bool IsPostLayerOfMix(const ModelSpec& model, int stack, int layer) {
  const double share = OrDefault(model.scheme().mix_ln_fraction(), 0.25);
  return layer < std::floor(share * LayersOf(model, stack));
}

// The gain of values, outputs and feed-forward matrices.
double MagnetoGain(const ModelSpec& model, int stack) {
  if (!IsEncoderDecoder(model)) return std::sqrt(std::log(NumSublayers(model, stack)));
  const double decoder = std::log(3.0 * model.decoder_layers());
  if (stack == 1) return std::sqrt(decoder);
  return std::sqrt(decoder * std::log(2.0 * model.encoder_layers()) / 3.0);
}

double TFixupGain(const ModelSpec& model, int stack) {
  if (stack == 0) return 0.67 * std::pow(model.encoder_layers(), -0.25);
  return std::pow(9.0 * model.decoder_layers(), -0.25);
}

// fairseq draws q, k and v with gain 1 / sqrt 2.
bool IsInputProjection(Role role) {
  return role == Role::kQuery || role == Role::kKey || role == Role::kValue;
}

double FairseqGain(Role role) { return IsInputProjection(role) ? std::sqrt(0.5) : 1.0; }

// A branch of m matrices: all but the last L^(-1 / (2m - 2)), the last 0.
double RFixupGain(const ModelSpec& model, Role role, bool last) {
  if (last) return 0.0;
  const double l = NumSublayers(model);
  return IsInputProjection(role) ? FairseqGain(role) * std::pow(l, -1.0 / 6.0) : std::pow(l, -0.5);
}

ValueRange RangeOf(const std::vector<double>& values) {
  if (values.empty()) return {};
  const auto [least, greatest] = std::ranges::minmax(values);
  return {least, greatest};
}

}  // namespace

// The first pass has t = 0 and no branches at all: t counts the steps that made the weights, so
// that a checkpoint is the function that its next step trains.
double SublayerScheme::RampAt(int64_t step) const {
  if (ramp_steps == 0) return 1.0;
  return std::min(1.0, static_cast<double>(step) / static_cast<double>(ramp_steps));
}

int64_t SublayerScheme::KeptFloats(const ModelSpec& model, int64_t rows, int64_t inside) const {
  const int64_t streams = int{KeepsStream()} + int{KeepsBranch()};
  const int64_t inner = inner_norm ? NormStateFloats(model, rows, inside) : 0;
  return NumNorms() * NormStateFloats(model, rows, model.d_model()) + inner +
         streams * rows * model.d_model();
}

DepthScaling MakeDepthScaling(const ModelSpec& model) {
  if (model.residual() != DEEPNORM) return {};
  const DepthScaling formula = ScalingByFormula(model);
  const DeepNormSpec& chosen = model.deepnorm();
  const auto of = [&model](int stack, double set, double by_formula) {
    return LayersOf(model, stack) > 0 ? OrDefault(set, by_formula) : 1.0;
  };
  return {of(0, chosen.encoder_alpha(), formula.encoder_alpha),
          of(0, chosen.encoder_beta(), formula.encoder_beta),
          of(1, chosen.decoder_alpha(), formula.decoder_alpha),
          of(1, chosen.decoder_beta(), formula.decoder_beta)};
}

SublayerScheme MakeSublayerScheme(const ModelSpec& model, const SublayerPlace& place) {
  const auto [stack, layer, kind] = place;
  constexpr int64_t kBranchNormSteps = 4000;  // T of the paper's runs
  const DepthScaling scaling = MakeDepthScaling(model);
  const bool block = kind == SublayerKind::kFeedForward;
  switch (model.residual()) {
    case DEEPNORM:
      return PostNorm(stack == 0 ? scaling.encoder_alpha : scaling.decoder_alpha);
    case POST_LN:
    case POST_LN_INIT:
    case DS_INIT:
      return PostNorm();
    case PRE_LN:
    case DLCL:
      return PreNorm();
    case ADMIN:
      return {.end_norm = true, .stream_scale = AdminOmega(model, place)};
    case REZERO:
      return {.branch_scale = BranchScale::kOfLayer, .initial_branch_scale = 0.0};
    case R_FIXUP:
      return {.branch_scale = BranchScale::kOfSublayer, .shifts = true};
    case T_FIXUP:
    case RESIDUAL_ONLY:
      return {};
    case NORMFORMER:  // fairseq's form leaves cross-attention alone
      return {.input_norm = true,
              .inner_norm = block,
              .output_norm = kind == SublayerKind::kSelfAttention,
              .stream_scale = block && model.scheme().normformer_scaled_residual() ? 1.0 : 0.0,
              .head_scale = kind == SublayerKind::kSelfAttention};
    case SUB_LN:
      return {.input_norm = true, .inner_norm = kind != SublayerKind::kCrossAttention};
    case NORM_ONLY:
      return PostNorm(0.0);
    case NEITHER:
      return {.alpha = 0.0};
    case B2T:
      return {.end_norm = true, .layer_input = block};
    case RESIDUAL_DUAL:
      return {.end_norm = true, .second_stream = true};
    case BRANCH_NORM: {
      const int64_t steps = model.scheme().branch_norm_steps();
      return {.end_norm = true, .ramp_steps = steps != 0 ? steps : kBranchNormSteps};
    }
    case MIX_LN:
      return IsPostLayerOfMix(model, stack, layer) ? PostNorm() : PreNorm();
    case LAYERNORM_SCALING:
      return {.input_norm = true, .input_scale = 1.0 / std::sqrt(layer + 1.0)};
    case PERI_LN:
      return {.input_norm = true, .output_norm = true};
    case KEEL:
      return {.input_norm = true,
              .end_norm = true,
              .alpha = OrDefault(model.scheme().keel_alpha(), NumSublayers(model, stack))};
    default:
      DEEPNET_CHECK(false) << Residual_Name(model.residual()) << " passed validation";
      return {};
  }
}

StackEnd EndOf(const ModelSpec& model) {
  switch (model.residual()) {
    case PRE_LN:
    case DLCL:
    case NORMFORMER:
    case SUB_LN:
    case MIX_LN:
    case LAYERNORM_SCALING:
    case PERI_LN:
      return StackEnd::kNorm;
    case R_FIXUP:
      return StackEnd::kScaledShift;
    case RESIDUAL_DUAL:
      return StackEnd::kSecondNorm;
    default:
      return StackEnd::kNothing;
  }
}

bool ReadsLayerInput(const ModelSpec& model) { return model.residual() == B2T; }

bool KeepsHistory(const ModelSpec& model) { return model.residual() == DLCL; }

bool HasSecondStream(const ModelSpec& model) { return model.residual() == RESIDUAL_DUAL; }

bool InOnePiece(const ModelSpec& model) { return KeepsHistory(model) || HasSecondStream(model); }

bool HasEmbeddingNorm(const ModelSpec& model) { return model.residual() == PERI_LN; }

bool HasBiases(const ModelSpec& model) { return model.residual() != R_FIXUP; }

bool HasNormBiases(const ModelSpec& model) { return model.norm() != RMS_NORM; }

double SecondNormEpsilon(const ModelSpec& model) {
  const double scale = OrDefault(model.scheme().residual_dual_scale(), 1.0);
  return 1e-7 / (scale * scale);
}

int64_t NormStateFloats(const ModelSpec& model, int64_t rows, int64_t features) {
  return rows * features + (model.norm() == BATCH_NORM ? features : rows);
}

int64_t StackEndFloats(const ModelSpec& model, int64_t rows) {
  const StackEnd end = EndOf(model);
  if (end == StackEnd::kNothing) return 0;
  if (end == StackEnd::kScaledShift) return rows * model.d_model();
  return NormStateFloats(model, rows, model.d_model());
}

absl::Status CheckRowsAreIndependent(const ModelSpec& model) {
  if (model.norm() != BATCH_NORM) return absl::OkStatus();
  return CheckpointRefused(
      "model.norm: BATCH_NORM: what such a model says of a sentence depends on the others in "
      "its microbatch, so it has a training and a validation loss, but no translations, no "
      "scores and no export");
}

double InitialGain(const ModelSpec& model, const SublayerPlace& place, Role role, bool last) {
  const auto [stack, layer, kind] = place;
  const bool scaled = role != Role::kQuery && role != Role::kKey;
  switch (model.residual()) {
    case DEEPNORM: {
      const DepthScaling scaling = MakeDepthScaling(model);
      return scaled ? (stack == 0 ? scaling.encoder_beta : scaling.decoder_beta) : 1.0;
    }
    case POST_LN_INIT:
      return 1.0 / (LayersOf(model, stack) - layer);
    case DS_INIT:
      return std::pow(layer + 1.0, -OrDefault(model.scheme().ds_exponent(), 0.5));
    case ADMIN:
      return FairseqGain(role);
    case R_FIXUP:
      return RFixupGain(model, role, last);
    case T_FIXUP:
      return scaled ? TFixupGain(model, stack) : FairseqGain(role);
    case SUB_LN:
      return scaled && kind != SublayerKind::kCrossAttention ? MagnetoGain(model, stack) : 1.0;
    case B2T:
      return 1.0 / std::sqrt(LayersOf(model, stack));
    default:
      return 1.0;
  }
}

double EmbeddingGain(const ModelSpec& model, int stack) {
  if (model.residual() != T_FIXUP) return 1.0;
  return std::pow(9.0 * LayersOf(model, stack), -0.25);
}

bool OutputStartsAtZero(const ModelSpec& model) { return model.residual() == R_FIXUP; }

std::string StackName(int stack) { return stack == 0 ? "encoder." : "decoder."; }

std::string LayerPrefix(int stack, int layer) {
  return absl::StrCat(StackName(stack), "layers.", layer, ".");
}

std::string EmbeddingName(const ModelSpec& model, LayerKind use) {
  const TiedEmbeddings tied = model.tied_embeddings();
  if (tied == TIE_ALL && IsEncoderDecoder(model)) return "shared.weight";
  if (use == LayerKind::kOutput && tied == TIE_NONE) return "lm_head.weight";
  return StackName(StackOfKind(model, use)) + "embed_tokens.weight";
}

std::string BlockName(const SublayerPlace& place) {
  constexpr const char* kBlocks[] = {"self_attn", "encoder_attn", "final"};  // [SublayerKind]
  return LayerPrefix(place.stack, place.layer) + kBlocks[static_cast<int>(place.kind)];
}

std::string EndNormName(const SublayerPlace& place, const SublayerScheme& scheme) {
  return BlockName(place) + (scheme.input_norm ? "_end_layer_norm" : kNorm);
}

std::string BranchScaleName(const SublayerPlace& place, const SublayerScheme& scheme) {
  return scheme.branch_scale == BranchScale::kOfLayer
             ? LayerPrefix(place.stack, place.layer) + "branch_scale"
             : BlockName(place) + "_branch_scale";
}

StackScaling MakeStackScaling(const ModelSpec& model, int stack) {
  std::vector<double> alpha, beta, query_key;
  const int before = stack == 0 ? 0 : NumSublayers(model, 0);
  for (int i = before; i < before + NumSublayers(model, stack); ++i) {
    const SublayerPlace at = SublayerAt(model, i);
    const SublayerScheme scheme = MakeSublayerScheme(model, at);
    alpha.push_back(scheme.alpha * (scheme.stream_scale != 0 ? scheme.stream_scale : 1.0));
    const auto gain = [&](Role role, bool last) { return InitialGain(model, at, role, last); };
    if (at.kind == SublayerKind::kFeedForward) {
      for (const bool last : {false, true}) beta.push_back(gain(Role::kFeedForward, last));
      continue;
    }
    for (const Role role : {Role::kQuery, Role::kKey}) query_key.push_back(gain(role, false));
    beta.push_back(gain(Role::kValue, false));
    beta.push_back(gain(Role::kAttentionOutput, true));
  }
  return {RangeOf(alpha), RangeOf(beta), RangeOf(query_key)};
}

}  // namespace deepnet

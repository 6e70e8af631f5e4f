#include "trainer/probe/audit_formulas.h"

#include <cmath>

namespace deepnet {
namespace {

PaperScaling ByFormula(const ModelSpec& model, int stack) {
  const double n = model.encoder_layers(), m = model.decoder_layers();
  const bool alone = model.architecture() != ENCODER_DECODER;
  if (model.deepnorm().adam()) {
    const double sublayers = alone ? 2 * (n + m) : stack == 0 ? 2 * n : 3 * m;
    return {std::sqrt(sublayers), 1 / std::sqrt(sublayers)};
  }
  if (alone) return {std::pow(2 * (n + m), 0.25), std::pow(8 * (n + m), -0.25)};
  if (stack == 1) return {std::pow(3 * m, 0.25), std::pow(12 * m, -0.25)};
  const double depth = std::pow(n, 0.25) * std::pow(m, 0.0625);  // (N^4 M)^(1/16)
  return {0.81 * depth, (model.deepnorm().beta_rule() == TORCHSCALE ? 1.15 : 0.87) / depth};
}

}  // namespace

PaperScaling PaperScalingOf(const ModelSpec& model, int stack) {
  PaperScaling scaling = ByFormula(model, stack);
  const DeepNormSpec& chosen = model.deepnorm();
  const double alpha = stack == 0 ? chosen.encoder_alpha() : chosen.decoder_alpha();
  const double beta = stack == 0 ? chosen.encoder_beta() : chosen.decoder_beta();
  if (alpha != 0) scaling.alpha = alpha;
  if (beta != 0) scaling.beta = beta;
  return scaling;
}

}  // namespace deepnet

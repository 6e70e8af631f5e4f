#include "trainer/model/depth_scaling.h"

#include <cmath>

#include "parallel/base/check.h"
#include "trainer/model/architecture.h"

namespace deepnet {
namespace {

double OrFormula(double chosen, double formula) { return chosen != 0.0 ? chosen : formula; }

// DeepNet, section 4.3: one stack alone. The constants of the missing stack are 1.
DepthScaling OfOneStack(const ModelSpec& model) {
  const int stack = LabelledStack(model);
  const double layers = LayersOf(model, stack);
  DEEPNET_CHECK(layers >= 1) << layers << " layers";
  const DeepNormSpec& chosen = model.deepnorm();
  const double alpha = chosen.adam() ? std::sqrt(2.0 * layers) : std::pow(2.0 * layers, 0.25);
  const double beta = chosen.adam() ? 1.0 / std::sqrt(2.0 * layers) : std::pow(8.0 * layers, -0.25);
  if (stack == 0) {
    return {.encoder_alpha = OrFormula(chosen.encoder_alpha(), alpha),
            .encoder_beta = OrFormula(chosen.encoder_beta(), beta)};
  }
  return {.decoder_alpha = OrFormula(chosen.decoder_alpha(), alpha),
          .decoder_beta = OrFormula(chosen.decoder_beta(), beta)};
}

}  // namespace

DepthScaling MakeDepthScaling(const ModelSpec& model) {
  if (model.residual() != DEEPNORM) return {};
  if (!IsEncoderDecoder(model)) return OfOneStack(model);
  const double n = model.encoder_layers();
  const double m = model.decoder_layers();
  DEEPNET_CHECK(n >= 1 && m >= 1) << n << " encoder and " << m << " decoder layers";
  const double depth = std::pow(n * n * n * n * m, 1.0 / 16.0);
  const DeepNormSpec& chosen = model.deepnorm();
  if (chosen.adam()) {
    return {.encoder_alpha = OrFormula(chosen.encoder_alpha(), std::sqrt(2.0 * n)),
            .encoder_beta = OrFormula(chosen.encoder_beta(), 1.0 / std::sqrt(2.0 * n)),
            .decoder_alpha = OrFormula(chosen.decoder_alpha(), std::sqrt(3.0 * m)),
            .decoder_beta = OrFormula(chosen.decoder_beta(), 1.0 / std::sqrt(3.0 * m))};
  }
  const double beta_constant = chosen.beta_rule() == TORCHSCALE ? 1.15 : 0.87;
  return {
      .encoder_alpha = OrFormula(chosen.encoder_alpha(), 0.81 * depth),
      .encoder_beta = OrFormula(chosen.encoder_beta(), beta_constant / depth),
      .decoder_alpha = OrFormula(chosen.decoder_alpha(), std::pow(3.0 * m, 0.25)),
      .decoder_beta = OrFormula(chosen.decoder_beta(), std::pow(12.0 * m, -0.25)),
  };
}

}  // namespace deepnet

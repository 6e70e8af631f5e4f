#include "tests/support/model_pass.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "tests/support/tied_gradient.h"
#include "tests/support/tiny_model.h"
#include "tests/support/whole_pass.h"
#include "trainer/kernels/aten.h"
#include "trainer/model/transformer.h"

namespace deepnet::testing {

std::vector<ModelSpec> OpsVariants() {
  std::vector<ModelSpec> specs;
  for (const Residual residual : AllResiduals()) {
    for (int other = 0; other < 3; ++other) {
      if (residual > PRE_LN && other != residual % 3) continue;
      ModelSpec spec = WithResidual(TinySpec(), residual);
      spec.set_norm(residual % 2 == 1 && other == 0 ? RMS_NORM : LAYER_NORM);
      spec.set_activation(other == 1 ? GELU : RELU);
      spec.set_tied_embeddings(static_cast<TiedEmbeddings>(other));
      spec.set_positions(other == 2 ? LEARNED : SINUSOIDAL);
      if (other > 0) spec.set_dropout(0.2);
      if (other > 0) spec.set_attention_dropout(0.15);
      if (other > 1) spec.set_activation_dropout(0.1);
      specs.push_back(spec);
      if (residual > PRE_LN && residual != PERI_LN && residual != SUB_LN) continue;
      spec.set_norm(BATCH_NORM);
      specs.push_back(spec);
    }
  }
  return specs;
}

ModelPass ForwardBackward(const ModelSpec& spec, Ops& ops, uint64_t seed) {
  Transformer model(spec, TinyCapacity(), ops, /*trainable=*/true);
  model.parameters().Initialize(seed);
  const at::Tensor& weights = model.parameters().weights();
  const at::Tensor host = weights.to(at::Device(at::kCPU), weights.scalar_type(), false, true);
  host.add_(at::sin(at::arange(host.numel(), at::kDouble) * 1.7).to(host.scalar_type()), 0.1);
  host.mul_(WeightScale(spec));
  weights.copy_(host);
  model.Refresh();
  const Microbatch mb = TinyMicrobatch(spec, 3);
  const auto kept = model.MakeActivations(/*shared=*/false);
  ModelPass pass;
  pass.loss = testing::Forward(model, mb, 1, 2, /*training=*/true, {.label_smoothing = 0.1}, *kept);
  testing::Backward(model, mb, 1, 2, *kept);
  FoldTied(model.parameters(), ops);
  pass.gradient = FlatGradient(model.parameters()).to(at::Device(at::kCPU)).to(at::kDouble);
  pass.inventory = model.parameters().inventory();
  return pass;
}

void ExpectClose(const ModelPass& got, const ModelPass& expected, double tolerance) {
  EXPECT_NEAR(got.loss.loss, expected.loss.loss, tolerance * expected.loss.loss);
  EXPECT_NEAR(got.loss.nll, expected.loss.nll, tolerance * expected.loss.nll);
  for (const Parameter& p : expected.inventory.parameters) {
    const at::Tensor a = got.gradient.narrow(0, p.offset, p.NumElements());
    const at::Tensor b = expected.gradient.narrow(0, p.offset, p.NumElements());
    // Gradients of key biases are 0 by theory (softmax does not see a shift): hence the floor.
    const double scale = std::max(b.abs().max().item<double>(), 0.1);
    EXPECT_LE((a - b).abs().max().item<double>(), tolerance * scale) << p.name;
  }
}

double GradientError(const ModelPass& got, const ModelPass& exact) {
  return ((got.gradient - exact.gradient).norm() / exact.gradient.norm()).item<double>();
}

}  // namespace deepnet::testing

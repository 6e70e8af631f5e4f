// The hand-written backward passes against LibTorch's autograd on a plain model, and against finite
// differences with every dropout on. Everything in float64 through the reference Ops.
#include "trainer/model/transformer.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/plain_transformer.h"
#include "tests/support/tied_gradient.h"
#include "tests/support/tiny_model.h"
#include "tests/support/whole_pass.h"
#include "trainer/kernels/aten.h"
#include "trainer/kernels/compute.h"

namespace deepnet {
namespace {

using testing::PlainLoss;
using testing::TinyCapacityOf;
using testing::TinyMicrobatch;
using testing::TinySpec;

constexpr double kSmoothing = 0.1;
constexpr int64_t kStep = 2;  // of BRANCH_NORM's 5
constexpr size_t kMovedTensors = 6;

std::unique_ptr<Ops> MakeReference() { return MakeAtenOps(at::kDouble, at::kDouble); }

// Random weights with gains and biases away from 1 and 0, so that nothing cancels.
void Perturb(Parameters& parameters) {
  parameters.Initialize(5);
  const at::Tensor& w = parameters.weights();
  w.add_(at::sin(at::arange(w.numel(), w.options()) * 1.7) * 0.1);
}

// `other` 0 to 3: another activation, norm, tying and positions.
ModelSpec Variant(Residual residual, int other) {
  ModelSpec spec = testing::WithResidual(TinySpec(), residual);
  spec.set_norm(other == 1 ? RMS_NORM : other == 3 ? BATCH_NORM : LAYER_NORM);
  spec.set_activation(other == 1 ? GELU : RELU);
  spec.set_tied_embeddings(static_cast<TiedEmbeddings>(other % 3));
  spec.set_positions(other == 2 ? LEARNED : SINUSOIDAL);
  spec.set_unscaled_embedding(other == 1);
  if (residual == NORMFORMER && other > 0) {
    spec.mutable_scheme()->set_normformer_scaled_residual(true);
  }
  return spec;
}

// All variants of a spec that select other code.
std::vector<ModelSpec> Variants() {
  std::vector<ModelSpec> specs;
  for (const Residual residual : testing::AllResiduals()) {
    for (int other = 0; other < 4; ++other) specs.push_back(Variant(residual, other));
  }
  return specs;
}

// Each scheme in each of the architectures of one stack.
std::vector<ModelSpec> OneStackVariants() {
  std::vector<ModelSpec> specs;
  for (const Residual residual : testing::AllResiduals()) {
    for (const Architecture architecture : {DECODER_ONLY, ENCODER_ONLY}) {
      specs.push_back(testing::WithArchitecture(
          Variant(residual, (residual + int{architecture}) % 4), architecture));
    }
  }
  return specs;
}

// Each scheme once.
std::vector<ModelSpec> FewVariants() {
  std::vector<ModelSpec> specs;
  for (const Residual residual : testing::AllResiduals()) {
    specs.push_back(Variant(residual, residual % 3));
  }
  specs.push_back(Variant(PERI_LN, 3));  // BatchNorm wherever a norm can stand
  specs.push_back(Variant(SUB_LN, 3));
  return specs;
}

TEST(Transformer, BackwardEqualsAutogradOfThePlainModel) {
  std::vector<ModelSpec> specs = Variants();
  for (const ModelSpec& spec : OneStackVariants()) specs.push_back(spec);
  for (const ModelSpec& spec : specs) {
    SCOPED_TRACE(spec.ShortDebugString());
    const auto ops = MakeReference();
    Transformer model(spec, TinyCapacityOf(spec), *ops, /*trainable=*/true);
    Perturb(model.parameters());
    model.Refresh();
    const Microbatch mb = TinyMicrobatch(spec, 3);
    const auto kept = model.MakeActivations(/*shared=*/false);
    const LossSums loss = testing::Forward(model, mb, 1, kStep, /*training=*/true,
                                           {.label_smoothing = kSmoothing}, *kept);
    testing::Backward(model, mb, 1, kStep, *kept);

    std::vector<at::Tensor> leaves;
    for (const Parameter& p : model.parameters().inventory().parameters) {
      leaves.push_back(model.parameters()
                           .Get(p.name)
                           .to(at::kCPU, at::kDouble, false, true)
                           .set_requires_grad(true));
    }
    const auto& all = model.parameters().inventory().parameters;
    const at::Tensor plain = PlainLoss(
        spec, mb, kSmoothing,
        [&](const std::string& name) {
          for (size_t i = 0; i < all.size(); ++i) {
            if (all[i].name == name) return leaves[i];
          }
          ADD_FAILURE() << "unknown parameter " << name;
          return at::Tensor();
        },
        kStep);
    plain.backward();
    EXPECT_NEAR(loss.loss, plain.item<double>(), 1e-10 * std::abs(loss.loss));

    testing::FoldTied(model.parameters(), *ops);
    for (size_t i = 0; i < all.size(); ++i) {
      const at::Tensor expected = leaves[i].grad();
      ASSERT_TRUE(expected.defined()) << all[i].name;
      const at::Tensor got = model.parameters().Gradient(all[i].name).to(at::kCPU);
      const double scale = std::max(expected.abs().max().item<double>(), 1e-3);
      EXPECT_LE((got - expected).abs().max().item<double>(), 1e-10 * scale) << all[i].name;
    }
  }
}

TEST(Transformer, BackwardEqualsFiniteDifferencesWithEveryDropoutOn) {
  std::vector<ModelSpec> specs = FewVariants();
  for (ModelSpec& spec : specs) {
    spec.set_encoder_layers(1);
    spec.set_decoder_layers(2);
  }
  for (const Architecture architecture : {DECODER_ONLY, ENCODER_ONLY}) {
    specs.push_back(testing::WithArchitecture(Variant(DEEPNORM, architecture), architecture));
    specs.push_back(testing::WithArchitecture(Variant(PRE_LN, 0), architecture));
  }
  for (ModelSpec& spec : specs) {
    spec.set_dropout(0.2);
    spec.set_attention_dropout(0.15);
    spec.set_activation_dropout(0.1);
    SCOPED_TRACE(spec.ShortDebugString());
    const auto ops = MakeReference();
    Transformer model(spec, TinyCapacityOf(spec), *ops, /*trainable=*/true);
    Perturb(model.parameters());
    model.Refresh();
    const Microbatch mb = TinyMicrobatch(spec, 4);
    const auto kept = model.MakeActivations(/*shared=*/false);
    const auto loss = [&] {
      model.Refresh();
      return testing::Forward(model, mb, 9, 77, /*training=*/true, {.label_smoothing = kSmoothing},
                              *kept)
          .loss;
    };
    loss();
    testing::Backward(model, mb, 9, 77, *kept);
    testing::FoldTied(model.parameters(), *ops);
    const at::Tensor gradient = testing::FlatGradient(model.parameters());

    // All elements of a few tensors at a time move by h, up or down.
    const std::vector<Parameter>& all = model.parameters().inventory().parameters;
    const at::Tensor weights = model.parameters().weights(), centre = weights.clone();
    for (size_t first = 0; first < all.size(); first += kMovedTensors) {
      const at::Tensor direction = at::zeros_like(weights);
      const size_t end = std::min(first + kMovedTensors, all.size());
      for (size_t i = first; i < end; ++i) {
        const at::Tensor signs = direction.narrow(0, all[i].offset, all[i].NumElements());
        signs.copy_(at::sin(at::arange(1, signs.numel() + 1, signs.options()).square()).sign());
      }
      const double h = 1e-7, expected = gradient.dot(direction).item<double>();
      weights.copy_(centre + h * direction);
      const double above = loss();
      weights.copy_(centre - h * direction);
      const double below = loss();
      EXPECT_NEAR(expected, (above - below) / (2 * h), 1e-6 * std::max(1.0, std::abs(expected)))
          << all[first].name << " to " << all[end - 1].name;
    }
  }
}

TEST(Transformer, LossDoesNotDependOnHowPairsAreCutIntoMicrobatches) {
  ModelSpec spec = TinySpec();
  spec.set_dropout(0.3);
  const auto ops = MakeReference();
  Transformer model(spec, TinyCapacityOf(spec), *ops, /*trainable=*/true);
  Perturb(model.parameters());
  model.Refresh();
  const Microbatch whole = TinyMicrobatch(spec, 8);
  const auto kept = model.MakeActivations(/*shared=*/false);
  const double together = testing::Forward(model, whole, 1, 5, true, {}, *kept).loss;

  double apart = 0.0;
  for (int s = 0; s < whole.num_sentences; ++s) {
    Microbatch one = whole;
    const int source = whole.source.offsets[s], target = whole.target.offsets[s];
    const auto rotate = [](auto& v, int first) {
      std::rotate(v.begin(), v.begin() + first, v.end());
    };
    rotate(one.source.tokens, source);
    rotate(one.source.positions, source);
    rotate(one.source_pairs, source);
    rotate(one.target.tokens, target);
    rotate(one.target.positions, target);
    rotate(one.target_pairs, target);
    rotate(one.labels, target);
    one.num_sentences = 1;
    one.source.offsets = {0, whole.source.offsets[s + 1] - source};
    one.target.offsets = {0, whole.target.offsets[s + 1] - target};
    apart += testing::Forward(model, one, 1, 5, true, {}, *kept).loss;
  }
  EXPECT_NEAR(together, apart, 1e-12 * together);
}

}  // namespace
}  // namespace deepnet

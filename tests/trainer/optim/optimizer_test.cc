// The update against its formulas in plain double precision, through both implementations of Ops.
#include "trainer/optim/optimizer.h"

#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/one_rank.h"
#include "trainer/kernels/aten.h"
#include "trainer/kernels/compute.h"
#include "trainer/model/architecture.h"

namespace deepnet {
namespace {

constexpr int64_t kMatrix = 6 * 5, kBias = 6, kAll = kMatrix + kBias;

Inventory MatrixAndBias() {
  Inventory inventory;
  inventory.parameters = {
      {.name = "fc1.weight", .shape = {6, 5}, .role = Role::kFeedForward, .offset = 0},
      {.name = "fc1.bias", .shape = {6}, .role = Role::kFeedForward, .offset = kMatrix}};
  inventory.layers = {{.name = "layer", .kind = LayerKind::kEncoder, .parameters = {0, 1}}};
  return inventory;
}

OptimSpec Spec(Optimizer optimizer) {
  OptimSpec optim;
  optim.set_optimizer(optimizer);
  optim.set_schedule(CONSTANT);
  optim.set_learning_rate(0.01);
  optim.set_warmup_steps(0);
  optim.set_beta1(0.9);
  optim.set_beta2(0.98);
  optim.set_epsilon(0.01);  // great, so that where it stands shows
  return optim;
}

UpdateResult Apply(const OptimizerStep& step, Ops& ops, Parameters& parameters, int64_t update,
                   double loss) {
  const absl::StatusOr<double> norm = step.Norm(ops, parameters);
  EXPECT_TRUE(norm.ok()) << norm.status();
  const absl::StatusOr<UpdateResult> result =
      step.Apply(ops, parameters, {update, norm.value_or(0.0), loss});
  EXPECT_TRUE(result.ok()) << result.status();
  return result.value_or(UpdateResult());
}

// Both implementations and how far float rounding may take five updates of each from the formula.
struct OpsCase {
  std::unique_ptr<Ops> ops;
  double tolerance;
};

std::vector<OpsCase> AllOps() {
  std::vector<OpsCase> cases;
  cases.push_back({MakeAtenOps(at::kDouble, at::kDouble), 1e-13});
  cases.push_back({MakeAtenOps(at::kFloat, at::kFloat), 1e-6});
  ComputeSpec compute;
  compute.set_dtype(FLOAT32);
  compute.set_threads_per_rank(2);
  cases.push_back({MakeNativeOps(compute), 1e-6});
  return cases;
}

double GradientAt(int64_t update, int64_t i) {
  return std::sin(1.3 * static_cast<double>(i) + 0.7 * static_cast<double>(update));
}

void FillGradient(Parameters& parameters, int64_t update) {
  for (int64_t i = 0; i < kAll; ++i) parameters.gradient()[i].fill_(GradientAt(update, i));
}

double At(const at::Tensor& x, int64_t i) { return x[i].item<double>(); }

// The plain loop: one element through five updates, gradients multiplied by `scale`.
double PlainUpdates(const OptimSpec& optim, int64_t i, double w, double scale) {
  const double b1 = optim.beta1(), b2 = optim.beta2(), lr = optim.learning_rate();
  const double decay = i < kMatrix ? optim.weight_decay() : 0.0;
  double m = 0.0, v = 0.0;
  for (int t = 1; t <= 5; ++t) {
    const double g = scale * GradientAt(t, i);
    m = b1 * m + (1 - b1) * g;
    v = b2 * v + (1 - b2) * g * g;
    const double c1 = 1 - std::pow(b1, t), c2 = 1 - std::pow(b2, t);
    w -= lr * decay * w;
    if (optim.optimizer() == ADAM) {  // fairseq: the corrections are part of the step size
      w -= lr * std::sqrt(c2) / c1 * m / (std::sqrt(v) + optim.epsilon());
    } else {  // torch.optim.AdamW
      w -= lr / c1 * m / (std::sqrt(v) / std::sqrt(c2) + optim.epsilon());
    }
  }
  return w;
}

void ExpectFiveUpdatesFollow(const OptimSpec& optim, double scale) {
  for (const OpsCase& c : AllOps()) {
    Parameters parameters(MatrixAndBias(), *c.ops, /*trainable=*/true);
    for (int64_t i = 0; i < kAll; ++i) parameters.weights()[i].fill_(0.1 * double(i % 7) - 0.3);
    const OptimizerStep step = testing::OneRankOptimizer(optim, parameters.inventory());
    for (int t = 1; t <= 5; ++t) {
      FillGradient(parameters, t);
      const UpdateResult result = Apply(step, *c.ops, parameters, t, /*loss=*/1.0);
      EXPECT_FALSE(result.skipped);
      EXPECT_EQ(result.rate, optim.learning_rate());
    }
    for (int64_t i = 0; i < kAll; ++i) {
      EXPECT_NEAR(At(parameters.weights(), i),
                  PlainUpdates(optim, i, 0.1 * double(i % 7) - 0.3, scale), c.tolerance)
          << i;
    }
  }
}

TEST(OptimizerStep, AdamFollowsFairseqsFormula) { ExpectFiveUpdatesFollow(Spec(ADAM), 1.0); }

TEST(OptimizerStep, AdamwFollowsTorchsFormula) { ExpectFiveUpdatesFollow(Spec(ADAMW), 1.0); }

TEST(OptimizerStep, DecayTakesFromMatricesOnlyAndDoesNotPassThroughTheMoments) {
  for (const Optimizer optimizer : {ADAM, ADAMW}) {
    OptimSpec optim = Spec(optimizer);
    optim.set_weight_decay(0.5);
    ExpectFiveUpdatesFollow(optim, 1.0);
  }
}

// Averages are taken in pieces of 2^20 elements.
TEST(OptimizerStep, TheAverageOfALargeMatrixIsThatOfEachElement) {
  Inventory inventory = MatrixAndBias();
  inventory.parameters[0].shape = {2100, 1000};
  inventory.parameters[1].offset = 2'100'000;
  OptimSpec optim = Spec(ADAM);
  optim.set_ema_decay(0.75);
  const auto ops = MakeAtenOps(at::kFloat, at::kFloat);
  Parameters parameters(inventory, *ops, /*trainable=*/true);
  parameters.KeepAverage();
  const at::Tensor& weights = parameters.weights();
  weights.copy_(at::arange(weights.numel()) / 1024);
  const OptimizerStep step = testing::OneRankOptimizer(optim, inventory);
  step.BeginAverage(parameters);
  const at::Tensor before = weights.clone();
  parameters.gradient().copy_(at::sin(at::arange(weights.numel())));
  Apply(step, *ops, parameters, 1, /*loss=*/1.0);
  EXPECT_FALSE(at::equal(weights, before));
  EXPECT_TRUE(at::allclose(parameters.average(), 0.75 * before + 0.25 * weights, 1e-6));
}

TEST(OptimizerStep, ClippingScalesTheWholeGradientAndReportsTheNormBefore) {
  OptimSpec optim = Spec(ADAM);
  for (const OpsCase& c : AllOps()) {
    Parameters parameters(MatrixAndBias(), *c.ops, /*trainable=*/true);
    parameters.gradient().fill_(2.0);
    const double norm = 2.0 * std::sqrt(double(kAll));
    optim.set_clip_norm(norm / 4);
    const OptimizerStep step = testing::OneRankOptimizer(optim, parameters.inventory());
    EXPECT_NEAR(Apply(step, *c.ops, parameters, 1, 1.0).gradient_norm, norm, 1e-6);
    EXPECT_NEAR(At(parameters.moment1(), kAll - 1), 0.1 * 2.0 / 4, 1e-7);
    EXPECT_NEAR(At(parameters.moment2(), 0), 0.02 * 0.25, 1e-7);

    parameters.gradient().fill_(0.01);  // below the limit: as it is
    Apply(step, *c.ops, parameters, 2, 1.0);
    EXPECT_NEAR(At(parameters.moment1(), 0), 0.9 * 0.05 + 0.1 * 0.01, 1e-7);

    // The same gradients of a scaled loss.
    Parameters scaled(MatrixAndBias(), *c.ops, /*trainable=*/true);
    scaled.gradient().fill_(64 * 2.0);
    EXPECT_TRUE(step.Apply(*c.ops, scaled, {1, norm, 1.0, 1.0 / 64}).ok());
    EXPECT_NEAR(At(scaled.moment1(), 0), 0.1 * 2.0 / 4, 1e-7);
    scaled.gradient().fill_(64 * 0.01);
    EXPECT_TRUE(step.Apply(*c.ops, scaled, {2, norm / 200, 1.0, 1.0 / 64}).ok());
    EXPECT_NEAR(At(scaled.moment1(), 0), 0.9 * 0.05 + 0.1 * 0.01, 1e-7);
  }
}

TEST(OptimizerStep, ANonFiniteLossOrGradientChangesNoBit) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const OpsCase& c : AllOps()) {
    Parameters parameters(MatrixAndBias(), *c.ops, /*trainable=*/true);
    parameters.weights().fill_(0.25);
    OptimSpec optim = Spec(ADAMW);
    optim.set_weight_decay(0.1);
    optim.set_clip_norm(1.0);
    const OptimizerStep step = testing::OneRankOptimizer(optim, parameters.inventory());
    FillGradient(parameters, 1);
    Apply(step, *c.ops, parameters, 1, 1.0);
    const at::Tensor w = parameters.weights().clone(), m = parameters.moment1().clone(),
                     v = parameters.moment2().clone();
    const auto expect_untouched = [&](double loss) {
      EXPECT_TRUE(Apply(step, *c.ops, parameters, 2, loss).skipped);
      EXPECT_TRUE(at::equal(parameters.weights(), w));
      EXPECT_TRUE(at::equal(parameters.moment1(), m));
      EXPECT_TRUE(at::equal(parameters.moment2(), v));
    };
    FillGradient(parameters, 2);
    expect_untouched(kNan);
    expect_untouched(kInfinity);
    for (const double bad : {kNan, kInfinity, -kInfinity}) {
      FillGradient(parameters, 2);
      parameters.gradient()[kAll - 1].fill_(bad);  // one element is enough
      expect_untouched(1.0);
    }
    FillGradient(parameters, 2);
    EXPECT_FALSE(Apply(step, *c.ops, parameters, 2, 1.0).skipped);
  }
}

}  // namespace
}  // namespace deepnet

// Ten updates are those of fairseq: its label smoothing, clipping, inverse square root with warm-up
// and Adam, beside a model in plain LibTorch that starts from the same weights. With a tied output
// matrix the row of <pad>, which nothing looks up, learns through the output.
#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <tuple>

#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include "parallel/comm/communicator.h"
#include "parallel/plan/schedule_generators.h"
#include "tests/support/plain_transformer.h"
#include "tests/support/tiny_model.h"
#include "trainer/kernels/aten.h"
#include "trainer/model/describe.h"
#include "trainer/train_step.h"

namespace deepnet {
namespace {

constexpr int kUpdates = 10, kWarmup = 4;
constexpr double kRate = 2e-3, kClip = 0.4, kSmoothing = 0.1;
constexpr double kBeta1 = 0.9, kBeta2 = 0.98, kEpsilon = 1e-8;
// This is relative to a tensor's greatest element: float32 here is compared with double there.
constexpr double kTolerance = 1e-5;

RunSpec TinyRun(Residual residual, TiedEmbeddings tied) {
  RunSpec run;
  run.set_seed(3);
  *run.mutable_model() = testing::WithResidual(testing::TinySpec(), residual);
  run.mutable_model()->set_tied_embeddings(tied);
  *run.mutable_data()->mutable_microbatch() = testing::TinyCapacity();
  OptimSpec& optim = *run.mutable_optim();
  optim.set_label_smoothing(kSmoothing);
  optim.set_virtual_replicas(1);
  optim.set_schedule(INVERSE_SQRT);
  optim.set_warmup_steps(kWarmup);
  optim.set_learning_rate(kRate);
  optim.set_beta1(kBeta1);
  optim.set_beta2(kBeta2);
  optim.set_epsilon(kEpsilon);
  optim.set_clip_norm(kClip);
  run.mutable_compute()->set_device("cpu");
  run.mutable_compute()->set_dtype(FLOAT32);
  run.mutable_compute()->set_matmul(NATIVE);
  run.mutable_compute()->set_threads_per_rank(1);
  return run;
}

StepBatch BatchOf(const ModelSpec& spec, int step) {
  StepBatch batch;
  for (uint32_t m = 0; m < 2; ++m) {
    batch.Add(testing::TinyMicrobatch(spec, static_cast<uint32_t>(2 * step) + m + 1));
  }
  return batch;
}

// fairseq's trainer with a parameter of its own for each tensor.
class Twin {
 public:
  Twin(const ModelSpec& spec, const Parameters& parameters) : spec_(spec) {
    for (const Parameter& p : parameters.inventory().parameters) {
      const at::Tensor start = parameters.Get(p.name).to(at::kDouble, false, true);
      states_[p.name] = {start.set_requires_grad(true), at::zeros_like(start),
                         at::zeros_like(start)};
    }
  }

  // Returns the norm of the gradient.
  double Update(const StepBatch& batch, int update) {
    at::Tensor loss = at::zeros({}, at::kDouble);
    for (const Microbatch& mb : batch.microbatches) {
      loss = loss + testing::PlainLoss(spec_, mb, kSmoothing,
                                       [&](const std::string& name) { return states_.at(name).w; });
    }
    (loss / batch.num_target_tokens).backward();
    const c10::NoGradGuard no_gradients;
    double squares = 0.0;
    for (const auto& [name, s] : states_) squares += s.w.grad().square().sum().item<double>();
    const double norm = std::sqrt(squares), clip = std::min(1.0, kClip / (norm + 1e-6));
    const double rate =
        update <= kWarmup ? kRate * update / kWarmup : kRate * std::sqrt(1.0 * kWarmup / update);
    const double correction =
        std::sqrt(1 - std::pow(kBeta2, update)) / (1 - std::pow(kBeta1, update));
    for (auto& [name, s] : states_) {
      const at::Tensor g = s.w.grad() * clip;
      s.m.mul_(kBeta1).add_(g, 1 - kBeta1);
      s.v.mul_(kBeta2).addcmul_(g, g, 1 - kBeta2);
      s.w.sub_(rate * correction * s.m / (s.v.sqrt() + kEpsilon));
      s.w.mutable_grad() = at::Tensor();
    }
    return norm;
  }
  at::Tensor Weight(const std::string& name) const { return states_.at(name).w.detach(); }

 private:
  struct State {
    at::Tensor w, m, v;
  };
  const ModelSpec& spec_;
  std::map<std::string, State> states_;
};

using Case = std::tuple<Residual, TiedEmbeddings>;

class FairseqSteps : public ::testing::TestWithParam<Case> {};

TEST_P(FairseqSteps, TenUpdatesAreThoseOfAPlainModel) {
  const auto [residual, tied] = GetParam();
  const RunSpec run = TinyRun(residual, tied);
  const Inventory whole = Describe(run.model(), run.data().microbatch());
  SelfCommunicator alone;
  const auto made = MakeRankContext(run, whole, LonePlan(whole, 2), alone);
  ASSERT_TRUE(made.ok()) << made.status();
  RankContext& context = **made;
  context.schedule = *MakeNamedSchedule("single_stage", {.num_microbatches = 2});
  Parameters& parameters = context.model->parameters();
  parameters.Initialize(run.seed());
  at::manual_seed(1);
  for (const Parameter& p : whole.parameters) {  // gains and biases start at 1 and 0
    if (p.shape.size() == 1) parameters.Get(p.name).add_(0.2 * at::randn(p.shape));
  }
  context.model->Refresh();

  Twin twin(run.model(), parameters);
  for (int update = 1; update <= kUpdates; ++update) {
    const StepBatch batch = BatchOf(run.model(), update);
    const auto result = RunTrainStep(batch, update - 1, update, context);
    ASSERT_TRUE(result.ok()) << result.status();
    const double norm = twin.Update(batch, update);
    EXPECT_GT(norm, kClip);
    EXPECT_NEAR(result->update.gradient_norm, norm, kTolerance * norm) << update;
  }
  for (const Parameter& p : whole.parameters) {
    // A softmax does not see the biases of keys: their gradient is nothing but rounding.
    if (p.name.ends_with("k_proj.bias")) continue;
    const at::Tensor expected = twin.Weight(p.name), got = parameters.Get(p.name).to(at::kDouble);
    const double scale = expected.abs().max().item<double>();
    EXPECT_LE((got - expected).abs().max().item<double>(), kTolerance * scale) << p.name;
    if (p.zero_row < 0) continue;
    const bool learns = tied == TIE_ALL || (tied == TIE_DECODER && p.name.starts_with("decoder"));
    const double moved = got[p.zero_row].abs().max().item<double>();
    EXPECT_EQ(moved > kRate, learns) << p.name << " " << moved;
  }
}

INSTANTIATE_TEST_SUITE_P(All, FairseqSteps,
                         ::testing::Combine(::testing::Values(DEEPNORM, POST_LN, PRE_LN),
                                            ::testing::Values(TIE_ALL, TIE_DECODER, TIE_NONE)),
                         [](const auto& one) {
                           return Residual_Name(std::get<0>(one.param)) + "_" +
                                  TiedEmbeddings_Name(std::get<1>(one.param));
                         });

}  // namespace
}  // namespace deepnet

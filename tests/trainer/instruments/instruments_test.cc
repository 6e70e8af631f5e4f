// The norms of instruments beside sums over named tensors, element by element.
#include "trainer/instruments/instruments.h"

#include <cmath>
#include <map>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "parallel/comm/communicator.h"
#include "tests/support/tiny_model.h"
#include "trainer/instruments/meters.h"
#include "trainer/kernels/aten.h"
#include "trainer/model/describe.h"
#include "trainer/rank_context.h"
#include "trainer/train_step.h"

namespace deepnet {
namespace {

// Relative, of sums of squares in another order in double precision.
constexpr double kOrderTolerance = 1e-12;

RunSpec TinyRun(TiedEmbeddings tied) {
  RunSpec run;
  run.set_seed(5);
  *run.mutable_model() = testing::TinySpec();
  run.mutable_model()->set_tied_embeddings(tied);
  run.mutable_model()->set_dropout(0.1);
  *run.mutable_data()->mutable_microbatch() = testing::TinyCapacity();
  run.mutable_data()->set_global_microbatches(1);
  OptimSpec& optim = *run.mutable_optim();
  optim.set_virtual_replicas(1);
  optim.set_schedule(CONSTANT);
  optim.set_learning_rate(1e-2);
  optim.set_beta1(0.9);
  optim.set_beta2(0.98);
  optim.set_epsilon(1e-8);
  optim.set_weight_decay(0.01);
  optim.set_clip_norm(0.05);  // far below the norms that occur
  run.mutable_compute()->set_device("cpu");
  run.mutable_compute()->set_dtype(FLOAT32);
  run.mutable_compute()->set_matmul(NATIVE);
  run.mutable_compute()->set_threads_per_rank(1);
  return run;
}

using Tensors = std::map<std::string, at::Tensor>;

Tensors WeightsOf(const Parameters& parameters) {
  Tensors all;
  for (const Parameter& p : parameters.inventory().parameters) {
    all[p.name] = parameters.Get(p.name).clone();
  }
  return all;
}

Tensors GradientsOf(const Parameters& parameters) {
  Tensors all;
  for (const Parameter& p : parameters.inventory().parameters) {
    all[p.name] = parameters.Gradient(p.name).clone();
  }
  return all;
}

Tensors Minus(const Tensors& a, const Tensors& b) {
  Tensors all;
  for (const auto& [name, tensor] : a) all[name] = tensor - b.at(name);
  return all;
}

// The obvious twin: of each layer, in order.
std::vector<double> NormsByLayer(const Inventory& whole, const Tensors& tensors) {
  std::vector<double> norms;
  std::set<int> seen;
  for (const Layer& layer : whole.layers) {
    double squares = 0.0;
    for (const int p : layer.parameters) {
      if (!seen.insert(p).second) continue;
      const at::Tensor flat = tensors.at(whole.parameters[p].name).flatten();
      for (int64_t i = 0; i < flat.numel(); ++i) {
        const double value = flat[i].item<float>();
        squares += value * value;
      }
    }
    norms.push_back(std::sqrt(squares));
  }
  return norms;
}

void ExpectNorms(const std::vector<LayerInstruments>& layers,
                 double (LayerInstruments::*norm)() const, const std::vector<double>& twin) {
  ASSERT_EQ(layers.size(), twin.size());
  for (size_t l = 0; l < twin.size(); ++l) {
    EXPECT_NEAR((layers[l].*norm)(), twin[l], kOrderTolerance * twin[l]) << layers[l].name();
  }
}

TEST(LayerMeter, NormsAreThoseOfNamedTensorsLayerByLayer) {
  for (const TiedEmbeddings tied : {TIE_ALL, TIE_DECODER, TIE_NONE}) {
    const RunSpec run = TinyRun(tied);
    const Inventory whole = Describe(run.model(), run.data().microbatch());
    SelfCommunicator alone;
    const auto part = MakeRankContext(run, whole, LonePlan(whole, 1), alone);
    ASSERT_TRUE(part.ok()) << part.status();
    Parameters& parameters = (*part)->model->parameters();
    parameters.Initialize(run.seed());
    (*part)->model->Refresh();
    LayerMeter meter(whole, (*part)->layout, parameters.weights().options());
    EXPECT_EQ(meter.bytes(), 4 * whole.NumElements());
    for (int step = 0; step < 2; ++step) {
      const Microbatch mb = testing::TinyMicrobatch(run.model(), 1 + step);
      const Tensors before = WeightsOf(parameters);
      const auto result =
          RunTrainStep({{mb}, mb.num_source_tokens, mb.num_target_tokens}, step, step + 1, **part,
                       {.before_update = [&] { meter.Remember(parameters.weights()); }});
      ASSERT_TRUE(result.ok()) << result.status();
      const auto layers = meter.Measure(*(*part)->ops, parameters, (*part)->groups.all);
      ASSERT_TRUE(layers.ok()) << layers.status();
      const Tensors after = WeightsOf(parameters);
      ExpectNorms(*layers, &LayerInstruments::gradient_norm,
                  NormsByLayer(whole, GradientsOf(parameters)));
      ExpectNorms(*layers, &LayerInstruments::weight_norm, NormsByLayer(whole, after));
      ExpectNorms(*layers, &LayerInstruments::update_norm,
                  NormsByLayer(whole, Minus(after, before)));
      double squares = 0.0;
      for (size_t l = 0; l < layers->size(); ++l) {
        EXPECT_EQ((*layers)[l].name(), whole.layers[l].name);
        squares += (*layers)[l].gradient_norm() * (*layers)[l].gradient_norm();
      }
      EXPECT_NEAR(std::sqrt(squares), result->update.gradient_norm,
                  kOrderTolerance * result->update.gradient_norm);
    }
  }
}

TEST(Instruments, TheirCostIsShownFromOnePerCentOn) {
  EXPECT_EQ(InstrumentsCost(0.0, 0.0), "");
  EXPECT_EQ(InstrumentsCost(1.0, 100.0), "");
  EXPECT_EQ(InstrumentsCost(2.34, 100.0), "  instruments 2.3 %");
}

}  // namespace
}  // namespace deepnet

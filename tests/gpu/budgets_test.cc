// What a pass of a model costs on a GPU, in launches, waits and allocations, as the emulated GPU
// counts them: bounds in place of a stopwatch.
//
// What a layer costs is the difference between two models of which one has a layer more. Counted is
// the second pass: the first one makes buffers.
#include <cstdio>
#include <memory>
#include <string>

#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include "tests/gpu/emulated/device.h"
#include "tests/support/tiny_model.h"
#include "trainer/kernels/compute.h"
#include "trainer/model/transformer.h"

namespace deepnet {
namespace {

struct Costs {
  int64_t forward = 0;   // launches
  int64_t backward = 0;  // launches
  int64_t waits = 0;
  int64_t allocations = 0;
};

Costs CostsOf(const ModelSpec& spec) {
  const c10::impl::VirtualGuardImpl guard(GpuType().value());
  guard.setDevice({guard.type(), 0});
  const auto ops = MakeCudaOps(guard.getDevice(), at::kBFloat16, /*check_launches=*/false);
  Transformer model(spec, testing::TinyCapacity(), *ops, /*trainable=*/true);
  model.parameters().Initialize(5);
  const auto kept = model.MakeActivations(/*shared=*/false);
  const Microbatch mb = testing::TinyMicrobatch(spec, 3);
  Costs costs;
  for (int pass = 0; pass < 2; ++pass) {
    model.Refresh();
    const emulated_gpu::Counters start = emulated_gpu::ReadCounters();
    model.Forward(mb, 1, 2, /*training=*/true, {.label_smoothing = 0.1}, *kept);
    const emulated_gpu::Counters middle = emulated_gpu::ReadCounters();
    model.Backward(mb, 1, 2, *kept);
    const emulated_gpu::Counters end = emulated_gpu::ReadCounters();
    costs = {.forward = middle.launches - start.launches,
             .backward = end.launches - middle.launches,
             .waits = end.waits - start.waits,
             .allocations = end.allocations - start.allocations};
  }
  return costs;
}

ModelSpec Spec(Residual residual) {
  ModelSpec spec = testing::WithResidual(testing::TinySpec(), residual);
  spec.set_dropout(0.1);
  spec.set_attention_dropout(0.1);
  return spec;
}

TEST(GpuBudgets, OfADeepNormLayer) {
  const Costs model = CostsOf(Spec(DEEPNORM));
  ModelSpec spec = Spec(DEEPNORM);
  spec.set_encoder_layers(spec.encoder_layers() + 1);
  const Costs encoder = CostsOf(spec);
  EXPECT_LE(encoder.forward - model.forward, 9);
  EXPECT_LE(encoder.backward - model.backward, 21);
  spec = Spec(DEEPNORM);
  spec.set_decoder_layers(spec.decoder_layers() + 1);
  const Costs decoder = CostsOf(spec);
  EXPECT_LE(decoder.forward - model.forward, 15);
  EXPECT_LE(decoder.backward - model.backward, 35);
}

TEST(GpuBudgets, APassWaitsOnceForItsLossAndAllocatesNothing) {
  for (const Residual residual : testing::AllResiduals()) {
    SCOPED_TRACE(Residual_Name(residual));
    const Costs costs = CostsOf(Spec(residual));
    std::printf("%-20s %4d forward, %4d backward\n", Residual_Name(residual).c_str(),
                static_cast<int>(costs.forward), static_cast<int>(costs.backward));
    EXPECT_EQ(costs.waits, 1);  // ReadBack, which a training step calls once
    EXPECT_EQ(costs.allocations, 0);
  }
}

}  // namespace
}  // namespace deepnet

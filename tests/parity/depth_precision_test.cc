// How far bfloat16 products move the output of a deep decoder, the residual stream being float32
// (docs/design/compute.md states these bounds).
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/whole_pass.h"
#include "trainer/data/batcher.h"
#include "trainer/kernels/aten.h"
#include "trainer/kernels/compute.h"
#include "trainer/model/transformer.h"

namespace deepnet {
namespace {

struct Output {
  at::Tensor hidden_TD;  // behind the last decoder layer
  double nll = 0.0;      // nats per target token
};

ModelSpec Spec(int layers) {
  ModelSpec spec;
  spec.set_encoder_layers(layers);
  spec.set_decoder_layers(layers);
  spec.set_d_model(64);
  spec.set_ffn_dim(256);
  spec.set_num_heads(4);
  spec.set_residual(DEEPNORM);
  spec.set_vocabulary_size(1000);
  spec.set_max_positions(64);
  spec.set_layer_norm_epsilon(1e-5);
  return spec;
}

Output RunInitial(const ModelSpec& spec, DataType dtype) {
  MicrobatchSpec capacity;
  capacity.set_max_source_tokens(100);
  capacity.set_max_target_tokens(100);
  capacity.set_max_sentences(8);
  const Microbatch microbatch = MakeBenchMicrobatches({{{21, 19}, {7, 11}, {30, 33}, {14, 10}}},
                                                      {100, 100, 8}, 1000, /*seed=*/3)[0];
  ComputeSpec compute;
  compute.set_dtype(dtype);
  compute.set_threads_per_rank(2);
  const auto ops = MakeNativeOps(compute);
  Transformer model(spec, capacity, *ops, /*trainable=*/false);
  model.parameters().Initialize(1);
  model.Refresh();
  const auto kept = model.MakeActivations(/*shared=*/true);
  const LossSums loss = testing::Forward(model, microbatch, 0, 0, /*training=*/false, {}, *kept);
  const int64_t rows = microbatch.num_target_tokens;
  return {kept->values.target_RD.narrow(0, 0, rows).to(at::kDouble),
          loss.nll / static_cast<double>(rows)};
}

// Relative to the norm of the float32 output.
void ExpectWithin(int layers, double bound) {
  const Output exact = RunInitial(Spec(layers), FLOAT32);
  const Output rounded = RunInitial(Spec(layers), BFLOAT16);
  const double error =
      ((rounded.hidden_TD - exact.hidden_TD).norm() / exact.hidden_TD.norm()).item<double>();
  ::testing::Test::RecordProperty("relative_error", std::to_string(error));
  EXPECT_LT(error, bound);
  EXPECT_GT(error, 1e-5);  // bfloat16 was really used
  EXPECT_NEAR(rounded.nll, exact.nll, bound * exact.nll);
}

TEST(DepthPrecision, Bfloat16ProductsHardlyMoveTheOutputOfSixAndSixLayers) {
  ExpectWithin(6, 0.002);
}

TEST(DepthPrecision, Bfloat16ProductsHardlyMoveTheOutputOfFiveHundredAndFiveHundredLayers) {
  ExpectWithin(500, 0.002);
}

}  // namespace
}  // namespace deepnet

// Against a list of products, written down one by one.
#include "trainer/model/flops.h"

#include <vector>

#include <gtest/gtest.h>

namespace deepnet {
namespace {

ModelSpec ASpec() {
  ModelSpec model;
  model.set_encoder_layers(3);
  model.set_decoder_layers(2);
  model.set_d_model(8);
  model.set_ffn_dim(20);
  model.set_num_heads(2);
  model.set_vocabulary_size(50);
  return model;
}

StepBatch ABatch(const std::vector<std::pair<int, int>>& lengths) {
  Microbatch mb;
  mb.num_sentences = static_cast<int>(lengths.size());
  mb.source.offsets = mb.target.offsets = {0};
  for (const auto& [source, target] : lengths) {
    mb.source.offsets.push_back(mb.source.offsets.back() + source);
    mb.target.offsets.push_back(mb.target.offsets.back() + target);
  }
  return {.microbatches = {mb}};
}

double Product(double rows, double in, double out) { return 2 * rows * in * out; }

// Scores and weighted sums of all heads together.
double Attention(double queries, double keys) { return 2 * Product(queries, 8, keys); }

double ListedForward(double s, double t) {
  double sum = Product(t, 8, 50);
  for (int layer = 0; layer < 3; ++layer) {
    sum += 4 * Product(s, 8, 8) + Attention(s, s) + 2 * Product(s, 8, 20);
  }
  for (int layer = 0; layer < 2; ++layer) {
    sum += 4 * Product(t, 8, 8) + Attention(t, t) / 2;                     // causal
    sum += 2 * Product(t, 8, 8) + 2 * Product(s, 8, 8) + Attention(t, s);  // cross-attention
    sum += 2 * Product(t, 8, 20);
  }
  return sum;
}

TEST(Flops, AStepIsThreeTimesTheListedProductsOfItsSentences) {
  EXPECT_DOUBLE_EQ(StepFlops(ASpec(), ABatch({{5, 7}, {1, 1}, {9, 4}})),
                   3 * (ListedForward(5, 7) + ListedForward(1, 1) + ListedForward(9, 4)));
}

TEST(Flops, AStackAloneHasNoMemoryAndIsCausalAsADecoderOnly) {
  for (const Architecture architecture : {DECODER_ONLY, ENCODER_ONLY}) {
    ModelSpec model = ASpec();
    model.set_architecture(architecture);
    const bool causal = architecture == DECODER_ONLY;
    causal ? model.set_encoder_layers(0) : model.set_decoder_layers(0);
    const double layer =
        4 * Product(7, 8, 8) + Attention(7, 7) / (causal ? 2 : 1) + 2 * Product(7, 8, 20);
    EXPECT_DOUBLE_EQ(StepFlops(model, ABatch({{0, 7}})),
                     3 * ((causal ? 2 : 3) * layer + Product(7, 8, 50)));
  }
}

TEST(Flops, ASearchOfOneHypothesisIsTheForwardPassOfAStep) {
  EXPECT_DOUBLE_EQ(3 * SearchFlops(ASpec(), 5, 7, 1), StepFlops(ASpec(), ABatch({{5, 7}})));
}

TEST(Flops, EachHypothesisMoreIsADecoderAndAnOutputLayerMore) {
  ModelSpec encoder_only = ASpec();
  encoder_only.set_decoder_layers(0);
  const double encoder = ListedForward(5, 0) - 2 * 2 * Product(5, 8, 8);
  const double memory = 2 * 2 * Product(5, 8, 8);
  EXPECT_DOUBLE_EQ(SearchFlops(ASpec(), 5, 7, 4),
                   encoder + memory + 4 * (ListedForward(5, 7) - encoder - memory));
  EXPECT_DOUBLE_EQ(SearchFlops(encoder_only, 5, 7, 4), encoder + 4 * Product(7, 8, 50));
}

TEST(StatedPeakFlops, IsThatOfTheModelThatIsConfiguredOrElseOfTheGpuThatCudaNames) {
  ClusterSpec cluster;
  EXPECT_EQ(StatedPeakFlops("0000:3B:00.0 (NVIDIA H100 80GB HBM3)", cluster, BFLOAT16), 989.4e12);
  EXPECT_EQ(StatedPeakFlops("Another GPU", cluster, BFLOAT16), 0.0);
  cluster.set_device_model("A100");
  EXPECT_EQ(StatedPeakFlops("Another GPU", cluster, FLOAT32), 19.5e12);
  EXPECT_EQ(StatedPeakFlops("NVIDIA H100", cluster, FLOAT16), 312e12);
}

}  // namespace
}  // namespace deepnet

#include "trainer/model/recompute.h"

#include <gtest/gtest.h>

#include "tests/support/tiny_model.h"
#include "trainer/model/describe.h"

namespace deepnet {
namespace {

// 1 layer of width 512, inner width 2048, 8 heads; 1000 + 1000 positions; no dropout.
ModelSpec Wide() {
  ModelSpec spec = testing::TinySpec();
  spec.set_width(512);
  spec.set_ffn_width(2048);
  spec.set_heads(8);
  return spec;
}

MicrobatchSpec Thousand() {
  MicrobatchSpec capacity;
  capacity.set_source_tokens(1000);
  capacity.set_target_tokens(1000);
  capacity.set_sentences(10);
  return capacity;
}

int64_t PerPosition(LayerKind kind, Recompute level) {
  return KeptBytes(Wide(), Thousand(), kind, level).Total(/*operand_bytes=*/2) / 1000;
}

// In widths of 2 bytes: qkv 3, context 1, inner 4; two or three norm states in float32 are 2 each,
// with 4 bytes of deviation; log-sums 4 bytes a head.
TEST(KeptBytes, CountsWhatEachLevelKeepsOfABfloat16Layer) {
  constexpr int64_t kWidth = 2 * 512, kHeads = 4 * 8, kDeviation = 4;
  const LayerKind encoder = LayerKind::kEncoder, decoder = LayerKind::kDecoder;
  EXPECT_EQ(PerPosition(encoder, NONE), 12 * kWidth + kHeads + 2 * kDeviation);
  EXPECT_EQ(PerPosition(encoder, FFN), 8 * kWidth + kHeads + 2 * kDeviation);
  EXPECT_EQ(PerPosition(encoder, GEMM), 5 * kWidth + kHeads + 2 * kDeviation);
  EXPECT_EQ(PerPosition(encoder, LAYER), 2 * kWidth);
  EXPECT_EQ(PerPosition(decoder, NONE), 18 * kWidth + 2 * kHeads + 3 * kDeviation);
  EXPECT_EQ(PerPosition(decoder, FFN), 14 * kWidth + 2 * kHeads + 3 * kDeviation);
  EXPECT_EQ(PerPosition(decoder, GEMM), 8 * kWidth + 2 * kHeads + 3 * kDeviation);
  EXPECT_EQ(PerPosition(decoder, LAYER), 2 * kWidth);
}

TEST(KeptBytes, AreThoseOfTheInventoryWhereEverythingIsKept) {
  ModelSpec spec = testing::TinySpec();
  spec.set_activation(GELU);
  spec.set_dropout(0.1);
  spec.set_activation_dropout(0.1);
  const MicrobatchSpec capacity = testing::TinyCapacity();
  for (const Layer& layer : Describe(spec, capacity).layers) {
    if (layer.kind != LayerKind::kEncoder && layer.kind != LayerKind::kDecoder) continue;
    const ActivationBytes kept = KeptBytes(spec, capacity, layer.kind, NONE);
    EXPECT_EQ(kept, (ActivationBytes{layer.activation_bytes, layer.activation_operands}))
        << layer.name;
  }
}

TEST(RecomputeBytes, GrowWithTheSegmentAndAreNothingWhereEverythingIsKept) {
  const auto bytes = [](const RecomputeOptions& options) {
    return RecomputeBytes(Wide(), Thousand(), LayerKind::kEncoder, options, FLOAT32).Total(4);
  };
  EXPECT_EQ(bytes({NONE, 1}), 0);
  EXPECT_EQ(bytes({FFN, 1}), 1000 * 4 * 2048);
  EXPECT_EQ(bytes({GEMM, 1}), 1000 * 4 * (2048 + 3 * 512));
  const int64_t layer =
      KeptBytes(Wide(), Thousand(), LayerKind::kEncoder, NONE).Total(/*operand_bytes=*/4);
  EXPECT_EQ(bytes({LAYER, 3}) - bytes({LAYER, 1}), 2 * layer);
}

}  // namespace
}  // namespace deepnet


#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "parallel/plan/memory.h"
#include "tests/support/layer_bytes.h"
#include "tests/support/tiny_model.h"
#include "trainer/model/architecture.h"
#include "trainer/model/describe.h"
#include "trainer/model/scheme.h"

namespace deepnet {
namespace {

// 1 layer of width 512, inner width 2048, 8 heads; 1000 + 1000 positions; no dropout.
ModelSpec Wide() {
  ModelSpec spec = testing::TinySpec();
  spec.set_d_model(512);
  spec.set_ffn_dim(2048);
  spec.set_num_heads(8);
  return spec;
}

MicrobatchSpec Thousand() {
  MicrobatchSpec capacity;
  capacity.set_max_source_tokens(1000);
  capacity.set_max_target_tokens(1000);
  capacity.set_max_sentences(10);
  return capacity;
}

int64_t PerPosition(LayerKind kind, Recompute level) {
  return testing::KeptBytes(Wide(), Thousand(), kind, level).Total(/*operand_bytes=*/2) / 1000;
}

// In widths of 2 bytes: qkv 3, context 1, inner 4; two or three norm states in float32 are 2 each,
// with 4 bytes of deviation; log-sums 4 bytes a head.
TEST(KeptBytes, CountsWhatEachLevelKeepsOfABfloat16Layer) {
  constexpr int64_t kWidth = 2 * 512, kHeads = 4 * 8, kDeviation = 4;
  const LayerKind encoder = LayerKind::kEncoder, decoder = LayerKind::kDecoder;
  EXPECT_EQ(PerPosition(encoder, NONE), 12 * kWidth + kHeads + 2 * kDeviation);
  EXPECT_EQ(PerPosition(encoder, SELECTIVE_FFN), 8 * kWidth + kHeads + 2 * kDeviation);
  EXPECT_EQ(PerPosition(encoder, SELECTIVE_GEMM), 5 * kWidth + kHeads + 2 * kDeviation);
  EXPECT_EQ(PerPosition(encoder, FULL), 2 * kWidth);
  EXPECT_EQ(PerPosition(decoder, NONE), 18 * kWidth + 2 * kHeads + 3 * kDeviation);
  EXPECT_EQ(PerPosition(decoder, SELECTIVE_FFN), 14 * kWidth + 2 * kHeads + 3 * kDeviation);
  EXPECT_EQ(PerPosition(decoder, SELECTIVE_GEMM), 8 * kWidth + 2 * kHeads + 3 * kDeviation);
  EXPECT_EQ(PerPosition(decoder, FULL), 2 * kWidth);
}

TEST(KeptBytes, AreThoseOfTheInventoryWhereEverythingIsKept) {
  ModelSpec spec = testing::TinySpec();
  spec.set_activation(GELU);
  spec.set_dropout(0.1);
  spec.set_activation_dropout(0.1);
  const MicrobatchSpec capacity = testing::TinyCapacityOf(spec);
  for (const Layer& layer : Describe(spec, capacity).layers) {
    if (layer.kind != LayerKind::kEncoder && layer.kind != LayerKind::kDecoder) continue;
    const ActivationBytes kept = testing::KeptBytes(spec, capacity, layer.kind, NONE);
    EXPECT_EQ(kept, layer.kept[NONE]) << layer.name;
  }
}

TEST(RecomputeBytes, GrowWithTheSegmentAndAreNothingWhereEverythingIsKept) {
  const auto bytes = [](const RecomputeChoice& choice) {
    return testing::RecomputeBytes(Wide(), Thousand(), LayerKind::kEncoder, choice, FLOAT32)
        .Total(4);
  };
  EXPECT_EQ(bytes({NONE, 1}), 0);
  EXPECT_EQ(bytes({SELECTIVE_FFN, 1}), 1000 * 4 * 2048);
  EXPECT_EQ(bytes({SELECTIVE_GEMM, 1}), 1000 * 4 * (2048 + 3 * 512));
  const int64_t layer =
      testing::KeptBytes(Wide(), Thousand(), LayerKind::kEncoder, NONE).Total(/*operand_bytes=*/4);
  EXPECT_EQ(bytes({FULL, 3}) - bytes({FULL, 1}), 2 * layer);
}

// --- the planner, which sees layers by the Inventory alone ---------------------------------------

constexpr int kLayers = 5;

// All that decides what layers keep: activation, every dropout, where the normalisation stands.
std::vector<ModelSpec> Variants() {
  std::vector<ModelSpec> variants;
  for (const Residual residual : testing::AllResiduals()) {
    for (const Activation activation : {RELU, GELU}) {
      for (const double dropout : {0.0, 0.1}) {
        ModelSpec spec = testing::WithResidual(testing::TinySpec(), residual);
        spec.set_encoder_layers(kLayers);
        spec.set_decoder_layers(kLayers);
        spec.set_activation(activation);
        spec.set_dropout(dropout);
        spec.set_activation_dropout(dropout);
        spec.set_attention_dropout(dropout);
        if (residual % 3 == 0) spec.set_norm(BATCH_NORM);  // its states have another size
        variants.push_back(spec);
        if (dropout == 0) continue;
        for (const Architecture architecture : {DECODER_ONLY, ENCODER_ONLY}) {
          ModelSpec alone = testing::WithArchitecture(spec, architecture);
          alone.set_encoder_layers(architecture == ENCODER_ONLY ? kLayers : 0);
          alone.set_decoder_layers(architecture == DECODER_ONLY ? kLayers : 0);
          variants.push_back(alone);
        }
      }
    }
  }
  return variants;
}

std::vector<RecomputeChoice> Choices() {
  return {{NONE, 1}, {SELECTIVE_FFN, 1}, {SELECTIVE_GEMM, 1}, {FULL, 1}, {FULL, 2}, {FULL, 9}};
}

// Calls `expect` with every variant, its Inventory, the encoder's and then the decoder's layers,
// each choice and each type of operands.
template <typename Expect>
void ForEachCase(const Expect& expect) {
  for (const ModelSpec& spec : Variants()) {
    const Inventory inventory = Describe(spec, testing::TinyCapacityOf(spec));
    for (const LayerKind kind : {LayerKind::kEncoder, LayerKind::kDecoder}) {
      if (kind == LayerKind::kEncoder && !IsEncoderDecoder(spec)) continue;
      const int first = kind == LayerKind::kEncoder || !IsEncoderDecoder(spec) ? 1 : kLayers + 2;
      for (const RecomputeChoice& choice : Choices()) {
        for (const DataType dtype : {FLOAT32, BFLOAT16}) {
          SCOPED_TRACE(spec.ShortDebugString() + ": " + std::string(LayerKindName(kind)) + ", " +
                       Recompute_Name(choice.level) + " " + std::to_string(choice.segment) + ", " +
                       DataType_Name(dtype));
          ComputeSpec compute;
          compute.set_dtype(dtype);
          expect(spec, inventory, LayerSpan{first, first + kLayers}, kind, choice, dtype,
                 MakeMemoryRules(compute));
        }
      }
    }
  }
}

int64_t RowsOf(const ModelSpec& spec, LayerKind kind) {
  const MicrobatchSpec capacity = testing::TinyCapacityOf(spec);
  return kind == LayerKind::kEncoder ? capacity.max_source_tokens() : capacity.max_target_tokens();
}

TEST(PlannedKeptBytes, AreThoseOfTheLayersToTheByte) {
  ForEachCase([](const ModelSpec& spec, const Inventory& inventory, LayerSpan layers,
                 LayerKind kind, const RecomputeChoice& choice, DataType,
                 const MemoryRules& rules) {
    const int64_t each = testing::KeptBytes(spec, testing::TinyCapacityOf(spec), kind, choice.level)
                             .Total(rules.operand_bytes);
    const int64_t row = RowsOf(spec, kind) * spec.d_model();
    int64_t kept = choice.level == FULL
                       ? (kLayers + choice.segment - 1) / choice.segment * each
                       : kLayers * each + row * rules.operand_bytes;  // the stack's first input
    const int64_t norm = row + (spec.norm() == BATCH_NORM ? spec.d_model() : RowsOf(spec, kind));
    if (KeepsHistory(spec)) {  // z_0; z and the state of its norm for each layer
      kept += 4 * row + kLayers * 4 * (row + norm);
    }
    // A norm stands behind the stack, or numbers that want the stream itself.
    if (EndOf(spec) == StackEnd::kNorm || EndOf(spec) == StackEnd::kSecondNorm) {
      kept += 4 * norm;
    }
    if (EndOf(spec) == StackEnd::kScaledShift) kept += 4 * row;
    EXPECT_EQ(KeptBytes(inventory, layers, choice, rules), kept);
  });
}

TEST(PlannedRecomputeBytes, AreThoseOfTheLayersToTheByte) {
  ForEachCase([](const ModelSpec& spec, const Inventory& inventory, LayerSpan layers,
                 LayerKind kind, RecomputeChoice choice, DataType dtype, const MemoryRules& rules) {
    const RankUse rank{.chunks = {{.layers = layers}}, .recompute = choice};
    choice.segment = std::min(choice.segment, kLayers);  // a stack has no longer segments
    const auto bytes = [&](LayerKind of) {
      return testing::RecomputeBytes(spec, testing::TinyCapacityOf(spec), of, choice, dtype)
          .Total(rules.operand_bytes);
    };
    int64_t again = bytes(kind);
    // Cross-attention has its products' outputs in a workspace of the source's rows.
    const bool by_product = choice.level == SELECTIVE_FFN || choice.level == SELECTIVE_GEMM;
    if (by_product && kind == LayerKind::kDecoder) again += bytes(LayerKind::kEncoder);
    EXPECT_EQ(EstimateMemory(inventory, rank, rules).recompute(), again);
  });
}

TEST(PlannedPendingBytes, AreTheDeferredOperandsToTheByte) {
  ForEachCase([](const ModelSpec& spec, const Inventory& inventory, LayerSpan layers,
                 LayerKind kind, const RecomputeChoice&, DataType, const MemoryRules& rules) {
    int64_t operands =
        kLayers * testing::DeferredOperands(spec, testing::TinyCapacityOf(spec), kind);
    // All decoder layers of a chunk hold the encoder output once, together.
    if (kind == LayerKind::kDecoder) operands += RowsOf(spec, LayerKind::kEncoder) * spec.d_model();
    EXPECT_EQ(PendingBytes(MakePendingMatrices(inventory, layers, rules)),
              operands * rules.operand_bytes);
  });
}

}  // namespace
}  // namespace deepnet

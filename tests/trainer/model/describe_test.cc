#include "trainer/model/describe.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "parallel/base/exit_code.h"
#include "trainer/kernels/kernel_sizes.h"
#include "trainer/model/architecture.h"
#include "trainer/model/check_model.h"
#include "trainer/model/scheme.h"

namespace deepnet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ModelSpec Model(int layers, int width, int64_t vocabulary) {
  ModelSpec model;
  model.set_encoder_layers(layers);
  model.set_decoder_layers(layers);
  model.set_d_model(width);
  model.set_ffn_dim(4 * width);
  model.set_num_heads(8);
  model.set_residual(DEEPNORM);
  model.set_vocabulary_size(vocabulary);
  model.set_max_positions(32);
  return model;
}

MicrobatchSpec Batch(int source, int target, int sentences) {
  MicrobatchSpec batch;
  batch.set_max_source_tokens(source);
  batch.set_max_target_tokens(target);
  batch.set_max_sentences(sentences);
  return batch;
}

std::vector<std::string> NamesOf(const Inventory& inventory, const std::string& prefix) {
  std::vector<std::string> names;
  for (const Parameter& p : inventory.parameters) {
    if (p.name.starts_with(prefix)) names.push_back(p.name.substr(prefix.size()));
  }
  return names;
}

const Layer& LayerNamed(const Inventory& inventory, const std::string& name) {
  const auto found = std::find_if(inventory.layers.begin(), inventory.layers.end(),
                                  [&](const Layer& layer) { return layer.name == name; });
  EXPECT_NE(found, inventory.layers.end()) << name;
  return *found;
}

std::vector<std::string> ParametersOf(const Inventory& inventory, const std::string& layer) {
  std::vector<std::string> names;
  for (const int i : LayerNamed(inventory, layer).parameters) {
    names.push_back(inventory.parameters[i].name);
  }
  return names;
}

TEST(Describe, CountsThePapersModels) {
  EXPECT_EQ(Describe(Model(100, 512, 250002), {}).NumElements(),
            100 * (3152384LL + 4204032LL) + 250002LL * 512);
  EXPECT_NEAR(Describe(Model(100, 512, 250002), {}).NumElements() / 1e6, 863.6, 0.05);
  EXPECT_NEAR(Describe(Model(500, 512, 250002), {}).NumElements() / 1e6, 3806, 0.5);
  EXPECT_NEAR(Describe(Model(100, 1024, 250002), {}).NumElements() / 1e6, 3195, 0.5);
}

TEST(Describe, NamesAndOrdersOneEncoderAndOneDecoderLayer) {
  const Inventory inventory = Describe(Model(2, 16, 100), {});
  EXPECT_THAT(
      NamesOf(inventory, "encoder.layers.1."),
      ElementsAre("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight",
                  "self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias",
                  "self_attn.out_proj.weight", "self_attn.out_proj.bias",
                  "self_attn_layer_norm.weight", "self_attn_layer_norm.bias", "fc1.weight",
                  "fc1.bias", "fc2.weight", "fc2.bias", "final_layer_norm.weight",
                  "final_layer_norm.bias"));
  EXPECT_THAT(NamesOf(inventory, "decoder.layers.0.encoder_attn"),
              ElementsAre(".q_proj.weight", ".q_proj.bias", ".k_proj.weight", ".v_proj.weight",
                          ".k_proj.bias", ".v_proj.bias", ".out_proj.weight", ".out_proj.bias",
                          "_layer_norm.weight", "_layer_norm.bias"));
  EXPECT_EQ(NamesOf(inventory, "decoder.layers.0.").size(), 26);
}

TEST(Describe, FlatOrderHasNoGapsAndFollowsTheLayers) {
  for (const TiedEmbeddings tied : {TIE_ALL, TIE_DECODER, TIE_NONE}) {
    ModelSpec model = Model(3, 16, 100);
    model.set_tied_embeddings(tied);
    model.set_positions(LEARNED);
    model.set_residual(PRE_LN);
    const Inventory inventory = Describe(model, {});
    int64_t offset = 0;
    std::set<std::string> names;
    for (const Parameter& p : inventory.parameters) {
      EXPECT_EQ(p.offset, offset) << p.name;
      offset += p.NumElements();
      EXPECT_TRUE(names.insert(p.name).second) << p.name;
    }
    int next = 0;  // parameters appear first in the layer that owns them, in order
    for (const Layer& layer : inventory.layers) {
      for (const int i : layer.parameters) {
        EXPECT_LE(i, next);
        next = std::max(next, i + 1);
      }
    }
    EXPECT_EQ(next, static_cast<int>(inventory.parameters.size()));
  }
}

TEST(Describe, TyingDecidesWhichMatricesExistAndWhoUsesThem) {
  ModelSpec model = Model(1, 16, 100);
  EXPECT_THAT(ParametersOf(Describe(model, {}), "encoder.embedding"), ElementsAre("shared.weight"));
  EXPECT_THAT(ParametersOf(Describe(model, {}), "decoder.embedding"), ElementsAre("shared.weight"));
  EXPECT_THAT(ParametersOf(Describe(model, {}), "output"), ElementsAre("shared.weight"));

  model.set_tied_embeddings(TIE_DECODER);
  EXPECT_THAT(ParametersOf(Describe(model, {}), "encoder.embedding"),
              ElementsAre("encoder.embed_tokens.weight"));
  EXPECT_THAT(ParametersOf(Describe(model, {}), "decoder.embedding"),
              ElementsAre("decoder.embed_tokens.weight"));
  EXPECT_THAT(ParametersOf(Describe(model, {}), "output"),
              ElementsAre("decoder.embed_tokens.weight"));

  model.set_tied_embeddings(TIE_NONE);
  EXPECT_THAT(ParametersOf(Describe(model, {}), "output"), ElementsAre("lm_head.weight"));
}

TEST(Describe, LearnedPositionsAndFinalNormsBelongToTheLayersThatUseThem) {
  ModelSpec model = Model(2, 16, 100);
  model.set_positions(LEARNED);
  model.set_residual(PRE_LN);
  const Inventory inventory = Describe(model, {});
  EXPECT_THAT(ParametersOf(inventory, "decoder.embedding"),
              ElementsAre("shared.weight", "decoder.embed_positions.weight"));
  EXPECT_EQ(ParametersOf(inventory, "encoder.layers.1").back(), "encoder.layer_norm.bias");
  EXPECT_EQ(ParametersOf(inventory, "encoder.layers.0").back(),
            "encoder.layers.0.final_layer_norm.bias");
  EXPECT_EQ(ParametersOf(inventory, "decoder.layers.1").back(), "decoder.layer_norm.bias");
}

TEST(Describe, InitialDeviationFollowsTheRole) {
  ModelSpec model = Model(6, 16, 100);
  const DepthScaling scaling = MakeDepthScaling(model);
  std::map<std::string, double> deviation;
  for (const Parameter& p : Describe(model, {}).parameters) deviation[p.name] = p.initial_std;

  const double square = std::sqrt(2.0 / 32), wide = std::sqrt(2.0 / 80);
  for (const std::string side : {"encoder", "decoder"}) {
    const double beta = side == "encoder" ? scaling.encoder_beta : scaling.decoder_beta;
    const std::string layer = side + ".layers.5.";
    EXPECT_DOUBLE_EQ(deviation[layer + "self_attn.q_proj.weight"], square);
    EXPECT_DOUBLE_EQ(deviation[layer + "self_attn.k_proj.weight"], square);
    EXPECT_DOUBLE_EQ(deviation[layer + "self_attn.v_proj.weight"], beta * square);
    EXPECT_DOUBLE_EQ(deviation[layer + "self_attn.out_proj.weight"], beta * square);
    EXPECT_DOUBLE_EQ(deviation[layer + "fc1.weight"], beta * wide);
    EXPECT_DOUBLE_EQ(deviation[layer + "fc2.weight"], beta * wide);
    EXPECT_EQ(deviation[layer + "fc1.bias"], 0.0);
  }
  EXPECT_DOUBLE_EQ(deviation["decoder.layers.0.encoder_attn.v_proj.weight"],
                   scaling.decoder_beta * square);
  EXPECT_DOUBLE_EQ(deviation["decoder.layers.0.encoder_attn.q_proj.weight"], square);
  EXPECT_DOUBLE_EQ(deviation["shared.weight"], 0.25);
}

TEST(Describe, PaddingStartsAtZeroWhereTokensAreLookedUp) {
  ModelSpec model = Model(1, 16, 100);
  model.set_tied_embeddings(TIE_NONE);
  for (const Parameter& p : Describe(model, {}).parameters) {
    EXPECT_EQ(p.zero_row, p.name.ends_with("embed_tokens.weight") ? 1 : -1) << p.name;
    EXPECT_EQ(p.initial_value, p.role == Role::kNormGain ? 1.0f : 0.0f) << p.name;
  }
}

TEST(Describe, CountsOperationsOfEveryProduct) {
  const double d = 16, f = 64, v = 100, s = 40, t = 30, source_length = 10, target_length = 7.5;
  const Inventory inventory = Describe(Model(1, 16, 100), Batch(40, 30, 4));
  EXPECT_DOUBLE_EQ(LayerNamed(inventory, "encoder.layers.0").forward_flops,
                   2 * s * (4 * d * d + 2 * d * f) + 4 * s * source_length * d);
  EXPECT_DOUBLE_EQ(LayerNamed(inventory, "decoder.layers.0").forward_flops,
                   2 * t * (6 * d * d + 2 * d * f) + 4 * s * d * d +
                       4 * t * (source_length + target_length) * d);
  EXPECT_DOUBLE_EQ(LayerNamed(inventory, "output").forward_flops, 2 * t * d * v);
  EXPECT_EQ(LayerNamed(inventory, "encoder.embedding").forward_flops, 0);
}

TEST(Describe, CountsWhatLayersKeepForTheBackwardPass) {
  ModelSpec model = Model(1, 16, 100);  // d 16, f 64, 8 heads; S 40, T 30
  const auto check = [&](int64_t norm_row, int64_t inner_bytes, int64_t inner) {
    const Inventory inventory = Describe(model, Batch(40, 30, 4));
    const Layer& encoder = LayerNamed(inventory, "encoder.layers.0");
    EXPECT_EQ(encoder.kept[NONE].bytes, 40 * (2 * norm_row + 4 * 8 + inner_bytes));
    EXPECT_EQ(encoder.kept[NONE].operands, 40 * (4 * 16 + inner));
    const Layer& decoder = LayerNamed(inventory, "decoder.layers.0");
    EXPECT_EQ(decoder.kept[NONE].bytes, 30 * (3 * norm_row + 2 * 4 * 8 + inner_bytes));
    EXPECT_EQ(decoder.kept[NONE].operands, 30 * (6 * 16 + inner) + 40 * 2 * 16);
  };
  check(/*norm_row=*/4 * 17, /*inner_bytes=*/0, /*inner=*/64);
  model.set_dropout(0.1);
  model.set_activation_dropout(0.1);
  model.set_activation(GELU);
  check(/*norm_row=*/4 * 17 + 2, /*inner_bytes=*/8, /*inner=*/128);
}

// 1 GiB of float32 logits, in multiples of 128 rows; buffers no larger than a microbatch.
TEST(Describe, AGpusRowsOfLogitsFollowFromTheVocabularyAndTheMicrobatch) {
  EXPECT_EQ(native::LogitRows(8000), 8192);
  EXPECT_EQ(native::LogitRows(50304), 5248);
  EXPECT_EQ(native::LogitRows(250002), 1024);
  EXPECT_EQ(native::LogitRows(10'000'000), 512);
  const auto logits = [](int64_t vocabulary, int rows) {
    return Describe(Model(1, 8, vocabulary), Batch(rows, rows, 1)).layers.back().device_loss[0];
  };
  EXPECT_EQ(logits(8000, 300).bytes, 4 * 300 * (8000 + 2));
  EXPECT_EQ(logits(8000, 300).copies, 300 * 8000);
  EXPECT_EQ(logits(8000, 9000).copies, 8192 * 8000);
  EXPECT_EQ(logits(250002, 9000).bytes, 4 * 1024 * (250048 + 2));
}

TEST(Describe, ListsWhatCrossesEveryCut) {
  const Inventory inventory = Describe(Model(2, 16, 100), Batch(40, 30, 4));
  const BoundaryTensor memory{"encoder_output", {40, 16}, "float32", true};
  const BoundaryTensor source{"hidden", {40, 16}, "float32", true};
  const BoundaryTensor target{"hidden", {30, 16}, "float32", true, 1};
  EXPECT_TRUE(LayerNamed(inventory, "encoder.embedding").inputs.empty());
  EXPECT_THAT(LayerNamed(inventory, "encoder.layers.0").inputs, ElementsAre(source));
  EXPECT_THAT(LayerNamed(inventory, "encoder.layers.1").inputs, ElementsAre(source));
  EXPECT_THAT(LayerNamed(inventory, "decoder.embedding").inputs, ElementsAre(memory));
  EXPECT_THAT(LayerNamed(inventory, "decoder.layers.0").inputs, ElementsAre(memory, target));
  EXPECT_THAT(LayerNamed(inventory, "output").inputs, ElementsAre(target));
}

TEST(Inventory, HashKnowsNamesAndShapesButNotTheMicrobatch) {
  const Inventory inventory = Describe(Model(2, 16, 100), {});
  EXPECT_EQ(inventory.Hash(), Describe(Model(2, 16, 100), Batch(40, 30, 4)).Hash());
  EXPECT_NE(inventory.Hash(), Describe(Model(2, 16, 101), {}).Hash());
  EXPECT_NE(inventory.Hash(), Describe(Model(3, 16, 100), {}).Hash());
  EXPECT_EQ(inventory.Hash().size(), 16);
}

TEST(Describe, AModelOfOneStackIsTheTargetHalfOfTheChain) {
  for (const Architecture architecture : {DECODER_ONLY, ENCODER_ONLY}) {
    const std::string stack = architecture == ENCODER_ONLY ? "encoder." : "decoder.";
    ModelSpec model = Model(2, 16, 100);
    model.set_architecture(architecture);
    architecture == ENCODER_ONLY ? model.set_decoder_layers(0) : model.set_encoder_layers(0);
    for (const TiedEmbeddings tied : {TIE_ALL, TIE_DECODER, TIE_NONE}) {
      model.set_tied_embeddings(tied);
      const Inventory inventory = Describe(model, Batch(0, 40, 4));
      ASSERT_EQ(inventory.layers.size(), 4u);
      EXPECT_EQ(inventory.layers[0].name, stack + "embedding");
      EXPECT_EQ(inventory.layers[0].inputs.size(), 0u);
      for (size_t l = 1; l < 4; ++l) {
        ASSERT_EQ(inventory.layers[l].inputs.size(), 1u);
        EXPECT_EQ(inventory.layers[l].inputs[0].shape, (std::vector<int64_t>{40, 16}));
        EXPECT_EQ(SideInput(inventory.layers[l]), nullptr);
      }
      EXPECT_EQ(inventory.layers[2].name, stack + "layers.1");
      EXPECT_EQ(inventory.parameters[0].name, stack + "embed_tokens.weight");
      EXPECT_EQ(inventory.parameters.back().name == "lm_head.weight", tied == TIE_NONE);
      for (const Parameter& p : inventory.parameters) {
        EXPECT_EQ(p.name.find("encoder_attn"), std::string::npos);
        EXPECT_TRUE(p.name.starts_with(stack) || p.name == "lm_head.weight") << p.name;
      }
    }
    // 40 rows of 10: products of 4 d^2 + 2 d f, scores and sums over 10 keys.
    const double products = 2 * 40 * (4 * 16 * 16 + 2 * 16 * 64) + 4 * 40 * 10 * 16;
    EXPECT_EQ(Describe(model, Batch(0, 40, 4)).layers[1].forward_flops, products);
  }
}

TEST(ChooseAttention, AnOpenKernelIsTheFastestThatTheModelAllowsAndAnAskedOneStays) {
  struct Case {
    const char* device;
    AttentionKernel asked;
    DataType dtype;
    int width;  // of a head
    double dropout;
    AttentionKernel chosen;
  };
  for (const Case& c : std::vector<Case>{{"cuda", AUTO, BFLOAT16, 64, 0, FLASH},
                                         {"cuda", AUTO, FLOAT16, 256, 0, FLASH},
                                         {"cuda", AUTO, FLOAT32, 64, 0, OWN},
                                         {"cuda", AUTO, BFLOAT16, 264, 0, OWN},
                                         {"cuda", AUTO, BFLOAT16, 12, 0, OWN},
                                         {"cuda", AUTO, BFLOAT16, 64, 0.1, OWN},
                                         {"cuda", OWN, BFLOAT16, 64, 0, OWN},
                                         {"cuda", FLASH, FLOAT32, 64, 0, FLASH},
                                         {"cpu", AUTO, BFLOAT16, 64, 0, AUTO}}) {
    ModelSpec model = Model(1, 8 * c.width, 100);
    model.set_attention_dropout(c.dropout);
    ComputeSpec compute;
    compute.set_device(c.device);
    compute.set_attention(c.asked);
    compute.set_dtype(c.dtype);
    EXPECT_EQ(ChooseAttention(model, compute), c.chosen) << c.device << " " << c.width;
  }
}

TEST(CheckTranslates, NamesTheModelThatDoesNot) {
  ModelSpec model = Model(1, 64, 100);
  EXPECT_TRUE(CheckTranslates(model, "score").ok());
  for (const auto& [architecture, text] :
       {std::pair(DECODER_ONLY, "score: model.architecture: DECODER_ONLY: a causal language model"),
        std::pair(ENCODER_ONLY, "score: model.architecture: ENCODER_ONLY: a masked language mo")}) {
    model.set_architecture(architecture);
    const absl::Status status = CheckTranslates(model, "score");
    EXPECT_EQ(GetExitCode(status), ExitCode::kCheckpoint);
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  }
}

TEST(CheckStoredModel, NamesWhatNoModelCanBe) {
  RunSpec good;
  *good.mutable_model() = Model(2, 64, 100);
  good.mutable_model()->set_layer_norm_epsilon(1e-5);
  EXPECT_TRUE(CheckStoredModel(good).ok()) << CheckStoredModel(good);
  const std::pair<void (*)(ModelSpec&), const char*> kCases[] = {
      {[](ModelSpec& m) { m.set_num_heads(0); }, "model.num_heads: 0: must be at least 1"},
      {[](ModelSpec& m) { m.set_num_heads(3); }, "model.num_heads: 3: must divide model.d_model"},
      {[](ModelSpec& m) { m.set_num_heads(16385); }, "model.num_heads: 16385: must be at most"},
      {[](ModelSpec& m) { m.set_d_model(0); }, "model.d_model: 0: must be at least 1"},
      {[](ModelSpec& m) { m.set_ffn_dim(-1); }, "model.ffn_dim: -1: must be at least 1"},
      {[](ModelSpec& m) { m.set_encoder_layers(0); }, "model.encoder_layers: 0: must be at least"},
      {[](ModelSpec& m) { m.set_decoder_layers(1 << 30); }, "model.decoder_layers: 1073741824: mu"},
      {[](ModelSpec& m) { m.set_vocabulary_size(0); }, "model.vocabulary_size: 0: required here"},
      {[](ModelSpec& m) { m.set_vocabulary_size(1 << 30); }, "model.vocabulary_size: 1073741824: "},
      {[](ModelSpec& m) { m.set_max_positions(0); }, "model.max_positions: 0: must be at least 1"},
      {[](ModelSpec& m) { m.set_layer_norm_epsilon(NAN); }, "model.layer_norm_epsilon: nan: must"},
      {[](ModelSpec& m) { m.clear_residual(); }, "model.residual: RESIDUAL_UNSPECIFIED: required"}};
  for (const auto& [change, text] : kCases) {
    RunSpec run = good;
    change(*run.mutable_model());
    const absl::Status status = CheckStoredModel(run);
    EXPECT_EQ(GetExitCode(status), ExitCode::kCheckpoint) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  }
  RunSpec odd = good;
  odd.mutable_model()->set_residual(static_cast<Residual>(99));
  odd.mutable_model()->set_activation(static_cast<Activation>(7));
  odd.mutable_data()->set_tags(static_cast<TagStyle>(99));
  EXPECT_EQ(std::string(CheckStoredModel(odd).message()),
            "no model can be as this one says: model.residual: 99: is no value of Residual; "
            "model.activation: 7: is no value of Activation; data.tags: 99: is no value of "
            "TagStyle");
}

}  // namespace
}  // namespace deepnet

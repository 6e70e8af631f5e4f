#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include "parallel/base/exit_code.h"
#include "parallel/plan/inventory.h"
#include "tests/support/fault_file_system.h"
#include "tests/support/memory_file_system.h"
#include "tests/trainer/interop/interop_samples.h"
#include "trainer/checkpoint/format.h"
#include "trainer/checkpoint/tools/tensor_reader.h"
#include "trainer/interop/hf_config.h"
#include "trainer/interop/interop.h"
#include "trainer/interop/marian.h"
#include "trainer/interop/safetensors.h"
#include "trainer/model/scheme.h"

namespace deepnet {
namespace {

using deepnet::testing::FaultFileSystem;
using deepnet::testing::MemoryFileSystem;
using deepnet::testing::ModelWeights;
using deepnet::testing::ReadWeight;
using deepnet::testing::SampleModel;
using deepnet::testing::SampleTokenizer;
using deepnet::testing::SampleVocabulary;
using deepnet::testing::SaveModel;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kSource[] = "run/step-00000007";

std::vector<ModelSpec> AllKinds() {
  std::vector<ModelSpec> models;
  for (const Residual residual : {DEEPNORM, POST_LN, PRE_LN}) {
    models.push_back(SampleModel(residual));
  }
  ModelSpec other = SampleModel(DEEPNORM);
  other.set_tied_embeddings(TIE_NONE);
  other.set_positions(LEARNED);
  other.set_activation(GELU);
  other.mutable_deepnorm()->set_encoder_alpha(1.0 / 7.0);
  models.push_back(other);
  return models;
}

std::vector<float> ReadAll(SafetensorsFolder& folder, const std::string& name) {
  const auto found = folder.tensors().find(name);
  if (found == folder.tensors().end()) {
    ADD_FAILURE() << name << " is missing";
    return {};
  }
  std::vector<float> values(static_cast<size_t>(ElementsOf(found->second.shape)));
  EXPECT_TRUE(folder.Read(found->second, 0, values).ok());
  return values;
}

TEST(Export, ImportedAgainIsTheSameBitByBit) {
  for (const ModelSpec& model : AllKinds()) {
    for (const int64_t shard_bytes : {int64_t{1} << 30, int64_t{1000}}) {
      MemoryFileSystem fs;
      SaveModel(fs, model);
      ExportOptions options;
      options.layout.max_shard_bytes = shard_bytes;
      const auto report = ExportCheckpoint(fs, kSource, "hf", options);
      ASSERT_TRUE(report.ok()) << report.status();
      const auto imported = ImportFolder(fs, "hf", "again", {});
      ASSERT_TRUE(imported.ok()) << imported.status();
      EXPECT_EQ(imported->folder, "again/step-00000007");
      EXPECT_THAT(imported->notes, IsEmpty());

      const Manifest before = *ReadManifest(fs, kSource);
      const Manifest after = *ReadManifest(fs, imported->folder);
      EXPECT_EQ(after.run().SerializeAsString(), before.run().SerializeAsString());
      EXPECT_EQ(after.inventory_hash(), before.inventory_hash());
      EXPECT_EQ(after.tokenizer_hash(), before.tokenizer_hash());
      EXPECT_EQ(after.corpus_hash(), before.corpus_hash());
      EXPECT_EQ(after.optimizer_steps(), before.optimizer_steps());
      EXPECT_EQ(after.source_tokens(), before.source_tokens());
      EXPECT_EQ(after.target_tokens(), before.target_tokens());
      EXPECT_EQ(after.data().step(), before.data().step());
      const Inventory inventory = Describe(model, {});
      for (size_t i = 0; i < inventory.parameters.size(); ++i) {
        EXPECT_EQ(ReadWeight(fs, imported->folder, after, inventory.parameters[i]),
                  ModelWeights(inventory, i))
            << inventory.parameters[i].name;
      }
      for (const char* file : {"tokenizer.model", "languages.txt"}) {
        EXPECT_EQ(*ReadWholeFile(fs, JoinPath("again", file), 1 << 20),
                  *ReadWholeFile(fs, JoinPath("run", file), 1 << 20));
      }
    }
  }
}

TEST(Export, OnlyAModelThatM2m100ComputesIsCalledSo) {
  for (const ModelSpec& model : AllKinds()) {
    MemoryFileSystem fs;
    SaveModel(fs, model);
    const auto report = ExportCheckpoint(fs, kSource, "hf", {});
    ASSERT_TRUE(report.ok()) << report.status();
    const auto config = ReadHfConfig(fs, "hf", {});
    ASSERT_TRUE(config.ok()) << config.status();
    const bool m2m = model.residual() == PRE_LN;
    EXPECT_EQ(config->model_type(), m2m ? "m2m_100" : "deepnet");
    EXPECT_EQ(config->d_model(), 8);
    EXPECT_EQ(config->encoder_ffn_dim(), 12);
    EXPECT_EQ(report->empty(), m2m);
    if (m2m) continue;
    EXPECT_EQ(config->encoder_alpha(), MakeDepthScaling(model).encoder_alpha);
    EXPECT_THAT(report->front(), HasSubstr("residual is "));
  }
}

TEST(DifferencesFromM2m, AreNamedAllAtOnce) {
  ModelSpec model = SampleModel(PRE_LN);
  EXPECT_THAT(DifferencesFromM2m(model), IsEmpty());
  model.set_layer_norm_epsilon(1e-6);
  EXPECT_THAT(DifferencesFromM2m(model), ElementsAre("layer_norm_epsilon is 1e-06"));
  model.set_residual(POST_LN);
  model.set_tied_embeddings(TIE_DECODER);
  model.set_positions(LEARNED);
  EXPECT_THAT(DifferencesFromM2m(model),
              ElementsAre("residual is POST_LN", "tied_embeddings is TIE_DECODER",
                          "positions are LEARNED", "layer_norm_epsilon is 1e-06"));
}

TEST(Export, ConfigHasEveryKeyOfItsKind) {
  const int rows = static_cast<int>(SampleVocabulary().size());
  const std::string sizes = R"(
      d_model: 8 encoder_layers: 2 decoder_layers: 1 encoder_ffn_dim: 12 decoder_ffn_dim: 12
      encoder_attention_heads: 2 decoder_attention_heads: 2 encoder_layerdrop: 0
      decoder_layerdrop: 0 dropout: 0.1 attention_dropout: 0.2 activation_dropout: 0.3
      max_position_embeddings: 16 is_encoder_decoder: true bos_token_id: 0 eos_token_id: 2 )";
  const std::string ours =
      absl::StrCat(sizes, "pad_token_id: 1 decoder_start_token_id: 2 vocab_size: ", rows, " ");
  ModelSpec learned = AllKinds().back();  // an alpha of the encoder, GELU, untied
  learned.mutable_deepnorm()->set_encoder_alpha(0.5);
  learned.mutable_deepnorm()->set_decoder_alpha(0.25);
  learned.set_layer_norm_epsilon(1e-6);
  learned.set_unscaled_embedding(true);
  ModelSpec decoder = learned;
  decoder.set_tied_embeddings(TIE_DECODER);
  decoder.set_positions(SINUSOIDAL);
  const std::string deepnet = R"(model_type: "deepnet" dtype: "float32" residual: "deepnorm"
      architectures: "DeepNetForConditionalGeneration" activation_function: "gelu"
      encoder_alpha: 0.5 decoder_alpha: 0.25 layer_norm_eps: 1e-6 scale_embedding: false )";
  const struct {
    ModelSpec model;
    ExportFormat format;
    FloatType type;
    std::string expected;
  } cases[] = {
      {SampleModel(PRE_LN), ExportFormat::kSafetensors, FloatType::kFloat32,
       absl::StrCat(ours, R"(model_type: "m2m_100" architectures: "M2M100ForConditionalGeneration"
           dtype: "float32" activation_function: "relu" scale_embedding: true
           tie_word_embeddings: true)")},
      {learned, ExportFormat::kSafetensors, FloatType::kFloat32,
       absl::StrCat(ours, deepnet, R"(position_embedding_type: "learned"
           tied_embeddings: "none" tie_word_embeddings: false)")},
      {decoder, ExportFormat::kSafetensors, FloatType::kFloat32,
       absl::StrCat(ours, deepnet, R"(position_embedding_type: "sinusoidal"
           tied_embeddings: "decoder" tie_word_embeddings: true)")},
      {SampleModel(POST_LN), ExportFormat::kSafetensors, FloatType::kFloat32,
       absl::StrCat(ours, R"(model_type: "deepnet" architectures: "DeepNetForConditionalGeneration"
           dtype: "float32" activation_function: "relu" residual: "post_ln" encoder_alpha: 1
           decoder_alpha: 1 layer_norm_eps: 1e-5 position_embedding_type: "sinusoidal"
           tied_embeddings: "all" scale_embedding: true tie_word_embeddings: true)")},
      {SampleModel(DEEPNORM), ExportFormat::kMarian, FloatType::kBfloat16,
       absl::StrCat(sizes, R"(model_type: "marian" architectures: "MarianMTModel"
           dtype: "bfloat16" activation_function: "relu" scale_embedding: true
           tie_word_embeddings: true share_encoder_decoder_embeddings: true forced_eos_token_id: 2
           vocab_size: )",
                    rows + 1, " decoder_vocab_size: ", rows + 1, " pad_token_id: ", rows,
                    " decoder_start_token_id: ", rows)}};
  for (const auto& [model, format, type, text] : cases) {
    MemoryFileSystem fs;
    SaveModel(fs, model);
    const auto report =
        ExportCheckpoint(fs, kSource, "hf", {.format = format, .layout = {.type = type}});
    ASSERT_TRUE(report.ok()) << report.status();
    auto config = ReadHfConfig(fs, "hf", {});
    ASSERT_TRUE(config.ok()) << config.status();
    const Manifest manifest = *ReadManifest(fs, kSource);
    ExportedCheckpoint exported;
    if (format == ExportFormat::kSafetensors) {
      EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(
          R"(step: 7 corpus_hash: "c0ffee" optimizer_steps: 6 source_tokens: 1000
             target_tokens: 900 languages: "de" languages: "en")",
          &exported));
      *exported.mutable_run() = manifest.run();
      exported.set_inventory_hash(Describe(model, {}).Hash());
      exported.set_tokenizer_hash(SampleVocabulary().hash());
    }
    EXPECT_EQ(config->deepnet().DebugString(), exported.DebugString());
    EXPECT_EQ(config->has_deepnet(), format == ExportFormat::kSafetensors);
    config->clear_deepnet();
    HfConfig expected;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &expected));
    EXPECT_EQ(config->DebugString(), expected.DebugString());
  }
}

TEST(Export, TheSearchAndTheTokenizerAreThoseOfTheRun) {
  const int64_t rows = SampleVocabulary().size();
  const auto generation = [&](const std::string& bad, int64_t pad, int64_t start,
                              const std::string& beams, const std::string& penalty, int length) {
    return absl::StrCat(
        "{\n  \"bad_words_ids\": [", bad,
        "],\n  \"bos_token_id\": 0,\n  \"eos_token_id\": 2,\n  \"pad_token_id\": ", pad,
        ",\n  \"decoder_start_token_id\": ", start, ",\n  \"num_beams\": ", beams,
        ",\n  \"early_stopping\": true,\n  \"length_penalty\": ", penalty,
        ",\n  \"min_new_tokens\": 1,\n  \"max_length\": ", length, "\n}\n");
  };
  const std::string bad = absl::StrCat("[0], [1], [", rows - 2, "], [", rows - 1, "]");
  const std::string bad_of_marian = absl::StrCat(bad, ", [", rows, "]");
  const struct {
    ExportFormat format;
    const char* decode;
    std::string expected;
  } cases[] = {{ExportFormat::kSafetensors, "", generation(bad, 1, 2, "1", "1", 16)},
               {ExportFormat::kSafetensors, "beam_size: 4 length_penalty: 0.5 max_tokens: 9",
                generation(bad, 1, 2, "4", "0.5", 10)},
               {ExportFormat::kMarian, "beam_size: 5 length_penalty: 0 max_tokens: 15",
                generation(bad_of_marian, rows, rows, "5", "0", 16)},
               {ExportFormat::kMarian, "max_tokens: 16",
                generation(bad_of_marian, rows, rows, "1", "1", 16)}};
  for (const auto& [format, decode, expected] : cases) {
    MemoryFileSystem fs;
    RunSpec run;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(decode, run.mutable_decode()));
    SaveModel(fs, SampleModel(DEEPNORM), run);
    ASSERT_TRUE(ExportCheckpoint(fs, kSource, "hf", {.format = format}).ok());
    EXPECT_EQ(*ReadWholeFile(fs, "hf/generation_config.json", 1 << 20), expected);
    EXPECT_EQ(*ReadWholeFile(fs, "hf/tokenizer_config.json", 1 << 20),
              R"({
  "tokenizer_class": "MarianTokenizer",
  "unk_token": "<unk>",
  "eos_token": "</s>",
  "pad_token": "<pad>",
  "separate_vocabs": false,
  "model_max_length": 16
}
)");
    EXPECT_EQ(*ReadWholeFile(fs, "hf/source.spm", 1 << 20), SampleTokenizer());
    EXPECT_EQ(*ReadWholeFile(fs, "hf/target.spm", 1 << 20), SampleTokenizer());
    EXPECT_THAT(*fs.List("hf"),
                ElementsAre("config.json", "generation_config.json", "model.safetensors",
                            "source.spm", "target.spm", "tokenizer_config.json", "vocab.json"));
  }
}

TEST(Export, StatementsSayWhatTheUserHasToKnow) {
  const std::string positions =
      "Positions are stored in embed_positions; transformers' save_pretrained leaves them out, so "
      "copy the folder instead of saving the model again.";
  const auto divided = [](const char* encoder, const char* decoder, const char* of_encoder,
                          const char* of_decoder) {
    return absl::StrCat(
        "out_proj and fc2 are divided by alpha (encoder ", encoder, ", decoder ", decoder,
        "). Exact up to LayerNorm's epsilon: Marian adds 1e-05 to a variance where alpha^2 times "
        "less would be equal, which changes the factor of a normalisation by at most ",
        of_encoder, " (encoder) and ", of_decoder,
        " (decoder) of itself, divided by the variance of residual plus branch.");
  };
  ModelSpec deepnorm = SampleModel(DEEPNORM);
  deepnorm.mutable_deepnorm()->set_encoder_alpha(2.0);
  deepnorm.mutable_deepnorm()->set_decoder_alpha(0.5);
  ModelSpec branch_norm = SampleModel(BRANCH_NORM);
  branch_norm.mutable_scheme()->set_branch_norm_steps(28);  // the checkpoint is of step 7
  const std::string exact = divided("1", "1", "0", "0");
  const struct {
    ModelSpec model;
    TagStyle tags;
    ExportOptions options;
    std::vector<std::string> expected;
  } cases[] = {
      {deepnorm,
       TARGET_TAG_ON_SOURCE,
       {.format = ExportFormat::kMarian},
       {divided("2", "0.5", "3.7e-06", "1.5e-05"), positions,
        "The source begins with the target's language: \">>de<< text\"."}},
      {SampleModel(POST_LN),
       M2M,
       {.format = ExportFormat::kMarian, .layout = {.type = FloatType::kBfloat16}},
       {exact, positions,
        "The source begins with >>source<<, and the target's tag has to be forced "
        "(forced_bos_token_id; in CTranslate2 target_prefix).",
        "Weights are rounded to bfloat16."}},
      {branch_norm,
       NO_TAGS,
       {.format = ExportFormat::kMarian},
       {exact,
        "out_proj and fc2 are multiplied by 0.25, what BRANCH_NORM lets in of a branch at step 7.",
        positions}},
      {AllKinds().back(),
       M2M,
       {},
       {"model_type is deepnet, for which transformers has no class: residual is DEEPNORM, "
        "tied_embeddings is TIE_NONE, positions are LEARNED. `deepnet checkpoint import` reads "
        "it."}},
      {SampleModel(PRE_LN), M2M, {}, {}}};
  for (const auto& [model, tags, options, expected] : cases) {
    MemoryFileSystem fs;
    RunSpec run;
    run.mutable_data()->set_tags(tags);
    SaveModel(fs, model, run);
    const auto report = ExportCheckpoint(fs, kSource, "hf", options);
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_THAT(*report, ElementsAreArray(expected));
  }
}

// Each with the whole text: it is all that the user gets.
TEST(Export, WhatCannotBeExportedIsRefusedByName) {
  const auto refusal = [](MemoryFileSystem& fs, ExportFormat format) {
    const absl::Status status = ExportCheckpoint(fs, kSource, "hf", {.format = format}).status();
    EXPECT_EQ(GetExitCode(status), ExitCode::kCheckpoint) << status;
    EXPECT_FALSE(*Exists(fs, "hf"));
    return std::string(status.message());
  };
  ModelSpec model = SampleModel(PRE_LN);
  model.set_tied_embeddings(TIE_NONE);
  MemoryFileSystem marian, unknown, other, none, missing, reshaped, encoder, impossible;
  SaveModel(marian, model);
  EXPECT_EQ(refusal(marian, ExportFormat::kMarian),
            "this model cannot be exported as Marian: residual is PRE_LN (DEEPNORM, POST_LN or "
            "BRANCH_NORM; a PRE_LN model goes out with --format safetensors as M2M-100); "
            "tied_embeddings is TIE_NONE (TIE_ALL)");
  model = SampleModel(POST_LN);
  model.set_architecture(ENCODER_ONLY);
  model.set_decoder_layers(0);
  SaveModel(encoder, model);
  EXPECT_THAT(refusal(encoder, ExportFormat::kSafetensors), HasSubstr("checkpoint export"));
  model = SampleModel(POST_LN);
  model.set_dropout(1.5);
  SaveModel(impossible, model);
  EXPECT_THAT(refusal(impossible, ExportFormat::kSafetensors),
              HasSubstr("no model can be as this one says: model.dropout: 1.5"));
  const std::vector<float> one = {1.0f};
  const auto save = [&](MemoryFileSystem& fs, const ModelSpec& of, const NamedTensor& tensor) {
    SaveModel(fs, SampleModel(DEEPNORM));  // the tokenizer
    Manifest manifest;
    manifest.set_step(7);
    *manifest.mutable_run()->mutable_model() = of;
    manifest.set_tokenizer_hash(SampleVocabulary().hash());
    ASSERT_TRUE(SaveCheckpoint(fs, "run", manifest, {{tensor}}).ok());
  };
  save(unknown, {}, {"weight/x", {1}, one});
  EXPECT_EQ(refusal(unknown, ExportFormat::kSafetensors),
            "'run/step-00000007' does not say what its model is");
  const std::string rows = absl::StrCat(SampleVocabulary().size());
  save(missing, SampleModel(DEEPNORM), {"weight/x", {1}, one});
  EXPECT_EQ(refusal(missing, ExportFormat::kSafetensors),
            absl::StrCat("'run/step-00000007': the weight 'shared.weight' is missing; its model "
                         "has ",
                         rows, "x8"));
  save(reshaped, SampleModel(DEEPNORM), {"weight/shared.weight", {1, 1}, one});
  EXPECT_EQ(refusal(reshaped, ExportFormat::kMarian),
            absl::StrCat("'run/step-00000007': the weight 'shared.weight' is 1x1; its model has ",
                         rows, "x8"));

  SaveModel(other, SampleModel(DEEPNORM));
  ASSERT_TRUE(ReplaceFile(other, "run/languages.txt", "de\nfr\n").ok());
  const std::string hash = Vocabulary::FromBytes(SampleTokenizer(), {"de", "fr"})->hash();
  EXPECT_EQ(
      refusal(other, ExportFormat::kSafetensors),
      absl::StrCat("'run' holds the tokenizer ", hash, " of ", rows,
                   " ids; the checkpoint was made with ", SampleVocabulary().hash(), " of ", rows));
  SaveModel(none, SampleModel(DEEPNORM));
  ASSERT_TRUE(none.Delete("run/tokenizer.model").ok());
  EXPECT_THAT(refusal(none, ExportFormat::kSafetensors),
              AllOf(HasSubstr("the tokenizer: "), HasSubstr("run/tokenizer.model")));
}

TEST(Export, AsBfloat16IsHalfTheSizeAndSaysSo) {
  MemoryFileSystem fs;
  SaveModel(fs, SampleModel(DEEPNORM));
  ExportOptions options;
  options.layout.type = FloatType::kBfloat16;
  const auto report = ExportCheckpoint(fs, kSource, "hf", options);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->back(), "Weights are rounded to bfloat16.");
  const auto folder = SafetensorsFolder::Open(fs, "hf", {});
  ASSERT_TRUE(folder.ok()) << folder.status();
  const std::vector<float> rounded = ReadAll(**folder, "model.shared.weight");
  const std::vector<float> exact = ModelWeights(Describe(SampleModel(DEEPNORM), {}), 0);
  constexpr float kHalfUnit = 1.0f / 256;  // of bfloat16's eight bits
  for (size_t i = 0; i < exact.size(); ++i) {
    EXPECT_NEAR(rounded[i], exact[i], std::abs(exact[i]) * kHalfUnit);
  }
}

// The elements that the Marian export must have, each computed from the checkpoint in memory.
TEST(Export, OfMarianDividesBranchesByAlphaAndAddsARowOfZeros) {
  for (const Positions positions : {SINUSOIDAL, LEARNED}) {
    ModelSpec model = SampleModel(DEEPNORM);
    model.set_positions(positions);
    model.set_unscaled_embedding(positions == LEARNED);
    const double scale = model.unscaled_embedding() ? 1.0 : std::sqrt(8.0);
    MemoryFileSystem fs;
    SaveModel(fs, model);
    const auto report = ExportCheckpoint(fs, kSource, "marian", {.format = ExportFormat::kMarian});
    ASSERT_TRUE(report.ok()) << report.status();
    const auto folder = SafetensorsFolder::Open(fs, "marian", {});
    ASSERT_TRUE(folder.ok()) << folder.status();
    const DepthScaling scaling = MakeDepthScaling(model);
    const Inventory inventory = Describe(model, {});
    const size_t d = 8;
    std::vector<float> embedding;
    for (size_t i = 0; i < inventory.parameters.size(); ++i) {
      const std::string& name = inventory.parameters[i].name;
      std::vector<float> expected = ModelWeights(inventory, i);
      if (name == "shared.weight") {
        embedding = expected;
        expected.resize(expected.size() + d);
      }
      if (absl::StrContains(name, "out_proj") || absl::StrContains(name, "fc2")) {
        const double alpha =
            absl::StartsWith(name, "encoder") ? scaling.encoder_alpha : scaling.decoder_alpha;
        for (float& value : expected) value = static_cast<float>(value / alpha);
      }
      if (name == "decoder.embed_positions.weight") {
        for (size_t k = 0; k < d; ++k) {
          expected[k] += static_cast<float>(double{embedding[2 * d + k]} * scale);
        }
      }
      EXPECT_EQ(ReadAll(**folder, HfName(name)), expected) << name;
    }
    std::vector<float> bias(static_cast<size_t>(model.vocabulary_size()));
    bias.push_back(-1e9f);
    EXPECT_EQ(ReadAll(**folder, "final_logits_bias"), bias);
  }
}

TEST(Export, TensorsOfMarianReadInPiecesAreThoseReadWhole) {
  for (const Positions positions : {SINUSOIDAL, LEARNED}) {
    ModelSpec model = SampleModel(DEEPNORM);
    model.set_positions(positions);
    MemoryFileSystem fs;
    SaveModel(fs, model);
    const auto reader = TensorReader::Open(fs, kSource, {});
    ASSERT_TRUE(reader.ok()) << reader.status();
    (*reader)->HoldBlocks(2, /*ahead=*/false);
    const auto tensors = MarianTensors(model, **reader);
    ASSERT_TRUE(tensors.ok()) << tensors.status();
    for (const OutgoingTensor& tensor : *tensors) {
      int64_t elements = 1;
      for (const int64_t size : tensor.shape) elements *= size;
      std::vector<float> whole(static_cast<size_t>(elements)), pieces(whole.size());
      ASSERT_TRUE(tensor.read(0, std::span(whole)).ok());
      for (size_t at = 0; at < pieces.size(); at += 5) {
        const size_t count = std::min<size_t>(5, pieces.size() - at);
        ASSERT_TRUE(
            tensor.read(static_cast<int64_t>(at), std::span(pieces).subspan(at, count)).ok());
      }
      EXPECT_EQ(pieces, whole) << tensor.name;
    }
  }
}

TEST(Export, OfMarianStoresFairseqsPositionsAndTheFirstTokenInRowZero) {
  const ModelSpec model = SampleModel(DEEPNORM);
  MemoryFileSystem fs;
  SaveModel(fs, model);
  ASSERT_TRUE(ExportCheckpoint(fs, kSource, "marian", {.format = ExportFormat::kMarian}).ok());
  const auto folder = SafetensorsFolder::Open(fs, "marian", {});
  ASSERT_TRUE(folder.ok()) << folder.status();
  const std::vector<float> encoder = ReadAll(**folder, "model.encoder.embed_positions.weight");
  const std::vector<float> decoder = ReadAll(**folder, "model.decoder.embed_positions.weight");
  const std::vector<float> embedding = ModelWeights(Describe(model, {}), 0);
  ASSERT_EQ(encoder.size(), 16u * 8);
  for (size_t p = 0; p < 16; ++p) {
    for (size_t k = 0; k < 4; ++k) {
      const double angle = static_cast<double>(p + 2) * std::pow(1e4, -static_cast<double>(k) / 3);
      EXPECT_NEAR(encoder[p * 8 + k], std::sin(angle), 1e-6);
      EXPECT_NEAR(encoder[p * 8 + 4 + k], std::cos(angle), 1e-6);
    }
  }
  for (size_t i = 0; i < decoder.size(); ++i) {
    const double first = i < 8 ? embedding[2 * 8 + i] * std::sqrt(8.0) : 0.0;
    EXPECT_NEAR(decoder[i], encoder[i] + first, 1e-6) << i;
  }
}

TEST(Export, OfMarianNamesIdsAsMarianTokenizerDoes) {
  MemoryFileSystem fs;
  SaveModel(fs, SampleModel(DEEPNORM));
  ASSERT_TRUE(ExportCheckpoint(fs, kSource, "marian", {.format = ExportFormat::kMarian}).ok());
  const std::string vocabulary = *ReadWholeFile(fs, "marian/vocab.json", 1 << 20);
  const int last = SampleVocabulary().size();
  EXPECT_THAT(vocabulary, HasSubstr("\"<s>\": 0,\n  \"<pad:trained>\": 1,\n  \"</s>\": 2"));
  EXPECT_THAT(vocabulary, HasSubstr(absl::StrCat("\">>de<<\": ", last - 2)));
  EXPECT_THAT(vocabulary, HasSubstr(absl::StrCat("\">>en<<\": ", last - 1)));
  EXPECT_THAT(vocabulary, HasSubstr(absl::StrCat("\"<pad>\": ", last)));
  EXPECT_EQ(*ReadWholeFile(fs, "marian/target.spm", 1 << 20), SampleTokenizer());
  const auto config = ReadHfConfig(fs, "marian", {});
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config->vocab_size(), last + 1);
  EXPECT_EQ(config->decoder_start_token_id(), last);
  EXPECT_THAT(
      *ReadWholeFile(fs, "marian/generation_config.json", 1 << 20),
      HasSubstr(absl::StrCat("[[0], [1], [", last - 2, "], [", last - 1, "], [", last, "]]")));
}

TEST(Export, ToMarianMultipliesByWhatBranchNormLetsInAtTheCheckpointsStep) {
  ModelSpec model = SampleModel(BRANCH_NORM);
  model.mutable_scheme()->set_branch_norm_steps(28);  // the checkpoint is of step 7
  MemoryFileSystem fs;
  SaveModel(fs, model);
  const auto report = ExportCheckpoint(fs, kSource, "marian", {.format = ExportFormat::kMarian});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(*report, ::testing::Contains(HasSubstr("BRANCH_NORM")));
  const auto folder = SafetensorsFolder::Open(fs, "marian", {});
  ASSERT_TRUE(folder.ok()) << folder.status();
  const Inventory inventory = Describe(model, {});
  for (size_t i = 0; i < inventory.parameters.size(); ++i) {
    const std::string& name = inventory.parameters[i].name;
    const bool last = absl::StrContains(name, "out_proj") || absl::StrContains(name, "fc2");
    if (!absl::StrContains(name, ".layers.")) continue;
    std::vector<float> expected = ModelWeights(inventory, i);
    for (float& value : expected) value *= last ? 0.25f : 1.0f;
    EXPECT_EQ(ReadAll(**folder, HfName(name)), expected) << name;
  }
}

TEST(Export, OfAModelWhoseRowsDependOnEachOtherIsRefusedByName) {
  ModelSpec model = SampleModel(POST_LN);
  model.set_norm(BATCH_NORM);
  MemoryFileSystem fs;
  SaveModel(fs, model);
  for (const ExportFormat format : {ExportFormat::kSafetensors, ExportFormat::kMarian}) {
    const absl::Status status = ExportCheckpoint(fs, kSource, "out", {.format = format}).status();
    EXPECT_EQ(GetExitCode(status), ExitCode::kCheckpoint);
    EXPECT_THAT(std::string(status.message()), HasSubstr("model.norm: BATCH_NORM"));
    EXPECT_FALSE(*Exists(fs, "out"));
  }
}

TEST(Export, ToMarianOfWhatItCannotComputeNamesAllOfIt) {
  MemoryFileSystem fs;
  ModelSpec model = SampleModel(PRE_LN);
  model.set_tied_embeddings(TIE_DECODER);
  SaveModel(fs, model);
  const absl::Status status =
      ExportCheckpoint(fs, kSource, "marian", {.format = ExportFormat::kMarian}).status();
  EXPECT_EQ(GetExitCode(status), ExitCode::kCheckpoint);
  EXPECT_THAT(std::string(status.message()), HasSubstr("residual is PRE_LN"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("tied_embeddings is TIE_DECODER"));
  EXPECT_FALSE(*Exists(fs, "marian"));
}

TEST(Export, OfACheckpointWithoutAModelOrWithAnotherTokenizerIsRefused) {
  const std::unique_ptr<FileSystem> disk = MakePosixFileSystem();
  const std::string output = JoinPath(::testing::TempDir(), "export-golden");
  const absl::Status golden =
      ExportCheckpoint(*disk, "tests/golden/checkpoint-v1/step-00000003", output, {}).status();
  EXPECT_THAT(std::string(golden.message()), HasSubstr("does not say what its model is"));

  MemoryFileSystem fs;
  SaveModel(fs, SampleModel(DEEPNORM));
  ASSERT_TRUE(ReplaceFile(fs, "run/languages.txt", "de\nfr\n").ok());
  const absl::Status other = ExportCheckpoint(fs, kSource, "hf", {}).status();
  EXPECT_EQ(GetExitCode(other), ExitCode::kCheckpoint);
  EXPECT_THAT(std::string(other.message()), HasSubstr("holds the tokenizer "));
}

TEST(Export, IntoAFolderThatHoldsSomethingIsRefused) {
  MemoryFileSystem fs;
  SaveModel(fs, SampleModel(DEEPNORM));
  const absl::Status status = ExportCheckpoint(fs, kSource, "run", {}).status();
  EXPECT_EQ(GetExitCode(status), ExitCode::kBadConfig);
  EXPECT_THAT(std::string(status.message()), HasSubstr("'run' is not empty"));
  // An export leaves no tokenizer of a run behind, so this one is somebody's.
  ASSERT_TRUE(fs.MakeFolder("out").ok());
  ASSERT_TRUE(ReplaceFile(fs, JoinPath("out", kRunTokenizerFile), "somebody's").ok());
  EXPECT_EQ(GetExitCode(ExportCheckpoint(fs, kSource, "out", {}).status()), ExitCode::kBadConfig);
  EXPECT_EQ(*ReadWholeFile(fs, JoinPath("out", kRunTokenizerFile), 100), "somebody's");
}

TEST(Export, LeavesAloneWhatOthersHaveBesideItsOutputAndBehindLinks) {
  MemoryFileSystem fs;
  SaveModel(fs, SampleModel(DEEPNORM));
  ASSERT_TRUE(fs.MakeFolder("home").ok() && fs.MakeFolder("out.tmp").ok());
  ASSERT_TRUE(ReplaceFile(fs, "home/thesis", "years of work").ok());
  ASSERT_TRUE(ReplaceFile(fs, "out.tmp/file", "somebody's").ok());
  fs.MakeLink("home", "out.deepnet-unfinished");
  ASSERT_TRUE(ExportCheckpoint(fs, kSource, "out", {}).ok());
  EXPECT_EQ(*ReadWholeFile(fs, "home/thesis", 100), "years of work");
  EXPECT_EQ(fs.List("home")->size(), 1u);
  EXPECT_EQ(*ReadWholeFile(fs, "out.tmp/file", 100), "somebody's");
  EXPECT_EQ(*fs.TypeOf("out"), FileType::kFolder);
}

TEST(Export, StoppedAtAnyCallLeavesAWholeFolderOrNoneAndCanBeRunAgain) {
  int64_t calls = 0;
  std::string whole;
  {
    MemoryFileSystem fs;
    SaveModel(fs, SampleModel(DEEPNORM));
    const int64_t before = fs.num_changing_calls();
    ASSERT_TRUE(ExportCheckpoint(fs, kSource, "hf", {}).ok());
    calls = fs.num_changing_calls() - before;
    whole = *ReadWholeFile(fs, "hf/model.safetensors", 1 << 20);
  }
  for (int64_t stop = 0; stop < calls; stop += stop < calls - 10 ? 3 : 1) {
    MemoryFileSystem fs;
    SaveModel(fs, SampleModel(DEEPNORM));
    fs.StopAfter(stop);
    EXPECT_FALSE(ExportCheckpoint(fs, kSource, "hf", {}).ok()) << stop;
    fs.Crash(deepnet::testing::CrashKind::kLoseSome, static_cast<uint64_t>(stop));
    if (!*Exists(fs, "hf")) {
      ASSERT_TRUE(ExportCheckpoint(fs, kSource, "hf", {}).ok()) << stop;
    }
    EXPECT_EQ(*ReadWholeFile(fs, "hf/model.safetensors", 1 << 20), whole) << stop;
    EXPECT_TRUE(ImportFolder(fs, "hf", "again", {}).ok()) << stop;
  }
}

TEST(Export, FailsWhereAnyChangeOfFilesDoesAndLeavesNothing) {
  ExportOptions options;
  options.layout.max_shard_bytes = 1000;
  MemoryFileSystem good;
  FaultFileSystem recorded(good);
  SaveModel(good, SampleModel(DEEPNORM));
  ASSERT_TRUE(ExportCheckpoint(recorded, kSource, "hf", options).ok());
  const std::vector<std::string> changes = recorded.changes();
  for (const std::string& change : changes) {
    MemoryFileSystem memory;
    FaultFileSystem fs(memory);
    SaveModel(memory, SampleModel(DEEPNORM));
    fs.FailChange(change, absl::DataLossError("EIO"));
    const absl::Status status = ExportCheckpoint(fs, kSource, "hf", options).status();
    EXPECT_EQ(GetExitCode(status), ExitCode::kCheckpoint) << change << ": " << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("writing 'hf': "), HasSubstr("EIO")));
    EXPECT_FALSE(*Exists(memory, "hf.deepnet-unfinished")) << change;
  }
  const auto last = std::span(changes).last(3);
  EXPECT_THAT(
      last, ElementsAre("sync hf.deepnet-unfinished", "rename hf.deepnet-unfinished hf", "sync ."));
}

// The folder in memory has the name of a mount point.
TEST(Export, FillsAMountPointThatItCannotReplace) {
  MemoryFileSystem memory;
  FaultFileSystem fs(memory);
  SaveModel(memory, SampleModel(DEEPNORM));
  ASSERT_TRUE(memory.MakeFolder("/proc").ok());
  ASSERT_TRUE(ExportCheckpoint(fs, kSource, "/proc", {}).ok());
  const std::vector<std::string> changes = fs.changes();
  EXPECT_THAT(std::span(changes).last(3),
              ElementsAre("rename /proc/.deepnet-unfinished/config.json /proc/config.json",
                          "delete /proc/.deepnet-unfinished", "sync /proc"));
  EXPECT_THAT(*memory.List("/proc"),
              ElementsAre("config.json", "generation_config.json", "model.safetensors",
                          "source.spm", "target.spm", "tokenizer_config.json", "vocab.json"));
  EXPECT_TRUE(ImportFolder(memory, "/proc", "again", {}).ok());
}

TEST(Export, BeyondItsMemoryIsRefusedBeforeItBegins) {
  MemoryFileSystem fs;
  SaveModel(fs, SampleModel(DEEPNORM));
  const absl::Status status =
      ExportCheckpoint(fs, kSource, "hf", {.tool = {.memory_bytes = int64_t{9} << 20}}).status();
  EXPECT_EQ(GetExitCode(status), ExitCode::kDoesNotFit);
  EXPECT_FALSE(*Exists(fs, "hf"));
}

}  // namespace
}  // namespace deepnet

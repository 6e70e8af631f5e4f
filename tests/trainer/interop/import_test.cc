
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include "parallel/base/exit_code.h"
#include "tests/support/memory_file_system.h"
#include "tests/trainer/interop/interop_samples.h"
#include "tests/trainer/interop/m2m_folder.h"
#include "trainer/interop/hf_config.h"
#include "trainer/interop/interop.h"
#include "trainer/interop/safetensors.h"

namespace deepnet {
namespace {

using deepnet::testing::MemoryFileSystem;
using deepnet::testing::RandomWeights;
using deepnet::testing::ReadWeight;
using deepnet::testing::SampleModel;
using deepnet::testing::SampleTokenizer;
using deepnet::testing::SampleVocabulary;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kWidth = testing::M2mFolder::kWidth;

struct Memory {
  MemoryFileSystem fs_;
};

class M2mFolder : public Memory, public testing::M2mFolder {
 public:
  M2mFolder() : testing::M2mFolder(fs_, "m2m") {}

  std::string Refusal() {
    const absl::Status status = ImportFolder(fs_, "m2m", "run", {}).status();
    EXPECT_EQ(GetExitCode(status), ExitCode::kCheckpoint) << status;
    EXPECT_FALSE(*Exists(fs_, "run"));
    return std::string(status.message());
  }
};

TEST(ImportM2m, RowsAreThoseOfTheirPieces) {
  M2mFolder m2m;
  const auto report = ImportFolder(m2m.fs_, "m2m", "run", {});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->folder, "run/step-00000000");
  const Manifest manifest = *ReadManifest(m2m.fs_, report->folder);
  const ModelSpec& model = manifest.run().model();
  // Two pieces that vocab.json lacks are more than the folder's rows.
  ASSERT_EQ(model.vocabulary_size(), m2m.rows_ + 2);
  EXPECT_EQ(manifest.run().data().tags(), M2M);
  EXPECT_EQ(model.residual(), PRE_LN);
  EXPECT_EQ(model.dropout(), 0.25);
  EXPECT_EQ(model.attention_dropout(), 0.1);  // M2M100Config's default

  const std::string bytes = *ReadWholeFile(m2m.fs_, "run/tokenizer.model", 1 << 20);
  std::vector<std::string> languages = {"af", "de", "zu"};
  const std::string list = *ReadWholeFile(m2m.fs_, "run/languages.txt", 1 << 20);
  for (const std::string& language : languages) EXPECT_THAT(list, HasSubstr(language + "\n"));
  languages.clear();
  for (size_t at = 0; at < list.size();) {
    const size_t end = list.find('\n', at);
    languages.push_back(list.substr(at, end - at));
    at = end + 1;
  }
  const auto vocabulary = Vocabulary::FromBytes(bytes, languages);
  ASSERT_TRUE(vocabulary.ok()) << vocabulary.status();
  EXPECT_EQ(vocabulary->hash(), manifest.tokenizer_hash());
  EXPECT_EQ(vocabulary->size(), model.vocabulary_size());
  // Further pieces do not change how text is cut.
  EXPECT_EQ(vocabulary->Encode("winter and thunder"),
            SampleVocabulary().Encode("winter and thunder"));

  const Inventory inventory = Describe(model, {});
  const std::vector<float> table =
      ReadWeight(m2m.fs_, report->folder, manifest, inventory.parameters[0]);
  const auto row = [&](int32_t id) {
    return std::vector<float>(table.begin() + id * kWidth, table.begin() + (id + 1) * kWidth);
  };
  for (const int32_t id : {kBos, kPad, kEos, kUnk}) EXPECT_EQ(row(id), m2m.Row(id));
  for (const int32_t id : {4, 5}) EXPECT_EQ(row(id), m2m.Row(kUnk));
  for (int32_t id = 6; id < SampleVocabulary().first_tag(); ++id) {
    EXPECT_EQ(row(id), m2m.Row(m2m.row_of_.at(vocabulary->Piece(id)))) << id;
  }
  const int64_t first_language = m2m.rows_ - M2mFolder::kLanguages;
  EXPECT_EQ(row(*vocabulary->TagId("af")), m2m.Row(first_language));
  EXPECT_EQ(row(*vocabulary->TagId("de")), m2m.Row(first_language + 16));
  EXPECT_EQ(row(*vocabulary->TagId("zu")), m2m.Row(first_language + 99));
  // The dictionary's word, then the made-up ones, before the tags.
  const int32_t extra = SampleVocabulary().first_tag();
  EXPECT_EQ(row(extra), m2m.Row(m2m.row_of_.at("wordofthedictionary")));
  EXPECT_EQ(row(extra + 1), m2m.Row(m2m.rows_ - 2));
  EXPECT_EQ(row(extra + 2), m2m.Row(m2m.rows_ - 1));
  EXPECT_EQ(vocabulary->first_tag(), extra + 3);

  EXPECT_THAT(
      report->notes,
      ElementsAre("3 rows of the embedding belong to no piece of the tokenizer, such as "
                  "'wordofthedictionary': kept as pieces that text never has",
                  absl::StrCat("2 pieces of the tokenizer are not in vocab.json, such as '",
                               SampleVocabulary().Piece(kFirstPiece),
                               "': their rows are copies of that of <unk>, which M2M100Tokenizer "
                               "reads for them")));
  for (size_t i = 1; i < inventory.parameters.size(); ++i) {
    const Parameter& parameter = inventory.parameters[i];
    EXPECT_EQ(ReadWeight(m2m.fs_, report->folder, manifest, parameter),
              RandomWeights(parameter.NumElements(), static_cast<uint32_t>(i)));
  }
}

TEST(ImportM2m, EveryKeyBecomesItsFieldAndWhatIsLeftOutHasM2M100ConfigsValue) {
  ModelSpec expected;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(
      R"(encoder_layers: 12 decoder_layers: 12 d_model: 1024 ffn_dim: 4096 num_heads: 16
         residual: PRE_LN vocabulary_size: 128112 max_positions: 1024 activation: RELU
         dropout: 0.1 attention_dropout: 0.1 activation_dropout: 0 layer_norm_epsilon: 1e-5
         unscaled_embedding: false)",
      &expected));
  EXPECT_EQ(ModelOfM2m(HfConfig())->DebugString(), expected.DebugString());
  HfConfig config;
  config.set_encoder_layers(3);
  config.set_decoder_layers(2);
  config.set_d_model(24);
  config.set_encoder_ffn_dim(48);
  config.set_decoder_ffn_dim(48);
  config.set_encoder_attention_heads(6);
  config.set_decoder_attention_heads(6);
  config.set_vocab_size(77);
  config.set_max_position_embeddings(33);
  config.set_activation_function("gelu");
  config.set_dropout(0.2);
  config.set_attention_dropout(0.3);
  config.set_activation_dropout(0.4);
  config.set_scale_embedding(false);
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(
      R"(encoder_layers: 3 decoder_layers: 2 d_model: 24 ffn_dim: 48 num_heads: 6
         residual: PRE_LN vocabulary_size: 77 max_positions: 33 activation: GELU
         dropout: 0.2 attention_dropout: 0.3 activation_dropout: 0.4 layer_norm_epsilon: 1e-5
         unscaled_embedding: true)",
      &expected));
  EXPECT_EQ(ModelOfM2m(config)->DebugString(), expected.DebugString());
}

TEST(ImportM2m, WhatNoModelHereComputesIsNamedAllAtOnce) {
  M2mFolder m2m;
  m2m.Write(
      "config.json",
      absl::StrReplaceAll(m2m.Config(), {{"\"decoder_ffn_dim\": 12", "\"decoder_ffn_dim\": 16"},
                                         {"\"d_model\": 8",
                                          "\"d_model\": 8, "
                                          "\"activation_function\": \"swish\", "
                                          "\"tie_word_embeddings\": false, "
                                          "\"pad_token_id\": 5, \"bos_token_id\": 6, "
                                          "\"eos_token_id\": 7, "
                                          "\"decoder_start_token_id\": 0"}}));
  const std::string refusal = m2m.Refusal();
  EXPECT_THAT(refusal, HasSubstr("decoder_ffn_dim is 16"));
  EXPECT_THAT(refusal, HasSubstr("activation_function is swish"));
  EXPECT_THAT(refusal, HasSubstr("tie_word_embeddings is false"));
  EXPECT_THAT(refusal, HasSubstr("decoder_start_token_id is 0"));
  EXPECT_THAT(refusal, HasSubstr("pad_token_id is 5"));
  EXPECT_THAT(refusal, HasSubstr("bos_token_id is 6"));
  EXPECT_THAT(refusal, HasSubstr("eos_token_id is 7"));
  HfConfig config;
  config.set_vocab_size(4);
  config.set_encoder_layers(0);
  config.set_decoder_layers(0);
  config.set_d_model(10);
  config.set_encoder_ffn_dim(0);
  config.set_decoder_ffn_dim(0);
  config.set_encoder_attention_heads(4);
  config.set_decoder_attention_heads(5);
  config.set_max_position_embeddings(1);
  const absl::Status status = ModelOfM2m(config).status();
  EXPECT_EQ(GetExitCode(status), ExitCode::kCheckpoint);
  EXPECT_EQ(std::string(status.message()),
            "this M2M-100 cannot be imported: vocab_size is 4: too small; encoder_layers is 0: at "
            "least 1; decoder_layers is 0: at least 1; d_model is 10: no multiple of the heads; "
            "decoder_ffn_dim is 0: must equal encoder_ffn_dim here; decoder_attention_heads is 5: "
            "must equal encoder_attention_heads here; max_position_embeddings is 1: too small");
}

TEST(ImportM2m, TheRunIsCompletedAndLayersThatWereDroppedAreNoted) {
  for (const char* key : {"encoder_layerdrop", "decoder_layerdrop"}) {
    M2mFolder m2m;
    m2m.Write(
        "config.json",
        absl::StrReplaceAll(m2m.Config(),
                            {{"\"d_model\"", absl::StrCat("\"", key, "\": 0.05, \"d_model\"")}}));
    m2m.Write("tokenizer_config.json", R"({"language_codes": "m2m100"})");
    int64_t last = 0, all = 0;
    ImportOptions options;
    options.complete = [](RunSpec run) {
      EXPECT_EQ(run.name(), "m2m_100");
      run.set_seed(11);
      return run;
    };
    options.tool.progress = [&](int64_t done, int64_t total) {
      EXPECT_GT(done, last);
      last = done;
      all = total;
    };
    const auto report = ImportFolder(m2m.fs_, "m2m", "run", options);
    ASSERT_TRUE(report.ok()) << report.status();
    const Manifest manifest = *ReadManifest(m2m.fs_, report->folder);
    EXPECT_EQ(manifest.run().seed(), 11u);
    EXPECT_EQ(manifest.run().name(), "m2m_100");
    EXPECT_EQ(last, manifest.files(0).bytes());
    EXPECT_EQ(all, manifest.files(0).bytes());
    ASSERT_EQ(report->notes.size(), 3u);
    EXPECT_EQ(report->notes[2],
              "layerdrop is not applied in training here: all layers are always computed");
  }
}

// Lengths are written in groups of seven bits.
TEST(ImportM2m, AWordOfAnyLengthKeepsItsRow) {
  for (const size_t length : {1, 123, 124, 127, 128, 300}) {
    M2mFolder m2m;
    const std::string word(length, '~');
    const std::string json = *ReadWholeFile(m2m.fs_, "m2m/vocab.json", 1 << 20);
    m2m.Write("vocab.json", absl::StrReplaceAll(json, {{"wordofthedictionary", word}}));
    ASSERT_TRUE(ImportFolder(m2m.fs_, "m2m", "run", {}).ok());
    const auto vocabulary =
        Vocabulary::FromBytes(*ReadWholeFile(m2m.fs_, "run/tokenizer.model", 1 << 20), {"de"});
    ASSERT_TRUE(vocabulary.ok()) << vocabulary.status();
    const int32_t extra = SampleVocabulary().first_tag();
    EXPECT_EQ(vocabulary->Piece(extra), word);
    EXPECT_EQ(vocabulary->first_tag(), extra + 3);
  }
}

TEST(ImportM2m, OnlyLanguagesThatHaveARowAreThere) {
  M2mFolder m2m;
  const std::string size = "\"vocab_size\": ";
  m2m.Write("config.json",
            absl::StrReplaceAll(m2m.Config(), {{absl::StrCat(size, m2m.rows_),
                                                absl::StrCat(size, m2m.rows_ - 99)}}));
  const auto report = ImportFolder(m2m.fs_, "m2m", "run", {});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(*ReadWholeFile(m2m.fs_, "run/languages.txt", 100), "af\nam\nar\n");
}

TEST(ImportM2m, TensorsThatDoNotFitAreNamed) {
  M2mFolder m2m;
  m2m.WriteTensors("model.encoder.layers.7.fc1.weight");
  EXPECT_THAT(
      m2m.Refusal(),
      HasSubstr("'m2m': tensor 'model.encoder.layers.7.fc1.weight' is none of this model's"));
  for (const std::string copy :
       {"lm_head.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight",
        "model.encoder.embed_positions.weights", "model.decoder.embed_positions.weights"}) {
    m2m.WriteTensors(copy);
    EXPECT_TRUE(ImportFolder(m2m.fs_, "m2m", copy, {}).ok()) << copy;
  }
  const std::string size = "\"vocab_size\": ";
  m2m.Write("config.json",
            absl::StrReplaceAll(m2m.Config(), {{absl::StrCat(size, m2m.rows_),
                                                absl::StrCat(size, m2m.rows_ + 1)}}));
  EXPECT_THAT(m2m.Refusal(), HasSubstr("'model.shared.weight' has fewer rows than vocab_size"));
  m2m.Write("config.json", absl::StrReplaceAll(
                               m2m.Config(), {{"\"decoder_layers\": 1", "\"decoder_layers\": 2"}}));
  EXPECT_THAT(m2m.Refusal(), HasSubstr("'model.decoder.layers.1."));
  m2m.Write("config.json",
            absl::StrReplaceAll(m2m.Config(), {{"_ffn_dim\": 12", "_ffn_dim\": 13"}}));
  EXPECT_THAT(m2m.Refusal(), HasSubstr("is 12x8; its config.json asks for 13x8"));
}

TEST(ImportM2m, AVocabularyThatDoesNotFitIsNamed) {
  M2mFolder m2m;
  m2m.Write("vocab.json", R"({"<s>": 0, "<pad>": 1, "</s>": 2, "x": 3, "<unk>": 4})");
  EXPECT_THAT(m2m.Refusal(), HasSubstr("'<unk>' must be 3"));
  m2m.Write("vocab.json", R"({"<s>": 5, "<pad>": 1, "</s>": 2, "x": 3, "<unk>": 4})");
  EXPECT_THAT(m2m.Refusal(), HasSubstr("'m2m/vocab.json': '<s>' must be 0"));
  m2m.Write("vocab.json", R"({"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "x": 123456})");
  EXPECT_THAT(m2m.Refusal(), HasSubstr("'x' is 123456, but config.json has vocab_size"));
  m2m.Write("vocab.json",
            absl::StrCat(R"({"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "x": )", m2m.rows_, "}"));
  EXPECT_THAT(m2m.Refusal(), HasSubstr(absl::StrCat("'x' is ", m2m.rows_, ", but config.json")));
  m2m.Write("vocab.json", "{");
  EXPECT_THAT(m2m.Refusal(), HasSubstr("'m2m/vocab.json'"));
  m2m.Write("tokenizer_config.json", R"({"language_codes": "wmt21"})");
  EXPECT_THAT(m2m.Refusal(), HasSubstr("language_codes is 'wmt21'"));
  m2m.Write("tokenizer_config.json", "{}");
  const std::string size = "\"vocab_size\": ";
  m2m.Write(
      "config.json",
      absl::StrReplaceAll(m2m.Config(), {{absl::StrCat(size, m2m.rows_), size + "2147483647"}}));
  EXPECT_THAT(m2m.Refusal(), HasSubstr("model.vocabulary_size: 2147483647: must be at most"));
}

TEST(Import, OfAnotherModelTypeIsRefusedByName) {
  MemoryFileSystem fs;
  deepnet::testing::SaveModel(fs, SampleModel(DEEPNORM));
  ASSERT_TRUE(
      ExportCheckpoint(fs, "run/step-00000007", "marian", {.format = ExportFormat::kMarian}).ok());
  const absl::Status status = ImportFolder(fs, "marian", "again", {}).status();
  EXPECT_EQ(GetExitCode(status), ExitCode::kCheckpoint);
  EXPECT_EQ(std::string(status.message()),
            "'marian': model_type is 'marian'; imported are m2m_100 and what `export --format "
            "safetensors` wrote (a Marian model has other positions and starts its decoder "
            "otherwise)");
  ASSERT_TRUE(fs.MakeFolder("bart").ok());
  ASSERT_TRUE(ReplaceFile(fs, "bart/config.json", R"({"model_type": "bart"})").ok());
  EXPECT_EQ(std::string(ImportFolder(fs, "bart", "again", {}).status().message()),
            "'bart': model_type is 'bart'; imported are m2m_100 and what `export --format "
            "safetensors` wrote");
  const absl::Status nowhere = ImportFolder(fs, "nowhere", "again", {}).status();
  EXPECT_EQ(GetExitCode(nowhere), ExitCode::kCheckpoint);
  EXPECT_THAT(std::string(nowhere.message()), HasSubstr("nowhere/config.json"));
}

TEST(Import, IntoAFolderThatHoldsSomethingOrOfNoModelOrWithoutMemoryIsRefused) {
  MemoryFileSystem fs;
  deepnet::testing::SaveModel(fs, SampleModel(DEEPNORM));
  ASSERT_TRUE(ExportCheckpoint(fs, "run/step-00000007", "hf", {}).ok());
  const absl::Status full = ImportFolder(fs, "hf", "run", {}).status();
  EXPECT_EQ(GetExitCode(full), ExitCode::kBadConfig);
  EXPECT_THAT(std::string(full.message()), HasSubstr("'run' is not empty"));
  const absl::Status little =
      ImportFolder(fs, "hf", "again", {.tool = {.memory_bytes = 1000}}).status();
  EXPECT_EQ(GetExitCode(little), ExitCode::kDoesNotFit);
  EXPECT_THAT(std::string(little.message()), HasSubstr("reading 'hf/config.json' takes"));
  const std::string json = *ReadWholeFile(fs, "hf/config.json", 1 << 20);
  EXPECT_THAT(json, HasSubstr("\n \"decoder_start_token_id\": 2,\n"));  // as transformers reads it
  for (const auto& [from, to, refusal] :
       {std::tuple("\"dropout\": 0.1", "\"dropout\": 1.5", "model.dropout: 1.5"),
        std::tuple("\"d_model\": 8", "\"width\": 8",
                   "'hf/config.json': its run has names of before version 0.1.0")}) {
    ASSERT_TRUE(ReplaceFile(fs, "hf/config.json", absl::StrReplaceAll(json, {{from, to}})).ok());
    const absl::Status status = ImportFolder(fs, "hf", "again", {}).status();
    EXPECT_EQ(GetExitCode(status), ExitCode::kCheckpoint);
    EXPECT_THAT(std::string(status.message()), HasSubstr(refusal));
  }
  EXPECT_FALSE(*Exists(fs, "again"));
}

TEST(Import, SaysWhatItWasDoingWhereAFileCannotBeWritten) {
  MemoryFileSystem fs;
  deepnet::testing::SaveModel(fs, SampleModel(DEEPNORM));
  ASSERT_TRUE(ExportCheckpoint(fs, "run/step-00000007", "hf", {}).ok());
  std::set<std::string> doing;
  absl::Status status;
  for (int64_t stop = 0;; ++stop) {
    ASSERT_LT(stop, 1000) << status;
    fs.StopAfter(stop);
    status = ImportFolder(fs, "hf", absl::StrCat("stopped", stop), {}).status();
    fs.Crash(deepnet::testing::CrashKind::kKeepAll, /*seed=*/0);
    const std::string message(status.message());
    if (status.ok()) break;
    EXPECT_EQ(GetExitCode(status), ExitCode::kCheckpoint) << status;
    doing.insert(message.substr(0, message.find(": ")));
  }
  EXPECT_THAT(doing, ::testing::IsSupersetOf({"writing the tokenizer", "importing"}));
}

// transformers repeats tied matrices; what we export holds each once.
TEST(Import, OfAnExportWithATensorTooManyIsRefused) {
  MemoryFileSystem fs;
  deepnet::testing::SaveModel(fs, SampleModel(DEEPNORM));
  ASSERT_TRUE(ExportCheckpoint(fs, "run/step-00000007", "hf", {}).ok());
  const auto folder = SafetensorsFolder::Open(fs, "hf", {});
  ASSERT_TRUE(folder.ok()) << folder.status();
  ASSERT_TRUE(fs.MakeFolder("copies").ok());
  std::vector<OutgoingTensor> tensors;
  const auto add = [&](const std::string& name, const IncomingTensor& from) {
    tensors.push_back({name, from.shape, [&](int64_t first, std::span<float> into) {
                         return (*folder)->Read(from, first, into);
                       }});
  };
  for (const auto& [name, tensor] : (*folder)->tensors()) add(name, tensor);
  add("lm_head.weight", (*folder)->tensors().at("model.shared.weight"));
  ASSERT_TRUE(WriteSafetensors(fs, "copies", tensors, {}, {}).ok());
  for (const char* file : {"config.json", "source.spm"}) {
    const auto contents = ReadWholeFile(fs, JoinPath("hf", file), 1 << 20);
    ASSERT_TRUE(contents.ok() && ReplaceFile(fs, JoinPath("copies", file), *contents).ok());
  }
  EXPECT_THAT(std::string(ImportFolder(fs, "copies", "again", {}).status().message()),
              HasSubstr("tensor 'lm_head.weight' is none of this model's"));
}

TEST(Import, OfAnExportWithAnotherTokenizerIsRefused) {
  MemoryFileSystem fs;
  deepnet::testing::SaveModel(fs, SampleModel(DEEPNORM));
  ASSERT_TRUE(ExportCheckpoint(fs, "run/step-00000007", "hf", {}).ok());
  ASSERT_TRUE(ReplaceFile(fs, "hf/source.spm",
                          SampleTokenizer() + std::string("\x0a\x05\x0a\x01\x7e\x18\x05"))
                  .ok());
  const absl::Status status = ImportFolder(fs, "hf", "again", {}).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("'hf/source.spm' has the hash"));
}

}  // namespace
}  // namespace deepnet

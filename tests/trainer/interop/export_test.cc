#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel/base/exit_code.h"
#include "tests/support/memory_file_system.h"
#include "tests/trainer/interop/interop_samples.h"
#include "trainer/checkpoint/format.h"
#include "trainer/interop/hf_config.h"
#include "trainer/interop/interop.h"
#include "trainer/interop/marian.h"
#include "trainer/interop/safetensors.h"
#include "trainer/model/scheme.h"

namespace deepnet {
namespace {

using deepnet::testing::MemoryFileSystem;
using deepnet::testing::ModelWeights;
using deepnet::testing::ReadWeight;
using deepnet::testing::SampleModel;
using deepnet::testing::SampleTokenizer;
using deepnet::testing::SampleVocabulary;
using deepnet::testing::SaveModel;
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
  std::vector<float> values(static_cast<size_t>(NumElements(found->second.shape)));
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

TEST(DifferencesFromM2m, NamesAnotherEpsilon) {
  ModelSpec model = SampleModel(PRE_LN);
  EXPECT_THAT(DifferencesFromM2m(model), IsEmpty());
  model.set_layer_norm_epsilon(1e-6);
  EXPECT_THAT(DifferencesFromM2m(model), ::testing::ElementsAre("layer_norm_epsilon is 1e-06"));
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

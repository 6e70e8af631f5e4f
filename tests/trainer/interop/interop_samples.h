// A small model with random weights, its tokenizer and its checkpoint, for the tests of exports and
// imports.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include <gtest/gtest.h>

#include "parallel/base/file_system.h"
#include "tests/support/save_checkpoint.h"
#include "trainer/checkpoint/format.h"
#include "trainer/data/vocabulary.h"
#include "trainer/model/describe.h"

namespace deepnet::testing {

// Learned from a few lines; the same bytes each time.
inline const std::string& SampleTokenizer() {
  static const std::string* const bytes = [] {
    auto* model = new std::string;
    std::vector<std::string> lines;
    for (const char* word : {"water", "winter", "window", "wonder", "under", "thunder", "dinner"}) {
      for (const char* other : {"and", "or", "with", "without"}) {
        lines.push_back(absl::StrCat(word, " ", other, " wind ", other, " ", word));
      }
    }
    const std::string error =
        TrainSentencePieces({.pieces = 40, .type = "unigram", .threads = 1}, lines, model);
    EXPECT_EQ(error, "");
    return model;
  }();
  return *bytes;
}

inline Vocabulary SampleVocabulary() {
  absl::StatusOr<Vocabulary> vocabulary = Vocabulary::FromBytes(SampleTokenizer(), {"de", "en"});
  EXPECT_TRUE(vocabulary.ok()) << vocabulary.status();
  return *std::move(vocabulary);
}

// 2 + 1 layers, width 8; every field that an export has to carry differs from its default.
inline ModelSpec SampleModel(Residual residual) {
  ModelSpec model;
  model.set_encoder_layers(2);
  model.set_decoder_layers(1);
  model.set_d_model(8);
  model.set_ffn_dim(12);
  model.set_num_heads(2);
  model.set_residual(residual);
  model.set_vocabulary_size(SampleVocabulary().size());
  model.set_max_positions(16);
  model.set_dropout(0.1);
  model.set_attention_dropout(0.2);
  model.set_activation_dropout(0.3);
  model.set_layer_norm_epsilon(1e-5);
  return model;
}

// Values of one parameter, a function of `seed`; no row is zero.
inline std::vector<float> RandomWeights(int64_t elements, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> weights(static_cast<size_t>(elements));
  for (float& weight : weights) weight = normal(random);
  return weights;
}

// Values of parameter `index` of SaveModel()'s checkpoint.
inline std::vector<float> ModelWeights(const Inventory& inventory, size_t index) {
  return RandomWeights(inventory.parameters[index].NumElements(), static_cast<uint32_t>(index));
}

// Saves run/step-00000007 with random weights and a first moment, and the tokenizer beside it. Its
// run is `run` with a name, a learning rate and the model.
inline void SaveModel(FileSystem& fs, const ModelSpec& model, RunSpec run = {}) {
  const Inventory inventory = Describe(model, {});
  std::vector<std::vector<float>> weights;
  for (size_t i = 0; i < inventory.parameters.size(); ++i) {
    weights.push_back(ModelWeights(inventory, i));
  }
  std::vector<NamedTensor> tensors;
  for (size_t i = 0; i < weights.size(); ++i) {
    const Parameter& parameter = inventory.parameters[i];
    tensors.push_back({kWeightPrefix + parameter.name, parameter.shape, weights[i]});
    tensors.push_back({kMoment1Prefix + parameter.name, parameter.shape, weights[i]});
  }
  Manifest manifest;
  manifest.set_step(7);
  manifest.mutable_data()->set_step(7);
  manifest.set_optimizer_steps(6);
  manifest.set_source_tokens(1000);
  manifest.set_target_tokens(900);
  run.set_name("sample");
  run.mutable_optim()->set_learning_rate(1.0 / 3.0);
  *run.mutable_model() = model;
  *manifest.mutable_run() = std::move(run);
  manifest.set_inventory_hash(inventory.Hash());
  manifest.set_corpus_hash("c0ffee");
  manifest.set_tokenizer_hash(SampleVocabulary().hash());
  manifest.set_block_bytes(64);
  ASSERT_TRUE(SaveCheckpoint(fs, "run", manifest, tensors).ok());
  ASSERT_TRUE(ReplaceFile(fs, JoinPath("run", kRunTokenizerFile), SampleTokenizer()).ok());
  ASSERT_TRUE(ReplaceFile(fs, JoinPath("run", kRunLanguagesFile), "de\nen\n").ok());
}

// The weight `name` of a checkpoint.
inline std::vector<float> ReadWeight(FileSystem& fs, const std::string& folder,
                                     const Manifest& manifest, const Parameter& parameter) {
  std::vector<float> weights(static_cast<size_t>(parameter.NumElements()));
  const MutableNamedTensor into[] = {{kWeightPrefix + parameter.name, parameter.shape, weights}};
  const absl::Status status = ReadTensors(fs, folder, manifest, into);
  EXPECT_TRUE(status.ok()) << status;
  return weights;
}

}  // namespace deepnet::testing

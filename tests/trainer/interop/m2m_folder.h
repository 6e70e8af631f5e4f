// An M2M-100 folder as transformers writes it, with random weights, for the tests of its import.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include <gtest/gtest.h>

#include "parallel/base/file_system.h"
#include "parallel/base/json.h"
#include "tests/trainer/interop/interop_samples.h"
#include "trainer/interop/hf_config.h"
#include "trainer/interop/safetensors.h"

namespace deepnet::testing {

// The sample tokenizer's pieces in reversed order, the first two of them left out, one word that it
// does not know, 100 languages, two made-up rows; 2 + 1 layers.
class M2mFolder {
 public:
  static constexpr int kWidth = 8;
  static constexpr int64_t kLanguages = 100 + 2;  // with the two made-up rows

  // Writes it. `files` is borrowed.
  M2mFolder(FileSystem& files, std::string folder) : files_(files), folder_(std::move(folder)) {
    std::vector<std::string> pieces;
    const Vocabulary vocabulary = SampleVocabulary();
    for (int32_t id = vocabulary.first_tag() - 1; id >= kFirstPiece + 2; --id) {
      pieces.push_back(vocabulary.Piece(id));
    }
    pieces.insert(pieces.begin() + 3, "wordofthedictionary");
    std::string json = R"({"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3)";
    for (const std::string& piece : pieces) {
      row_of_[piece] = kFirstPiece + static_cast<int64_t>(row_of_.size());
      absl::StrAppend(&json, ", ", JsonQuoted(piece), ": ", row_of_[piece]);
    }
    rows_ = kFirstPiece + static_cast<int64_t>(pieces.size()) + kLanguages;
    EXPECT_TRUE(files_.MakeFolder(folder_).ok());
    Write("vocab.json", json + "}");
    Write("sentencepiece.bpe.model", SampleTokenizer());
    Write("config.json", Config());
    WriteTensors({});
  }

  std::string Config() const {
    return absl::StrReplaceAll(
        R"({"model_type": "m2m_100", "vocab_size": VOCAB, "d_model": 8,
  "encoder_layers": 2, "decoder_layers": 1, "encoder_ffn_dim": 12, "decoder_ffn_dim": 12,
  "encoder_attention_heads": 2, "decoder_attention_heads": 2, "max_position_embeddings": 16,
  "dropout": 0.25, "torch_dtype": "float32", "bad_words_ids": [[1]], "id2label": {"0": "x"}})",
        {{"VOCAB", absl::StrCat(rows_)}});
  }

  void Write(const std::string& name, const std::string& contents) {
    EXPECT_TRUE(ReplaceFile(files_, JoinPath(folder_, name), contents).ok());
  }

  // The model's, with one of another name behind them if `extra` is given.
  void WriteTensors(const std::string& extra) {
    ModelSpec model = SampleModel(PRE_LN);
    model.set_vocabulary_size(rows_);
    const Inventory inventory = Describe(model, {});
    std::vector<OutgoingTensor> tensors;
    for (size_t i = 0; i <= inventory.parameters.size(); ++i) {
      if (i == inventory.parameters.size() && extra.empty()) break;
      const Parameter& parameter = inventory.parameters[i % inventory.parameters.size()];
      std::vector<float> values = RandomWeights(parameter.NumElements(), static_cast<uint32_t>(i));
      tensors.push_back({.name = i == inventory.parameters.size() ? extra : HfName(parameter.name),
                         .shape = parameter.shape,
                         .read = [values](int64_t first, std::span<float> into) {
                           std::copy_n(values.begin() + first, into.size(), into.begin());
                           return absl::OkStatus();
                         }});
    }
    const std::string file = JoinPath(folder_, "model.safetensors");
    if (*Exists(files_, file)) {
      ASSERT_TRUE(files_.Delete(file).ok());
    }
    ASSERT_TRUE(WriteSafetensors(files_, folder_, tensors, {}, {}).ok());
  }

  // Values of the embedding.
  std::vector<float> Row(int64_t row) const {
    const std::vector<float> all = RandomWeights(rows_ * kWidth, 0);
    return {all.begin() + row * kWidth, all.begin() + (row + 1) * kWidth};
  }

  std::map<std::string, int64_t> row_of_;  // of the pieces in vocab.json
  int64_t rows_ = 0;

 private:
  FileSystem& files_;
  const std::string folder_;
};

}  // namespace deepnet::testing

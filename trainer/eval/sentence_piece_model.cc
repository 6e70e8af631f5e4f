#include "trainer/eval/sentence_piece_model.h"

#include <sentencepiece_processor.h>

#include "parallel/base/check.h"

namespace deepnet {

SentencePieceModel::SentencePieceModel()
    : processor_(std::make_unique<sentencepiece::SentencePieceProcessor>()) {}

SentencePieceModel::~SentencePieceModel() = default;

std::unique_ptr<SentencePieceModel> SentencePieceModel::Load(const std::string& file,
                                                             std::string& error) {
  std::unique_ptr<SentencePieceModel> model(new SentencePieceModel);
  const auto status = model->processor_->Load(file);
  if (status.ok()) return model;
  error = status.ToString();
  return nullptr;
}

std::vector<std::string> SentencePieceModel::Encode(std::string_view text) const {
  std::vector<std::string> pieces;
  const auto status = processor_->Encode(text, &pieces);
  DEEPNET_CHECK(status.ok()) << status.ToString();
  return pieces;
}

}  // namespace deepnet

#include "trainer/data/sentence_pieces.h"

#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <sstream>
#include <unordered_map>
#include <utility>

namespace deepnet {
namespace {

class LoadedPieces : public SentencePieces {
 public:
  sentencepiece::SentencePieceProcessor& processor() { return processor_; }

  int size() const override { return processor_.GetPieceSize(); }
  std::string Piece(int id) const override { return processor_.IdToPiece(id); }
  bool IsUnknown(int id) const override { return processor_.IsUnknown(id); }
  bool IsControl(int id) const override { return processor_.IsControl(id); }
  std::vector<int> Encode(std::string_view text) const override {
    return processor_.EncodeAsIds(text);
  }
  std::string Decode(const std::vector<int>& ids) const override {
    return processor_.DecodeIds(ids);
  }

 private:
  sentencepiece::SentencePieceProcessor processor_;
};

// Hands a vector to the trainer, which copies what it needs.
class VectorIterator : public sentencepiece::SentenceIterator {
 public:
  explicit VectorIterator(const std::vector<std::string>& sentences) : sentences_(sentences) {}
  bool done() const override { return next_ >= sentences_.size(); }
  void Next() override { ++next_; }
  const std::string& value() const override { return sentences_[next_]; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  const std::vector<std::string>& sentences_;
  size_t next_ = 0;
};

std::string Number(double value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

}  // namespace

std::unique_ptr<SentencePieces> SentencePieces::Load(std::string_view model_bytes,
                                                     std::string* error) {
  auto pieces = std::make_unique<LoadedPieces>();
  const auto status = pieces->processor().LoadFromSerializedProto(model_bytes);
  if (!status.ok()) {
    *error = status.ToString();
    return nullptr;
  }
  return pieces;
}

std::string TrainSentencePieces(const PieceTraining& training,
                                const std::vector<std::string>& sentences,
                                std::string* model_bytes) {
  const std::unordered_map<std::string, std::string> arguments = {
      {"model_type", training.type},
      {"vocab_size", std::to_string(training.pieces)},
      {"character_coverage", Number(training.character_coverage)},
      {"num_threads", std::to_string(training.threads)},
      {"hard_vocab_limit", "false"},
      {"train_extremely_large_corpus", "true"},
      {"bos_id", "0"},
      {"pad_id", "1"},
      {"eos_id", "2"},
      {"unk_id", "3"},
      {"minloglevel", "2"},
  };
  sentencepiece::SetRandomGeneratorSeed(0);
  VectorIterator iterator(sentences);
  const auto status = sentencepiece::SentencePieceTrainer::Train(arguments, &iterator, model_bytes);
  return status.ok() ? std::string() : status.ToString();
}

}  // namespace deepnet

// The only door to the SentencePiece library. Its headers define a namespace absl of their own, so
// the code behind this header sees no abseil, and errors are strings here.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace deepnet {

// A loaded model, with its own ids. Immutable, safe from several threads.
class SentencePieces {
 public:
  // Null if `model_bytes` is no model; *error then says why.
  static std::unique_ptr<SentencePieces> Load(std::string_view model_bytes, std::string* error);

  virtual ~SentencePieces() = default;
  virtual int size() const = 0;
  virtual std::string Piece(int id) const = 0;
  virtual bool IsUnknown(int id) const = 0;  // the piece for characters the model does not know
  virtual bool IsControl(int id) const = 0;  // never produced by text
  virtual std::vector<int> Encode(std::string_view text) const = 0;
  virtual std::string Decode(const std::vector<int>& ids) const = 0;
};

struct PieceTraining {
  int pieces = 8000;                // specials included
  double character_coverage = 1.0;  // 0 to 1
  std::string type = "unigram";     // or "bpe"
  int threads = 2;                  // > 0
};

// Learns a model from `sentences`; its specials have this project's ids. Fewer pieces than asked
// for come out where the text holds no more. The same input gives the same bytes. Returns an error
// text, empty if all went well.
std::string TrainSentencePieces(const PieceTraining& training,
                                const std::vector<std::string>& sentences,
                                std::string* model_bytes);

}  // namespace deepnet

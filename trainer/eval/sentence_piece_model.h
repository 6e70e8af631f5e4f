// A SentencePiece model behind standard types only: SentencePiece's header puts its own string_view
// into namespace absl, so that no file can include both it and Abseil.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace sentencepiece {
class SentencePieceProcessor;
}

namespace deepnet {

class SentencePieceModel {
 public:
  // Reads `file`. On failure returns null and says why in `error`.
  static std::unique_ptr<SentencePieceModel> Load(const std::string& file, std::string& error);

  ~SentencePieceModel();

  // Pieces of `text` as written in the model, "▁" for a space.
  std::vector<std::string> Encode(std::string_view text) const;

 private:
  SentencePieceModel();

  std::unique_ptr<sentencepiece::SentencePieceProcessor> processor_;
};

}  // namespace deepnet

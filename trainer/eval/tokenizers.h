// The tokenizers that cut text into words before BLEU counts them: sacreBLEU 2.x's, token for
// token. "13a" makes of "It costs $5.50, doesn't it?": It costs $ 5.50 , doesn't it ?
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace deepnet {

// Cuts a segment (UTF-8, one sentence; white space at its end does not count) into tokens. Pure.
struct BleuTokenizer {
  std::string name;  // as "tok:" of the signature has it
  std::function<std::vector<std::string>(std::string_view segment)> tokenize;
};

inline constexpr char kSentencePieces[] = "spm";  // the name of the next one

// SentencePiece's pieces: spBLEU. Error: kData naming the file when it is not a SentencePiece
// model, kBadConfig when it is no file.
absl::StatusOr<BleuTokenizer> MakeSentencePieceTokenizer(const std::string& model_file);

// Returns one of sacreBLEU's by name. Fails with InvalidArgument naming what there is.
//   13a   mteval-v13a.pl's rules, WMT's default; for languages that put spaces between words
//   zh    every Chinese character is a token; the rest by the rules of 13a
//   char  every code point that is not white space is a token
//   none  tokens are what stands between white space
absl::StatusOr<BleuTokenizer> MakeTokenizer(std::string_view name);

// The tokenizer for a target language tag ("de", "zh_CN", "pt-BR"): zh for Chinese; char for
// Japanese, Korean, Thai, Lao, Khmer and Burmese (sacreBLEU would take MeCab for the first two,
// which needs dictionaries, and 13a for the others, which does not cut where there are no spaces);
// 13a else.
std::string TokenizerNameForLanguage(std::string_view language);

}  // namespace deepnet

// sacreBLEU states its rules as four regular expressions applied one after the other; each is a
// line of TokenizeMarks. They may run over bytes: every class they name is ASCII or the complement
// of one, and a byte of a longer code point behaves as the whole code point would (it never starts
// a match, and where "any other character" is copied, copying its nearest byte leaves the rest in
// place).
#include "trainer/eval/tokenizers.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

#include "parallel/base/exit_code.h"
#include "parallel/base/file_system.h"
#include "parallel/base/utf8.h"
#include "trainer/data/sentence_pieces.h"

namespace deepnet {
namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// ASCII punctuation without ' , - . and the space.
bool IsSeparate(char c) {
  return (c >= '{' && c <= '~') || (c >= '[' && c <= '`') || (c >= ' ' && c <= '&') ||
         (c >= '(' && c <= '+') || (c >= ':' && c <= '@') || c == '/';
}

bool IsPeriodOrComma(char c) { return c == '.' || c == ','; }

// s/([separate])/ \1 /g
std::string SpaceAroundMarks(std::string_view in) {
  std::string out;
  for (const char c : in) {
    out += IsSeparate(c) ? std::string{' ', c, ' '} : std::string{c};
  }
  return out;
}

// Copies `in`; where two neighbours match, they stand between `before` and `after` and with a space
// between them. This is what a regular expression of two characters does with /g.
template <typename Match>
std::string SplitPairs(std::string_view in, Match match, const char* before, const char* after) {
  std::string out;
  for (size_t i = 0; i < in.size(); ++i) {
    if (i + 1 < in.size() && match(in[i], in[i + 1])) {
      out.append(before).append(1, in[i]).append(1, ' ').append(1, in[i + 1]).append(after);
      ++i;
    } else {
      out += in[i];
    }
  }
  return out;
}

std::vector<std::string> TokenizeMarks(std::string_view line) {
  const auto after_other = [](char a, char b) { return !IsDigit(a) && IsPeriodOrComma(b); };
  const auto before_other = [](char a, char b) { return IsPeriodOrComma(a) && !IsDigit(b); };
  const auto dash = [](char a, char b) { return IsDigit(a) && b == '-'; };
  std::string text = SpaceAroundMarks(line);
  text = SplitPairs(text, after_other, "", " ");   // s/([^0-9])([.,])/\1 \2 /g
  text = SplitPairs(text, before_other, " ", "");  // s/([.,])([^0-9])/ \1 \2/g
  text = SplitPairs(text, dash, "", " ");          // s/([0-9])(-)/\1 \2 /g
  return SplitOnSpace(text);
}

std::vector<std::string> Tokenize13a(std::string_view segment) {
  const std::string_view stripped = StripTrailingSpace(segment);
  std::string line(stripped);
  // One replacement after the other, so that "&amp;lt;" ends as "<", as it does there.
  const std::pair<const char*, const char*> replacements[] = {
      {"<skipped>", ""}, {"-\n", ""},   {"\n", " "},  {"&quot;", "\""},
      {"&amp;", "&"},    {"&lt;", "<"}, {"&gt;", ">"}};
  for (const auto& replacement : replacements) {
    line = absl::StrReplaceAll(line, {{replacement.first, replacement.second}});
  }
  return TokenizeMarks(absl::StrCat(" ", line, " "));
}

// First and last code point, as sacreBLEU lists them. The first range is what two mistyped ones of
// sacreBLEU amount to: it writes '\u20000' to '\u2a6d6', which Python reads as U+2000 '0' to U+2A6D
// '6', a comparison of strings that every code point from U+2001 to U+2A6D passes. The real
// extension B is not covered.
struct Range {
  char32_t first, last;
};
constexpr Range kChineseRanges[] = {
    {0x2001, 0x2A6D}, {0x2E80, 0x2EFF}, {0x2F00, 0x2FDF}, {0x2FF0, 0x303F},
    {0x3100, 0x312F}, {0x31A0, 0x31BF}, {0x31C0, 0x31EF}, {0x3200, 0x33FF},
    {0x3400, 0x4DB5}, {0x4E00, 0x9FBB}, {0xF900, 0xFA2D}, {0xFA30, 0xFA6A},
    {0xFA70, 0xFAD9}, {0xFE10, 0xFE1F}, {0xFE30, 0xFE4F}, {0xFF00, 0xFFEF}};

bool IsChinese(char32_t c) {
  return std::ranges::any_of(kChineseRanges,
                             [c](const Range& r) { return r.first <= c && c <= r.last; });
}

std::vector<std::string> TokenizeZh(std::string_view segment) {
  std::u32string line;
  for (const char32_t c : DecodeUtf8(StripSpace(segment))) {
    line += IsChinese(c) ? std::u32string{U' ', c, U' '} : std::u32string{c};
  }
  return TokenizeMarks(EncodeUtf8(line));
}

std::vector<std::string> TokenizeChar(std::string_view segment) {
  std::vector<std::string> tokens;
  for (const char32_t c : DecodeUtf8(segment)) {
    if (!IsUnicodeSpace(c)) tokens.push_back(EncodeUtf8({&c, 1}));
  }
  return tokens;
}

// A piece may hold white space that the model left alone; sacreBLEU cuts there again.
std::vector<std::string> TokenizePieces(const SentencePieces& model, std::string_view segment) {
  std::vector<std::string> tokens;
  for (const std::string& piece : model.EncodeAsPieces(StripTrailingSpace(segment))) {
    for (std::string& part : SplitOnSpace(piece)) tokens.push_back(std::move(part));
  }
  return tokens;
}

}  // namespace

absl::StatusOr<BleuTokenizer> MakeSentencePieceTokenizer(const std::string& model_file) {
  const auto bytes = ReadWholeFile(*MakePosixFileSystem(), model_file, kMaxTokenizerBytes);
  if (!bytes.ok()) {
    const bool is_no_file = absl::IsFailedPrecondition(bytes.status());
    return WithExitCode(bytes.status(), is_no_file ? ExitCode::kBadConfig : ExitCode::kData);
  }
  std::string error;
  const std::shared_ptr<const SentencePieces> model = SentencePieces::Load(*bytes, &error);
  if (model == nullptr) {
    return DataError("'", model_file, "' is not a SentencePiece model: ", error);
  }
  return BleuTokenizer{kSentencePieces, [model](std::string_view segment) {
                         return TokenizePieces(*model, segment);
                       }};
}

absl::StatusOr<BleuTokenizer> MakeTokenizer(std::string_view name) {
  if (name == "13a") return BleuTokenizer{"13a", Tokenize13a};
  if (name == "zh") return BleuTokenizer{"zh", TokenizeZh};
  if (name == "char") return BleuTokenizer{"char", TokenizeChar};
  if (name == "none") return BleuTokenizer{"none", SplitOnSpace};
  return InvalidArgument("tokenizer '", std::string(name), "' is not known: 13a, zh, char or none");
}

std::string TokenizerNameForLanguage(std::string_view language) {
  const std::string_view primary = language.substr(0, language.find_first_of("_-"));
  if (primary == "zh") return "zh";
  for (const std::string_view unspaced : {"ja", "ko", "th", "lo", "km", "my"}) {
    if (primary == unspaced) return "char";
  }
  return "13a";
}

}  // namespace deepnet

// Writing is for MarianTokenizer. Reading is of an M2M-100 folder: its rows are <s> <pad> </s>
// <unk>, fairseq's pieces (vocab.json), the languages of M2M100Tokenizer in its order, and made-up
// words up to a round number.
#include "trainer/interop/hf_tokenizer.h"

#include <map>
#include <memory>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "parallel/base/exit_code.h"
#include "parallel/base/json.h"
#include "parallel/base/status_macros.h"
#include "trainer/interop/hf_config.h"

namespace deepnet {
namespace {

constexpr char kSourceModelFile[] = "source.spm";

// Returns the name that MarianTokenizer has for a row; `zeros`: there is a kRowOfZeros.
std::string HfPiece(const Vocabulary& vocabulary, int32_t id, bool zeros) {
  if (id == kRowOfZeros) return vocabulary.Piece(kPad);
  if (id == kPad && zeros) return kTrainedPad;
  if (id < vocabulary.first_tag()) return vocabulary.Piece(id);
  return absl::StrCat(
      ">>", vocabulary.languages()[static_cast<size_t>(id - vocabulary.first_tag())], "<<");
}

constexpr const char* kM2mLanguages[] = {
    "af", "am", "ar", "ast", "az", "ba", "be", "bg", "bn", "br",  "bs", "ca", "ceb", "cs", "cy",
    "da", "de", "el", "en",  "es", "et", "fa", "ff", "fi", "fr",  "fy", "ga", "gd",  "gl", "gu",
    "ha", "he", "hi", "hr",  "ht", "hu", "hy", "id", "ig", "ilo", "is", "it", "ja",  "jv", "ka",
    "kk", "km", "kn", "ko",  "lb", "lg", "ln", "lo", "lt", "lv",  "mg", "mk", "ml",  "mn", "mr",
    "ms", "my", "ne", "nl",  "no", "ns", "oc", "or", "pa", "pl",  "ps", "pt", "ro",  "ru", "sd",
    "si", "sk", "sl", "so",  "sq", "sr", "ss", "su", "sv", "sw",  "ta", "th", "tl",  "tn", "tr",
    "uk", "ur", "uz", "vi",  "wo", "xh", "yi", "yo", "zh", "zu"};

std::string Varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>((value & 0x7f) | 0x80);
  return bytes + static_cast<char>(value);
}

// Returns bytes that, appended to a SentencePiece model, add a piece that no text is cut into:
// field 1 of its ModelProto, with piece (1) and type (3) UNUSED (5).
std::string UnusedPiece(const std::string& piece) {
  const std::string message = absl::StrCat("\x0a", Varint(piece.size()), piece, "\x18\x05");
  return absl::StrCat("\x0a", Varint(message.size()), message);
}

// vocab.json and what M2M100Tokenizer adds to it.
struct M2mRows {
  std::map<std::string, int64_t> of_piece;     // of vocab.json
  std::map<std::string, int64_t> of_language;  // "de"
};

absl::StatusOr<M2mRows> ReadRowsOf(FileSystem& fs, const std::string& folder,
                                   int64_t vocabulary_size, const ToolOptions& options) {
  const std::string path = JoinPath(folder, "vocab.json");
  HfVocabulary vocabulary;
  RETURN_IF_ERROR(ReadJsonFile(fs, path, "ids", options, &vocabulary));
  M2mRows rows;
  for (const auto& [piece, row] : vocabulary.ids()) {
    if (row < 0 || row >= vocabulary_size) {
      return CheckpointRefused("'", path, "': '", piece, "' is ", row,
                               ", but config.json has vocab_size ", vocabulary_size);
    }
    rows.of_piece[piece] = row;
  }
  for (int id = 0; id < kFirstPiece; ++id) {
    const auto found = rows.of_piece.find(kSpecialPieces[id]);
    if (found != rows.of_piece.end() && found->second == id) continue;
    return CheckpointRefused("'", path, "': '", kSpecialPieces[id], "' must be ", id);
  }
  int64_t row = static_cast<int64_t>(rows.of_piece.size());
  for (const char* language : kM2mLanguages) {
    if (row < vocabulary_size) rows.of_language[language] = row++;
  }
  return rows;
}

absl::Status CheckLanguageCodes(FileSystem& fs, const std::string& folder,
                                const ToolOptions& options) {
  const std::string path = JoinPath(folder, "tokenizer_config.json");
  ASSIGN_OR_RETURN(const bool exists, Exists(fs, path));
  if (!exists) return absl::OkStatus();
  HfTokenizerConfig config;
  RETURN_IF_ERROR(ReadJsonFile(fs, path, "", options, &config));
  if (config.language_codes().empty() || config.language_codes() == "m2m100") {
    return absl::OkStatus();
  }
  return CheckpointRefused("'", path, "': language_codes is '", config.language_codes(),
                           "'; known is m2m100");
}

// Adds a piece for every row that has none; their names are those of vocab.json, where it has one.
void AddRowsWithoutPiece(const SentencePieces& pieces, int64_t vocabulary_size, M2mRows* rows,
                         ImportedVocabulary* imported) {
  std::map<int64_t, std::string> without;
  for (int64_t row = kFirstPiece; row < vocabulary_size; ++row) {
    without[row] = absl::StrFormat("madeupword%04d", row);
  }
  for (const auto& [piece, row] : rows->of_piece) {
    if (row >= kFirstPiece) without[row] = piece;
  }
  for (const auto& [language, row] : rows->of_language) without.erase(row);
  for (int id = 0; id < pieces.size(); ++id) {
    const auto found = rows->of_piece.find(pieces.Piece(id));
    if (found != rows->of_piece.end()) without.erase(found->second);
  }
  for (const auto& [row, piece] : without) {
    imported->model_bytes += UnusedPiece(piece);
    rows->of_piece[piece] = row;
  }
  if (without.empty()) return;
  imported->notes.push_back(
      absl::StrCat(without.size(), " rows of the embedding belong to no piece of the tokenizer, ",
                   "such as '", without.begin()->second, "': kept as pieces that text never has"));
}

void FindRows(const Vocabulary& vocabulary, const M2mRows& rows, ImportedVocabulary* imported) {
  int64_t unknown = 0;
  std::string example;
  for (int32_t id = 0; id < vocabulary.first_tag(); ++id) {
    const std::string piece = vocabulary.Piece(id);
    const auto found = rows.of_piece.find(piece);
    imported->rows.push_back(found == rows.of_piece.end() ? kUnk : found->second);
    if (found != rows.of_piece.end()) continue;
    if (unknown++ == 0) example = piece;
  }
  for (const std::string& language : vocabulary.languages()) {
    imported->rows.push_back(rows.of_language.at(language));
  }
  if (unknown == 0) return;
  imported->notes.push_back(absl::StrCat(
      unknown, " pieces of the tokenizer are not in vocab.json, such as '", example,
      "': their rows are copies of that of <unk>, which M2M100Tokenizer reads for them"));
}

absl::StatusOr<std::string> ReadTokenizer(FileSystem& fs, const std::string& path) {
  return WithExitCode(ReadWholeFile(fs, path, kMaxTokenizerBytes), ExitCode::kCheckpoint);
}

// Returns the vocabulary of model and languages, and notes its hash.
absl::StatusOr<Vocabulary> ParseVocabulary(const std::string& path, ImportedVocabulary* imported) {
  absl::StatusOr<Vocabulary> vocabulary =
      Vocabulary::FromBytes(imported->model_bytes, imported->languages);
  if (!vocabulary.ok())
    return CheckpointRefused("'", path, "': ", std::string(vocabulary.status().message()));
  imported->hash = vocabulary->hash();
  return vocabulary;
}

}  // namespace

absl::StatusOr<ImportedVocabulary> ReadExportedVocabulary(FileSystem& fs, const std::string& folder,
                                                          const ExportedCheckpoint& exported) {
  const std::string path = JoinPath(folder, kSourceModelFile);
  ImportedVocabulary imported;
  ASSIGN_OR_RETURN(imported.model_bytes, ReadTokenizer(fs, path));
  imported.languages = {exported.languages().begin(), exported.languages().end()};
  RETURN_IF_ERROR(ParseVocabulary(path, &imported).status());
  if (exported.tokenizer_hash().empty() || imported.hash == exported.tokenizer_hash()) {
    return imported;
  }
  return CheckpointRefused("'", path, "' has the hash ", imported.hash,
                           "; the export was made with ", exported.tokenizer_hash());
}

absl::Status WriteHfTokenizer(FileSystem& fs, const std::string& folder,
                              const ExportedVocabulary& vocabulary, int max_positions) {
  std::set<std::string> seen;
  std::vector<std::string> rows;
  const std::vector<int64_t>& ids = vocabulary.ids;
  for (size_t row = 0; row < ids.size(); ++row) {
    std::string piece =
        HfPiece(vocabulary.pieces, static_cast<int32_t>(ids[row]), ids.back() == kRowOfZeros);
    rows.push_back(absl::StrCat("  ", JsonQuoted(piece), ": ", row));
    if (seen.insert(piece).second) continue;
    return CheckpointRefused("the piece '", piece,
                             "' stands twice in the vocabulary, which vocab.json cannot say");
  }
  RETURN_IF_ERROR(ReplaceFile(fs, JoinPath(folder, "vocab.json"),
                              absl::StrCat("{\n", absl::StrJoin(rows, ",\n"), "\n}\n")));
  for (const char* file : {kSourceModelFile, "target.spm"}) {
    RETURN_IF_ERROR(ReplaceFile(fs, JoinPath(folder, file), vocabulary.model_bytes));
  }
  return ReplaceFile(fs, JoinPath(folder, "tokenizer_config.json"),
                     absl::StrCat("{\n  \"tokenizer_class\": \"MarianTokenizer\",\n"
                                  "  \"unk_token\": \"<unk>\",\n  \"eos_token\": \"</s>\",\n"
                                  "  \"pad_token\": \"<pad>\",\n  \"separate_vocabs\": false,\n"
                                  "  \"model_max_length\": ",
                                  max_positions, "\n}\n"));
}

absl::StatusOr<ImportedVocabulary> ReadM2mVocabulary(FileSystem& fs, const std::string& folder,
                                                     int64_t vocabulary_size,
                                                     const ToolOptions& options) {
  RETURN_IF_ERROR(CheckLanguageCodes(fs, folder, options));
  ASSIGN_OR_RETURN(M2mRows rows, ReadRowsOf(fs, folder, vocabulary_size, options));
  const std::string path = JoinPath(folder, "sentencepiece.bpe.model");
  ImportedVocabulary imported;
  ASSIGN_OR_RETURN(imported.model_bytes, ReadTokenizer(fs, path));
  std::string error;
  const std::unique_ptr<SentencePieces> pieces = SentencePieces::Load(imported.model_bytes, &error);
  if (pieces == nullptr) return CheckpointRefused("'", path, "': ", error);
  AddRowsWithoutPiece(*pieces, vocabulary_size, &rows, &imported);
  for (const auto& [language, row] : rows.of_language) imported.languages.push_back(language);
  ASSIGN_OR_RETURN(const Vocabulary vocabulary, ParseVocabulary(path, &imported));
  FindRows(vocabulary, rows, &imported);
  return imported;
}

}  // namespace deepnet

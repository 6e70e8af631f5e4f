#include "trainer/interop/hf_tokenizer.h"

#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "parallel/base/exit_code.h"
#include "parallel/base/json.h"
#include "parallel/base/status_macros.h"

namespace deepnet {
namespace {

// As MarianTokenizer calls it.
std::string HfPiece(const Vocabulary& vocabulary, int32_t id) {
  if (id < vocabulary.first_tag()) return vocabulary.Piece(id);
  return absl::StrCat(
      ">>", vocabulary.languages()[static_cast<size_t>(id - vocabulary.first_tag())], "<<");
}

}  // namespace

absl::Status WriteHfTokenizer(FileSystem& fs, const std::string& folder,
                              const std::string& model_bytes, const Vocabulary& vocabulary,
                              const std::vector<int64_t>& ids, int max_positions) {
  std::set<std::string> seen;
  std::vector<std::string> rows;
  for (size_t row = 0; row < ids.size(); ++row) {
    std::string piece = HfPiece(vocabulary, static_cast<int32_t>(ids[row]));
    rows.push_back(absl::StrCat("  ", JsonQuoted(piece), ": ", row));
    if (seen.insert(piece).second) continue;
    return WithExitCode(
        absl::FailedPreconditionError(absl::StrCat("the piece '", piece,
                                                   "' stands twice in the vocabulary, which "
                                                   "vocab.json cannot say")),
        ExitCode::kCheckpoint);
  }
  RETURN_IF_ERROR(ReplaceFile(fs, JoinPath(folder, "vocab.json"),
                              absl::StrCat("{\n", absl::StrJoin(rows, ",\n"), "\n}\n")));
  RETURN_IF_ERROR(ReplaceFile(fs, JoinPath(folder, "source.spm"), model_bytes));
  RETURN_IF_ERROR(ReplaceFile(fs, JoinPath(folder, "target.spm"), model_bytes));
  return ReplaceFile(fs, JoinPath(folder, "tokenizer_config.json"),
                     absl::StrCat("{\n  \"tokenizer_class\": \"MarianTokenizer\",\n"
                                  "  \"unk_token\": \"<unk>\",\n  \"eos_token\": \"</s>\",\n"
                                  "  \"pad_token\": \"<pad>\",\n  \"separate_vocabs\": false,\n"
                                  "  \"model_max_length\": ",
                                  max_positions, "\n}\n"));
}

}  // namespace deepnet

#include "trainer/data/prepare/held_out.h"

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "absl/strings/str_cat.h"

#include "parallel/base/status_macros.h"
#include "trainer/data/corpus.h"
#include "trainer/data/line_reader.h"
#include "trainer/data/prepare/cleaning.h"
#include "trainer/data/prepare/corpus_passes.h"
#include "trainer/data/prepare/file_writer.h"
#include "trainer/data/prepare/pair_report.h"

namespace deepnet {
namespace {

// Copies a text, file by file, and counts its lines. Fails naming file and line at bad UTF-8 or a
// malformed row; pairs with an empty side or a tag in the text are dropped.
absl::StatusOr<PreparedPart> CopyText(PrepareContext& context, const std::string& split,
                                      const LanguagePairTexts& texts, const TextFilter& filter) {
  const auto create = [&](const std::string& language) {
    return FileWriter::Create(context.temporary,
                              TextFileName(split, texts.first, texts.second, language));
  };
  ASSIGN_OR_RETURN(const auto first, create(texts.first));
  ASSIGN_OR_RETURN(const auto second, create(texts.second));
  EncodedTotals totals;
  const auto copy = [&](DropReason reason, const RawPair& pair, const PairReader& reader) {
    if (reason == DropReason::kBadUtf8 || reason == DropReason::kMalformed) {
      return absl::InvalidArgumentError(absl::StrCat(
          reader.Location(pair.line), ": ", std::string(Name(reason)), " in ", split, " text"));
    }
    totals.counts.Add(reason, reader, pair.line);
    if (reason != DropReason::kNone) return absl::OkStatus();
    for (const auto& [file, side] : {std::pair(&first, pair.first), {&second, pair.second}}) {
      (*file)->Append(side);
      (*file)->Append("\n");
    }
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(JudgeTexts(texts, split, filter, context.NoteInput(), copy));
  PreparedPart part;
  ASSIGN_OR_RETURN(*part.add_files(), first->Finish());
  ASSIGN_OR_RETURN(*part.add_files(), second->Finish());
  *part.mutable_counts() = MakePairReport(texts, split, totals);
  return part;
}

absl::Status ReadHeldOut(PrepareContext& context, const std::string& split,
                         const LanguagePairTexts& texts, const std::string& language) {
  const std::string name = TextFileName(split, texts.first, texts.second, language);
  ASSIGN_OR_RETURN(auto reader, LineReader::Open(absl::StrCat(context.temporary, "/", name)));
  std::string_view line;
  for (;;) {
    ASSIGN_OR_RETURN(const bool more, reader->Next(&line));
    if (!more) return absl::OkStatus();
    context.held_out.Add(language, line);
  }
}

// Adds the pieces of one side of a dev or test text, returns their number.
absl::StatusOr<int64_t> CountPieces(const std::string& path, const Vocabulary& vocabulary,
                                    int32_t* longest) {
  ASSIGN_OR_RETURN(auto reader, LineReader::Open(path));
  int64_t sum = 0;
  std::string_view line;
  for (;;) {
    ASSIGN_OR_RETURN(const bool more, reader->Next(&line));
    if (!more) return sum;
    const auto pieces = static_cast<int64_t>(vocabulary.Encode(line).size());
    sum += pieces;
    *longest = std::max(*longest, static_cast<int32_t>(pieces));
  }
}

absl::Status CountHeldOut(const std::string& folder, const Vocabulary& vocabulary,
                          LanguagePairReport* report) {
  int32_t longest = 0;
  const auto count = [&](const std::string& language) {
    const std::string name = TextFileName(report->split(), report->first_language(),
                                          report->second_language(), language);
    return CountPieces(absl::StrCat(folder, "/", name), vocabulary, &longest);
  };
  ASSIGN_OR_RETURN(const int64_t first, count(report->first_language()));
  ASSIGN_OR_RETURN(const int64_t second, count(report->second_language()));
  SetLengths(first, second, longest, report);
  return absl::OkStatus();
}
}  // namespace

absl::Status HeldOutTexts::Copy() {
  for (const std::string split : {"dev", "test"}) {
    for (const LanguagePairTexts& texts : context_.texts) {
      if (!texts.Of(split).empty()) texts_.emplace_back(split, &texts);
    }
  }
  const TextFilter filter(context_.spec.cleaning(), context_.languages, &context_.held_out);
  for (size_t i = 0; i < texts_.size(); ++i) {
    if (!context_.IsMine(i)) continue;
    const auto& [split, texts] = texts_[i];
    ASSIGN_OR_RETURN(own_.emplace_back(), CopyText(context_, split, *texts, filter));
  }
  RETURN_IF_ERROR(context_.world.Barrier());
  for (const auto& [split, texts] : texts_) {
    for (const std::string& language : {texts->first, texts->second}) {
      RETURN_IF_ERROR(ReadHeldOut(context_, split, *texts, language));
    }
  }
  context_.held_out.Seal();
  return absl::OkStatus();
}

absl::StatusOr<std::vector<PreparedPart>> HeldOutTexts::Count(const Vocabulary& vocabulary) {
  CorpusParts mine;
  for (PreparedPart& part : own_) {
    RETURN_IF_ERROR(CountHeldOut(context_.temporary, vocabulary, part.mutable_counts()));
    *mine.add_parts() = part;
  }
  return context_.AllGatherParts(mine, context_.OwnersInTurn(texts_.size()));
}

}  // namespace deepnet

#include "trainer/data/prepare/held_out.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <string_view>

#include "absl/strings/str_cat.h"

#include "parallel/base/file_system.h"
#include "parallel/base/status_macros.h"
#include "trainer/data/corpus_manifest.h"
#include "trainer/data/line_reader.h"
#include "trainer/data/prepare/cleaning.h"
#include "trainer/data/prepare/file_writer.h"

namespace deepnet {
namespace {

// Copies a text, file by file, and counts its lines. Fails naming file and line at bad UTF-8 or a
// malformed row; pairs with an empty side or a tag in the text are dropped.
absl::StatusOr<PreparedPart> CopyText(PrepareContext& context, const std::string& split,
                                      const LanguagePairTexts& texts) {
  const auto create = [&](const std::string& language) {
    return FileWriter::Create(context.temporary,
                              TextFileName(split, texts.first, texts.second, language));
  };
  ASSIGN_OR_RETURN(const auto first, create(texts.first));
  ASSIGN_OR_RETURN(const auto second, create(texts.second));
  DropCounts counts;
  const auto copy = [&](DropReason reason, const RawPair& pair, const PairReader& reader) {
    if (reason == DropReason::kBadUtf8 || reason == DropReason::kMalformed) {
      return absl::InvalidArgumentError(absl::StrCat(
          reader.Location(pair.line), ": ", std::string(Name(reason)), " in ", split, " text"));
    }
    counts.Add(reason, reader, pair.line);
    if (reason != DropReason::kNone) return absl::OkStatus();
    for (const auto& [file, side] : {std::pair(&first, pair.first), {&second, pair.second}}) {
      (*file)->Append(side);
      (*file)->Append("\n");
    }
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(context.JudgeTexts(texts, split, copy));
  PreparedPart part;
  ASSIGN_OR_RETURN(*part.add_files(), first->Finish());
  ASSIGN_OR_RETURN(*part.add_files(), second->Finish());
  *part.mutable_counts() = MakePairReport(texts, split, counts);
  return part;
}

// Calls `visit` with the lines of a copy of one side.
absl::Status ForEachLine(const std::string& folder, const std::string& name,
                         const std::function<void(std::string_view)>& visit) {
  ASSIGN_OR_RETURN(auto reader, LineReader::Open(JoinPath(folder, name)));
  std::string_view line;
  for (;;) {
    ASSIGN_OR_RETURN(const bool more, reader->Next(&line));
    if (!more) return absl::OkStatus();
    visit(line);
  }
}

// Notes the pieces that both sides of a text are cut into.
absl::Status CountPieces(const std::string& folder, const Vocabulary& vocabulary,
                         LanguagePairReport* report) {
  std::array<int64_t, 2> sums = {};
  int32_t longest = 0;
  const std::string languages[] = {report->first_language(), report->second_language()};
  for (const size_t side : {0, 1}) {
    const std::string name =
        TextFileName(report->split(), languages[0], languages[1], languages[side]);
    RETURN_IF_ERROR(ForEachLine(folder, name, [&](std::string_view line) {
      const auto pieces = static_cast<int32_t>(vocabulary.Encode(line).size());
      sums[side] += pieces;
      longest = std::max(longest, pieces);
    }));
  }
  SetLengths(sums[0], sums[1], longest, report);
  return absl::OkStatus();
}

}  // namespace

absl::Status HeldOutTexts::Copy() {
  for (const std::string split : {"dev", "test"}) {
    for (const LanguagePairTexts& texts : context_.texts) {
      if (!texts.Of(split).empty()) texts_.emplace_back(split, &texts);
    }
  }
  for (size_t i = 0; i < texts_.size(); ++i) {
    if (!context_.IsMine(i)) continue;
    const auto& [split, texts] = texts_[i];
    ASSIGN_OR_RETURN(*own_.add_parts(), CopyText(context_, split, *texts));
  }
  RETURN_IF_ERROR(context_.world.Barrier());
  for (const auto& [split, texts] : texts_) {
    for (const std::string& language : {texts->first, texts->second}) {
      RETURN_IF_ERROR(ForEachLine(
          context_.temporary, TextFileName(split, texts->first, texts->second, language),
          [&](std::string_view line) { context_.held_out.Add(language, line); }));
    }
  }
  context_.held_out.Seal();
  return absl::OkStatus();
}

absl::StatusOr<std::vector<PreparedPart>> HeldOutTexts::Count(const Vocabulary& vocabulary) {
  for (PreparedPart& part : *own_.mutable_parts()) {
    RETURN_IF_ERROR(CountPieces(context_.temporary, vocabulary, part.mutable_counts()));
  }
  return context_.AllGatherParts(own_, context_.OwnersInTurn(texts_.size()));
}

}  // namespace deepnet

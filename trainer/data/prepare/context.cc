#include "trainer/data/prepare/context.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"

namespace deepnet {
std::vector<int> PrepareContext::OwnersInTurn(size_t count) const {
  std::vector<int> owners(count);
  for (size_t i = 0; i < count; ++i) owners[i] = static_cast<int>(i) % world.size();
  return owners;
}

bool PrepareContext::IsMine(size_t number) const {
  return static_cast<int>(number % static_cast<size_t>(world.size())) == world.rank();
}

std::string PrepareContext::OwnFolder() const {
  return absl::StrCat(Scratch(), "/rank", world.rank(), ".", token);
}

void PrepareContext::Say(const std::string& line) const {
  if (progress && IsFirst()) progress(absl::StrFormat("%7.1f s  %s", Seconds(), line));
}

void PrepareContext::Warn(const std::string& what) const {
  if (!what.empty()) Say(absl::StrCat("warning: ", what));
}

absl::Status PrepareContext::Agree(const absl::Status& mine) {
  absl::Status all = AgreeOnStatus(world, WithExitCode(mine, ExitCode::kData));
  all_have_ended = !all.ok();
  return all;
}

absl::StatusOr<std::vector<PreparedPart>> PrepareContext::AllGatherParts(
    const CorpusParts& mine, const std::vector<int>& owners) {
  ASSIGN_OR_RETURN(std::vector<CorpusParts> all, AllGatherMessages(world, mine));
  std::vector<int> next(all.size(), 0);
  std::vector<PreparedPart> parts;
  for (const int owner : owners) {
    if (next[owner] >= all[owner].parts_size()) {
      return DataLoss("rank ", owner, " has sent too few finished parts");
    }
    parts.push_back(std::move(*all[owner].mutable_parts(next[owner]++)));
  }
  return parts;
}

absl::Status PrepareContext::Keep(const std::string& name, const PreparedPart& part) {
  has_parts = true;
  for (const CorpusFile& file : part.files()) {
    RETURN_IF_ERROR(files->Rename(JoinPath(OwnFolder(), file.name()), parts.Path(file.name())));
  }
  return parts.Keep(name, part);
}

void PrepareContext::NoteInput(const LineReader& file) {
  const auto found = inputs.find(file.path());
  if (found != inputs.end()) found->second.set_hash(file.file_hash());
}

absl::Status PrepareContext::JudgeTexts(
    const LanguagePairTexts& texts, std::string_view split,
    const std::function<absl::Status(DropReason, const RawPair&, const PairReader&)>& visit) {
  const TextFilter filter = Filter();
  for (const ParallelFiles& text : texts.Of(split)) {
    ASSIGN_OR_RETURN(auto reader, PairReader::Open(text));
    TextFilter::LanguagePair languages = TextFilter::LanguagePair::Of(texts, text);
    languages.is_training = split == "train";
    RawPair pair;
    for (;;) {
      ASSIGN_OR_RETURN(const bool more, reader->Next(&pair));
      if (!more) break;
      RETURN_IF_ERROR(visit(filter.Judge(languages, &pair), pair, *reader));
    }
    if (languages.is_training) continue;
    for (const auto& file : reader->files()) NoteInput(*file);
  }
  return absl::OkStatus();
}

}  // namespace deepnet

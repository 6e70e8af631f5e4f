#include "trainer/data/prepare/context.h"

#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "parallel/base/clock.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/file_system.h"

namespace deepnet {
namespace {

namespace fs = std::filesystem;

constexpr char kScratch[] = "/.deepnet-scratch";  // in the temporary folder

std::string TemporaryPath(const std::string& output) {
  return IsMountPoint(output) ? JoinPath(output, kUnfinishedEnd) : output + kUnfinishedEnd;
}

}  // namespace

PrepareContext::PrepareContext(const PrepareSpec& spec, const std::string& output,
                               const std::string& root, const ProgressFn& progress,
                               const PrepareOptions& options)
    : spec(spec),
      root(root),
      progress(progress),
      options(options),
      world(options.world != nullptr ? *options.world : alone),
      output(output),
      temporary(TemporaryPath(output)),
      start(SecondsNow()),
      parts(Scratch()) {}

std::vector<int> PrepareContext::OwnersInTurn(size_t count) const {
  std::vector<int> owners(count);
  for (size_t i = 0; i < count; ++i) owners[i] = static_cast<int>(i) % world.size();
  return owners;
}

bool PrepareContext::IsMine(size_t number) const {
  return static_cast<int>(number % static_cast<size_t>(world.size())) == world.rank();
}

std::string PrepareContext::Scratch() const { return temporary + kScratch; }

std::string PrepareContext::OutputScratch() const { return output + kScratch; }

std::string PrepareContext::OwnFolder() const {
  return absl::StrCat(Scratch(), "/rank", world.rank(), ".", token);
}

double PrepareContext::Seconds() const { return SecondsNow() - start; }

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
      return absl::DataLossError(absl::StrCat("rank ", owner, " has sent too few finished parts"));
    }
    parts.push_back(std::move(*all[owner].mutable_parts(next[owner]++)));
  }
  return parts;
}

absl::Status PrepareContext::Keep(const std::string& name, const PreparedPart& part) {
  has_parts = true;
  for (const CorpusFile& file : part.files()) {
    std::error_code error;
    fs::rename(absl::StrCat(OwnFolder(), "/", file.name()), parts.Path(file.name()), error);
    if (error) {
      return absl::DataLossError(absl::StrCat("cannot rename ", OwnFolder(), "/", file.name(),
                                              " to ", parts.Path(file.name()), ": ",
                                              error.message()));
    }
  }
  return parts.Keep(name, part);
}

FileSeenFn PrepareContext::NoteInput() {
  return [this](const LineReader& reader) {
    const auto found = inputs.find(reader.path());
    if (found != inputs.end()) found->second.set_hash(reader.file_hash());
  };
}

}  // namespace deepnet

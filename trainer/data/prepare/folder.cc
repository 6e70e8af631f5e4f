#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include <google/protobuf/util/message_differencer.h>
#include <sys/file.h>

#include "parallel/base/exit_code.h"
#include "parallel/base/file_system.h"
#include "parallel/base/status_macros.h"
#include "trainer/data/corpus.h"
#include "trainer/data/corpus_manifest.h"
#include "trainer/data/corpus_shard.h"
#include "trainer/data/prepare/stages.h"

namespace deepnet {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kReadBytes = int64_t{1} << 30;  // of a corpus that is always read

// Fails naming a file of a corpus that is damaged. All is read, unless it is long, no file is newer
// than the manifest, and options.verify was not asked for.
absl::Status CheckExisting(const PrepareContext& context, const Corpus& corpus) {
  int64_t bytes = 0;
  bool newer = false;
  std::error_code error;
  const fs::path folder = corpus.folder();
  const auto written = fs::last_write_time(folder / kCorpusManifest, error);
  for (const CorpusFile& file : corpus.manifest().files()) {
    bytes += file.bytes();
    newer = newer || fs::last_write_time(folder / file.name(), error) > written;
  }
  if (newer || bytes <= kReadBytes || context.options.verify) {
    return corpus.CheckContent();
  }
  context.Say(absl::StrFormat(
      "%.1f GB have the sizes of the manifest and are not newer; --verify reads them",
      bytes / 1e9));
  return absl::OkStatus();
}

// Returns how this preparation differs from the one behind `manifest`; empty: not at all.
absl::StatusOr<std::string> DifferenceFrom(const PrepareContext& context,
                                           const CorpusManifest& manifest) {
  std::string text;
  google::protobuf::util::MessageDifferencer differencer;
  differencer.ReportDifferencesToString(&text);
  if (!differencer.Compare(manifest.spec(), CanonicalSpec(context.spec))) {
    std::replace(text.begin(), text.end(), '\n', ' ');
    return absl::StrCat("spec: ", text);
  }
  std::map<std::string, InputFile> before;
  for (const InputFile& input : manifest.inputs()) before[input.name()] = input;
  if (before.size() != context.inputs.size()) return std::string("other input files");
  for (const auto& [path, input] : context.inputs) {
    const auto found = before.find(input.name());
    if (found == before.end()) return absl::StrCat("new input ", input.name());
    if (found->second.bytes() != input.bytes()) return absl::StrCat(input.name(), " has changed");
    if (found->second.modified_ns() == input.modified_ns()) continue;
    ASSIGN_OR_RETURN(const uint64_t hash, HashFile(path));
    if (hash != found->second.hash()) return absl::StrCat(input.name(), " has changed");
  }
  return std::string();
}

// Takes an advisory lock on the file `path`, which lasts until `*lock` is closed. Fails if another
// process has it. On a file system without locks there is none to take: a warning says so.
absl::Status TakeLock(const PrepareContext& context, const std::string& path, int* lock) {
  *lock = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644);
  if (*lock < 0) return absl::UnavailableError(absl::StrCat(path, ": ", strerror(errno)));
  if (flock(*lock, LOCK_EX | LOCK_NB) == 0) return absl::OkStatus();
  switch (const int error = errno) {
    case EWOULDBLOCK:
      return FailedPrecondition("another prepare is writing this corpus (it holds ", path, ")");
    case EINVAL:
    case ENOLCK:
    case ENOSYS:
    case EOPNOTSUPP:
      context.Warn(absl::StrCat("no locks on this file system (", path, ": ", strerror(error),
                                "): run no other prepare of this corpus at the same time"));
      return absl::OkStatus();
    default:
      return absl::UnavailableError(absl::StrCat("cannot lock ", path, ": ", strerror(error)));
  }
}

// Returns true if the output is a mount point: it keeps its name, so the temporary folder lies in
// it.
bool IsInside(const PrepareContext& context) {
  return ParentFolder(context.temporary) == context.output;
}

// Returns where Publish() puts a corpus that it replaces: in the temporary folder, and so nobody
// else's.
std::string ReplacedPath(const PrepareContext& context) { return context.Scratch() + "/replaced"; }

// The manifest of an earlier corpus goes first and that of the new one comes last: in between the
// folder is no corpus, and the next start calls this again.
absl::Status PublishInside(const PrepareContext& context) {
  const std::string manifest = JoinPath(context.output, kCorpusManifest);
  if (const auto earlier = ReadManifest(context.output); earlier.ok()) {
    RETURN_IF_ERROR(context.files->Delete(manifest));
    for (const CorpusFile& file : earlier->files()) {
      RETURN_IF_ERROR(DeleteIfThere(*context.files, JoinPath(context.output, file.name())));
    }
  }
  ASSIGN_OR_RETURN(const auto names, context.files->List(context.temporary));
  for (const std::string& name : names) {
    const std::string path = JoinPath(context.temporary, name);
    if (path == context.Scratch() || name == kCorpusManifest) continue;
    RETURN_IF_ERROR(context.files->Rename(path, JoinPath(context.output, name)));
  }
  RETURN_IF_ERROR(context.files->SyncFolder(context.output));
  RETURN_IF_ERROR(context.files->Rename(JoinPath(context.temporary, kCorpusManifest), manifest));
  RETURN_IF_ERROR(context.files->DeleteTree(context.temporary));
  return context.files->SyncFolder(context.output);
}

// After a process that was killed in Publish().
absl::Status FinishPublishing(const PrepareContext& context) {
  if (IsInside(context)) {
    ASSIGN_OR_RETURN(const bool complete,
                     Exists(*context.files, JoinPath(context.temporary, kCorpusManifest)));
    return complete ? PublishInside(context) : absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const bool exists, Exists(*context.files, context.output));
  ASSIGN_OR_RETURN(const bool replaced, Exists(*context.files, ReplacedPath(context)));
  return replaced && !exists ? context.files->Rename(ReplacedPath(context), context.output)
                             : absl::OkStatus();
}

// Deletes what an earlier preparation left in the temporary folder, except finished parts.
absl::Status TidyUp(PrepareContext& context) {
  ASSIGN_OR_RETURN(const auto names, context.files->List(context.temporary));
  for (const std::string& name : names) {
    const std::string path = JoinPath(context.temporary, name);
    if (path != context.Scratch()) RETURN_IF_ERROR(context.files->DeleteTree(path));
  }
  ASSIGN_OR_RETURN(const auto parts, context.files->List(context.Scratch()));
  for (const std::string& name : parts) {
    const std::string path = JoinPath(context.Scratch(), name);
    context.has_parts = context.has_parts || absl::EndsWith(name, ".part");
    ASSIGN_OR_RETURN(const FileType type, context.files->TypeOf(path));
    const bool is_part = type == FileType::kFile && !absl::StartsWith(name, "table") &&
                         !absl::EndsWith(name, kClaimEnd) && !IsUnusedName(name);
    if (!is_part) RETURN_IF_ERROR(context.files->DeleteTree(path));
  }
  return absl::OkStatus();
}

// Returns the report of a corpus that is there already, if it is the one asked for; nothing if the
// place is free or may be replaced.
absl::StatusOr<std::optional<CorpusReport>> FindExisting(const PrepareContext& context) {
  ASSIGN_OR_RETURN(const FileType type, context.files->TypeOf(context.output));
  if (type == FileType::kNone) return std::nullopt;
  if (type != FileType::kFolder) {
    return FailedPrecondition("data.folder: ", context.output, " is a file, not a folder");
  }
  ASSIGN_OR_RETURN(std::vector<std::string> names, context.files->List(context.output));
  std::erase_if(names, [](const std::string& name) {  // what a file system has, and what is ours
    return name == "lost+found" || absl::StartsWith(name, ".deepnet-");
  });
  if (names.empty()) return std::nullopt;
  const absl::StatusOr<Corpus> corpus = Corpus::Open(context.output);
  const bool has_manifest = std::count(names.begin(), names.end(), kCorpusManifest) > 0;
  if (absl::IsNotFound(corpus.status()) && !has_manifest) {
    return FailedPrecondition("data.folder: ", context.output, " exists and is no prepared corpus");
  }
  std::string difference = std::string(corpus.status().message());
  bool usable = corpus.ok();
  if (usable) {
    ASSIGN_OR_RETURN(difference, DifferenceFrom(context, corpus->manifest()));
    const absl::Status intact =
        difference.empty() ? CheckExisting(context, *corpus) : absl::OkStatus();
    usable = intact.ok();
    if (!usable) difference = std::string(intact.message());
    if (difference.empty()) {
      context.Say(absl::StrCat("reusing ", context.output, ": same spec, same input files"));
      CorpusReport report = corpus->manifest().report();
      report.set_folder(context.output);
      report.set_reused(true);
      RETURN_IF_ERROR(
          DeleteIfThere(*context.files, context.OutputScratch()));  // what a killed Publish left
      return report;
    }
  }
  for (const auto& [path, input] : context.inputs) {
    if (!LiesIn(path, context.output)) continue;
    return FailedPrecondition(
        "data.folder: ", context.output, " holds the text ", path,
        " and would be replaced with it; move the text or choose another folder");
  }
  if (context.spec.replace() || context.options.extend) return std::nullopt;
  return FailedPrecondition(
      "data.folder: ", context.output,
      usable ? " holds another corpus (" : " holds a corpus that cannot be used (", difference,
      "); choose another folder, replace it with --set prepare.replace=true, or keep its "
      "tokenizer and what is the same in it with --extend");
}

}  // namespace

CorpusFolder::~CorpusFolder() {
  const bool is_used = context_.world.size() > 1 && !context_.all_have_ended;
  if (owns_temporary_ && !context_.has_parts && !is_used) {
    context_.files->DeleteTree(context_.temporary).IgnoreError();
  }
  if (lock_ >= 0) close(lock_);
}

PrepareSpec CanonicalSpec(PrepareSpec spec) {
  spec.clear_replace();
  spec.clear_threads();
  return spec;
}

absl::StatusOr<std::optional<CorpusReport>> CorpusFolder::Claim() {
  const fs::path output = context_.output;
  std::error_code error;
  fs::create_directories(output.parent_path(), error);
  if (error) {
    return FailedPrecondition("data.folder: cannot make the folder ", output.parent_path().string(),
                              ": ", error.message());
  }
  const std::string lock_file =
      IsInside(context_)
          ? JoinPath(output.string(), ".deepnet-lock")
          : (output.parent_path() / absl::StrCat(".", output.filename().string(), ".lock"))
                .string();
  RETURN_IF_ERROR(TakeLock(context_, lock_file, &lock_));
  for (const std::string& path : {context_.temporary, context_.Scratch()}) {
    ASSIGN_OR_RETURN(const FileType type, context_.files->TypeOf(path));
    if (type == FileType::kLink) RETURN_IF_ERROR(context_.files->Delete(path));
  }
  RETURN_IF_ERROR(FinishPublishing(context_));
  ASSIGN_OR_RETURN(std::optional<CorpusReport> existing, FindExisting(context_));
  if (existing.has_value()) return existing;
  RETURN_IF_ERROR(context_.files->MakeFolder(context_.Scratch()));
  owns_temporary_ = true;
  RETURN_IF_ERROR(TidyUp(context_));
  return std::nullopt;
}

absl::Status CorpusFolder::Publish() {
  RETURN_IF_ERROR(context_.files->SyncFolder(context_.temporary));
  if (IsInside(context_)) {
    RETURN_IF_ERROR(PublishInside(context_));
    owns_temporary_ = false;
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const bool exists, Exists(*context_.files, context_.output));
  if (exists) {  // empty, or to be replaced
    RETURN_IF_ERROR(context_.files->Rename(context_.output, ReplacedPath(context_)));
  }
  RETURN_IF_ERROR(context_.files->Rename(context_.temporary, context_.output));
  owns_temporary_ = false;
  RETURN_IF_ERROR(DeleteIfThere(*context_.files, context_.OutputScratch()));
  return context_.files->SyncFolder(fs::path(context_.output).parent_path().string());
}

}  // namespace deepnet

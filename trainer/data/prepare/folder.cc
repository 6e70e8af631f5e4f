#include "trainer/data/prepare/folder.h"

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

#include "parallel/base/status_macros.h"
#include "trainer/data/corpus_manifest.h"
#include "trainer/data/corpus_shard.h"

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

}  // namespace

CorpusFolder::CorpusFolder(PrepareContext& context)
    : context_(context), files_(MakePosixFileSystem()) {}

CorpusFolder::~CorpusFolder() {
  const bool is_used = context_.world.size() > 1 && !context_.all_have_ended;
  if (owns_temporary_ && !context_.has_parts && !is_used) {
    files_->DeleteTree(context_.temporary).IgnoreError();
  }
  if (lock_ >= 0) close(lock_);
}

absl::Status CorpusFolder::TakeLock(const std::string& path) {
  lock_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644);
  if (lock_ < 0) return absl::UnavailableError(absl::StrCat(path, ": ", strerror(errno)));
  if (flock(lock_, LOCK_EX | LOCK_NB) == 0) return absl::OkStatus();
  switch (const int error = errno) {
    case EWOULDBLOCK:
      return absl::FailedPreconditionError(
          absl::StrCat("another prepare is writing this corpus (it holds ", path, ")"));
    case EINVAL:
    case ENOLCK:
    case ENOSYS:
    case EOPNOTSUPP:
      context_.Warn(absl::StrCat("no locks on this file system (", path, ": ", strerror(error),
                                 "): run no other prepare of this corpus at the same time"));
      return absl::OkStatus();
    default:
      return absl::UnavailableError(absl::StrCat("cannot lock ", path, ": ", strerror(error)));
  }
}

// In the temporary folder, and so nobody else's.
std::string CorpusFolder::ReplacedPath() const { return context_.Scratch() + "/replaced"; }

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
    return absl::FailedPreconditionError(absl::StrCat("data.folder: cannot make the folder ",
                                                      output.parent_path().string(), ": ",
                                                      error.message()));
  }
  const std::string lock_file =
      IsInside() ? JoinPath(output.string(), ".deepnet-lock")
                 : (output.parent_path() / absl::StrCat(".", output.filename().string(), ".lock"))
                       .string();
  RETURN_IF_ERROR(TakeLock(lock_file));
  for (const std::string& path : {context_.temporary, context_.Scratch()}) {
    ASSIGN_OR_RETURN(const FileType type, files_->TypeOf(path));
    if (type == FileType::kLink) RETURN_IF_ERROR(files_->Delete(path));
  }
  RETURN_IF_ERROR(FinishPublishing());
  ASSIGN_OR_RETURN(std::optional<CorpusReport> existing, FindExisting());
  if (existing.has_value()) return existing;
  RETURN_IF_ERROR(files_->MakeFolder(context_.Scratch()));
  owns_temporary_ = true;
  RETURN_IF_ERROR(TidyUp());
  return std::nullopt;
}

// After a process that was killed in Publish().
absl::Status CorpusFolder::FinishPublishing() {
  if (IsInside()) {
    ASSIGN_OR_RETURN(const bool complete,
                     Exists(*files_, JoinPath(context_.temporary, kCorpusManifest)));
    return complete ? PublishInside() : absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const bool exists, Exists(*files_, context_.output));
  ASSIGN_OR_RETURN(const bool replaced, Exists(*files_, ReplacedPath()));
  return replaced && !exists ? files_->Rename(ReplacedPath(), context_.output) : absl::OkStatus();
}

absl::Status CorpusFolder::TidyUp() {
  ASSIGN_OR_RETURN(const auto names, files_->List(context_.temporary));
  for (const std::string& name : names) {
    const std::string path = JoinPath(context_.temporary, name);
    if (path != context_.Scratch()) RETURN_IF_ERROR(files_->DeleteTree(path));
  }
  ASSIGN_OR_RETURN(const auto parts, files_->List(context_.Scratch()));
  for (const std::string& name : parts) {
    const std::string path = JoinPath(context_.Scratch(), name);
    context_.has_parts = context_.has_parts || absl::EndsWith(name, ".part");
    ASSIGN_OR_RETURN(const FileType type, files_->TypeOf(path));
    const bool is_part = type == FileType::kFile && !absl::StartsWith(name, "table") &&
                         !absl::EndsWith(name, kClaimEnd) && !IsUnusedName(name);
    if (!is_part) RETURN_IF_ERROR(files_->DeleteTree(path));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<CorpusReport>> CorpusFolder::FindExisting() {
  ASSIGN_OR_RETURN(const FileType type, files_->TypeOf(context_.output));
  if (type == FileType::kNone) return std::nullopt;
  if (type != FileType::kFolder) {
    return absl::FailedPreconditionError(
        absl::StrCat("data.folder: ", context_.output, " is a file, not a folder"));
  }
  ASSIGN_OR_RETURN(std::vector<std::string> names, files_->List(context_.output));
  std::erase_if(names, [](const std::string& name) {  // what a file system has, and what is ours
    return name == "lost+found" || absl::StartsWith(name, ".deepnet-");
  });
  if (names.empty()) return std::nullopt;
  const absl::StatusOr<Corpus> corpus = Corpus::Open(context_.output);
  const bool has_manifest = std::count(names.begin(), names.end(), kCorpusManifest) > 0;
  if (absl::IsNotFound(corpus.status()) && !has_manifest) {
    return absl::FailedPreconditionError(
        absl::StrCat("data.folder: ", context_.output, " exists and is no prepared corpus"));
  }
  std::string difference = std::string(corpus.status().message());
  bool usable = corpus.ok();
  if (usable) {
    ASSIGN_OR_RETURN(difference, DifferenceFrom(context_, corpus->manifest()));
    const absl::Status intact =
        difference.empty() ? CheckExisting(context_, *corpus) : absl::OkStatus();
    usable = intact.ok();
    if (!usable) difference = std::string(intact.message());
    if (difference.empty()) {
      context_.Say(absl::StrCat("reusing ", context_.output, ": same spec, same input files"));
      CorpusReport report = corpus->manifest().report();
      report.set_folder(context_.output);
      report.set_reused(true);
      RETURN_IF_ERROR(
          DeleteIfThere(*files_, context_.OutputScratch()));  // what a killed Publish left
      return report;
    }
  }
  for (const auto& [path, input] : context_.inputs) {
    if (!LiesIn(path, context_.output)) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("data.folder: ", context_.output, " holds the text ", path,
                     " and would be replaced with it; move the text or choose another folder"));
  }
  if (context_.spec.replace() || context_.options.extend) return std::nullopt;
  return absl::FailedPreconditionError(absl::StrCat(
      "data.folder: ", context_.output,
      usable ? " holds another corpus (" : " holds a corpus that cannot be used (", difference,
      "); choose another folder, replace it with --set prepare.replace=true, or keep its "
      "tokenizer and what is the same in it with --extend"));
}

absl::Status CorpusFolder::Publish() {
  RETURN_IF_ERROR(files_->SyncFolder(context_.temporary));
  if (IsInside()) return PublishInside();
  ASSIGN_OR_RETURN(const bool exists, Exists(*files_, context_.output));
  if (exists) {  // empty, or to be replaced
    RETURN_IF_ERROR(files_->Rename(context_.output, ReplacedPath()));
  }
  RETURN_IF_ERROR(files_->Rename(context_.temporary, context_.output));
  owns_temporary_ = false;
  RETURN_IF_ERROR(DeleteIfThere(*files_, context_.OutputScratch()));
  return files_->SyncFolder(fs::path(context_.output).parent_path().string());
}

// The manifest of an earlier corpus goes first and that of the new one comes last: in between the
// folder is no corpus, and the next start calls this again.
absl::Status CorpusFolder::PublishInside() {
  const std::string manifest = JoinPath(context_.output, kCorpusManifest);
  if (const auto earlier = ReadManifest(context_.output); earlier.ok()) {
    RETURN_IF_ERROR(files_->Delete(manifest));
    for (const CorpusFile& file : earlier->files()) {
      RETURN_IF_ERROR(DeleteIfThere(*files_, JoinPath(context_.output, file.name())));
    }
  }
  ASSIGN_OR_RETURN(const auto names, files_->List(context_.temporary));
  for (const std::string& name : names) {
    const std::string path = JoinPath(context_.temporary, name);
    if (path == context_.Scratch() || name == kCorpusManifest) continue;
    RETURN_IF_ERROR(files_->Rename(path, JoinPath(context_.output, name)));
  }
  RETURN_IF_ERROR(files_->SyncFolder(context_.output));
  RETURN_IF_ERROR(files_->Rename(JoinPath(context_.temporary, kCorpusManifest), manifest));
  owns_temporary_ = false;
  RETURN_IF_ERROR(files_->DeleteTree(context_.temporary));
  return files_->SyncFolder(context_.output);
}

}  // namespace deepnet

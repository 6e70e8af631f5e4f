#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "launch/commands/checkpoint_tools.h"
#include "parallel/base/json.h"
#include "parallel/base/status_macros.h"
#include "trainer/checkpoint/format.h"
#include "trainer/checkpoint/tools/run_listing.h"
#include "trainer/checkpoint/tools/verify.h"

namespace deepnet {
namespace {

// A checkpoint, and what came of it.
struct Verdict {
  std::string folder;
  absl::StatusOr<VerifyReport> report;

  bool whole() const { return report.ok() && report->damage.empty(); }
};

std::string Text(const Verdict& verdict) {
  if (!verdict.report.ok()) return absl::StrCat(verdict.report.status().message(), "\n");
  const VerifyReport& report = *verdict.report;
  std::string text;
  for (const Damage& damage : report.damage) {
    absl::StrAppend(&text, damage.text, "\n");
    for (const std::string& tensor : damage.tensors) absl::StrAppend(&text, "    ", tensor, "\n");
  }
  absl::StrAppend(&text, report.folder, ": ",
                  report.damage.empty()
                      ? "whole"
                      : absl::StrCat("DAMAGED in ", report.damage.size(),
                                     report.damage.size() == 1 ? " place" : " places"),
                  ", ", report.tensors, " tensors, ", ByteText(report.bytes), " in ", report.blocks,
                  " blocks of ", report.files, report.files == 1 ? " file\n" : " files\n");
  return text;
}

std::string Json(const Damage& damage) {
  return absl::StrCat("{\"file\": ", JsonQuoted(damage.file),
                      ", \"block\": ", damage.block < 0 ? "null" : absl::StrCat(damage.block),
                      ", \"begin\": ", damage.begin, ", \"end\": ", damage.end,
                      ", \"text\": ", JsonQuoted(damage.text),
                      ", \"tensors\": ", JsonTexts(damage.tensors), "}");
}

std::string Json(const Verdict& verdict) {
  const std::string head = absl::StrCat("{\"folder\": ", JsonQuoted(verdict.folder),
                                        ", \"whole\": ", verdict.whole() ? "true" : "false");
  if (!verdict.report.ok()) {
    return absl::StrCat(
        head, ", \"error\": ", JsonQuoted(std::string(verdict.report.status().message())), "}");
  }
  const VerifyReport& report = *verdict.report;
  const std::string damage = absl::StrJoin(
      report.damage, ",\n    ", [](std::string* out, const Damage& d) { out->append(Json(d)); });
  return absl::StrCat(head, ", \"step\": ", report.step, ", \"files\": ", report.files,
                      ", \"blocks\": ", report.blocks, ", \"bytes\": ", report.bytes,
                      ", \"tensors\": ", report.tensors, ", \"damage\": [", damage, "]}");
}

// The checkpoint that `path` means, or all of a run folder but unfinished ones.
absl::StatusOr<std::vector<std::string>> FoldersOf(FileSystem& fs, const std::string& path,
                                                   const ToolOptions& options) {
  ASSIGN_OR_RETURN(const bool is_checkpoint, fs.Exists(JoinPath(path, kManifestFile)));
  std::vector<std::string> folders;
  if (!is_checkpoint && fs.List(path).ok()) {
    ASSIGN_OR_RETURN(const RunListing listing, ListRun(fs, path, ListDepth::kSizes, options));
    for (const ListedCheckpoint& listed : listing.checkpoints) {
      if (listed.state != CheckpointState::kUnfinished) folders.push_back(listed.folder);
    }
  }
  if (!folders.empty()) return folders;
  ASSIGN_OR_RETURN(std::string folder, ChooseCheckpoint(fs, path, options));
  return std::vector<std::string>{std::move(folder)};
}

absl::Status RunVerify(const CommandLine& line) {
  ToolBar bar(line, "verify");
  ASSIGN_OR_RETURN(const ToolOptions options, ReadToolOptions(line, bar));
  ASSIGN_OR_RETURN(const std::vector<std::string> paths, PathArguments(line, 1, "CHECKPOINT"));
  const std::unique_ptr<FileSystem> fs = MakePosixFileSystem();
  ASSIGN_OR_RETURN(const std::vector<std::string> folders, FoldersOf(*fs, paths[0], options));
  const bool json = line.flags.Switch("json");
  bool all_whole = true;
  line.out << (json ? "{\"checkpoints\": [" : "");
  for (size_t i = 0; i < folders.size(); ++i) {
    const Verdict verdict{folders[i], VerifyCheckpoint(*fs, folders[i], options)};
    if (absl::IsResourceExhausted(verdict.report.status())) return verdict.report.status();
    all_whole = all_whole && verdict.whole();
    line.out << (json ? absl::StrCat(i == 0 ? "\n  " : ",\n  ", Json(verdict)) : Text(verdict));
  }
  line.out << (json ? absl::StrCat("],\n \"whole\": ", all_whole ? "true" : "false", "}\n") : "");
  return all_whole ? absl::OkStatus() : EndWith(ExitCode::kCheckpoint);
}

}  // namespace

Command MakeCheckpointVerifyCommand() {
  return {.name = "verify",
          .summary = "compare every byte with its checksum",
          .description =
              "Reads all of a checkpoint, or all checkpoints of a run folder, and names every "
              "damaged place: file, block, bytes and the tensors there. Exit code 0: whole; 5: "
              "damaged.",
          .arguments = "CHECKPOINT",
          .max_arguments = 1,
          .flags = {JsonFlag(), MemoryFlag()},
          .run = RunVerify};
}

}  // namespace deepnet

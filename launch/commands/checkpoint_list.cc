#include <ctime>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include <sys/stat.h>

#include "launch/commands/checkpoint_tools.h"
#include "parallel/base/json.h"
#include "parallel/base/status_macros.h"
#include "trainer/checkpoint/format.h"
#include "trainer/checkpoint/tools/run_listing.h"

namespace deepnet {
namespace {

// When the manifest was written, seconds since 1970; the folder, where there is none. 0: unknown.
int64_t SavedAt(const std::string& folder) {
  struct stat info {};
  if (stat(JoinPath(folder, kManifestFile).c_str(), &info) != 0 &&
      stat(folder.c_str(), &info) != 0) {
    return 0;
  }
  return info.st_mtime;
}

std::string LocalTime(int64_t unix_seconds) {
  if (unix_seconds == 0) return "-";
  const time_t seconds = unix_seconds;
  tm local{};
  localtime_r(&seconds, &local);
  return absl::StrFormat("%04d-%02d-%02d %02d:%02d", local.tm_year + 1900, local.tm_mon + 1,
                         local.tm_mday, local.tm_hour, local.tm_min);
}

std::string StateText(CheckpointState state) {
  switch (state) {
    case CheckpointState::kWhole:
      return "whole";
    case CheckpointState::kDamaged:
      return "damaged";
    case CheckpointState::kUnfinished:
      return "unfinished";
    case CheckpointState::kReplaced:
      return "replaced";
  }
  return "";
}

// "best-bleu 14.06" where the checkpoint knows its score.
std::string MarkText(const ListedCheckpoint& listed, const std::string& mark) {
  for (const BestScore& best : listed.manifest.best()) {
    if (mark == absl::StrCat(kBestPointerPrefix, best.metric()) && best.step() == listed.step) {
      return absl::StrFormat("%s %.4g", mark, best.value());
    }
  }
  return mark;
}

std::string Table(const RunListing& listing) {
  if (listing.checkpoints.empty()) return "no checkpoints\n";
  std::string text = absl::StrFormat("%10s  %-16s  %10s  %9s  %15s  %-10s  %s\n", "step", "saved",
                                     "size", "trained", "target tokens", "state", "marks");
  for (const ListedCheckpoint& listed : listing.checkpoints) {
    const std::string marks =
        absl::StrJoin(listed.marks, ", ", [&listed](std::string* out, const std::string& mark) {
          out->append(MarkText(listed, mark));
        });
    const std::string row = absl::StrFormat(
        "%10d  %-16s  %10s  %9s  %15s  %-10s  %s", listed.step, LocalTime(SavedAt(listed.folder)),
        ByteText(listed.bytes), ClockText(listed.manifest.train_seconds()),
        WithCommas(listed.manifest.target_tokens()), StateText(listed.state), marks);
    absl::StrAppend(&text, absl::StripTrailingAsciiWhitespace(row), "\n");
  }
  for (const ListedCheckpoint& listed : listing.checkpoints) {
    for (const std::string& problem : listed.problems) absl::StrAppend(&text, problem, "\n");
  }
  for (const std::string& note : listing.notes) absl::StrAppend(&text, note, "\n");
  return text;
}

std::string Json(const ListedCheckpoint& listed) {
  const std::string best =
      absl::StrJoin(listed.manifest.best(), ", ", [](std::string* out, const BestScore& score) {
        absl::StrAppend(out, "{\"metric\": ", JsonQuoted(score.metric()),
                        ", \"value\": ", JsonNumber(score.value()), ", \"step\": ", score.step(),
                        "}");
      });
  return absl::StrCat(
      "{\"folder\": ", JsonQuoted(listed.folder), ", \"step\": ", listed.step,
      ", \"state\": ", JsonQuoted(StateText(listed.state)), ", \"bytes\": ", listed.bytes,
      ", \"saved_unix_seconds\": ", SavedAt(listed.folder),
      ", \"train_seconds\": ", JsonNumber(listed.manifest.train_seconds()),
      ", \"target_tokens\": ", listed.manifest.target_tokens(),
      ", \"averaged\": ", listed.manifest.averaged_size(), ", \"marks\": ", JsonTexts(listed.marks),
      ", \"best\": [", best, "], \"problems\": ", JsonTexts(listed.problems), "}");
}

std::string Json(const RunListing& listing) {
  const std::string rows =
      absl::StrJoin(listing.checkpoints, ",\n  ",
                    [](std::string* out, const auto& listed) { out->append(Json(listed)); });
  return absl::StrCat("{\"checkpoints\": [\n  ", rows, "],\n \"notes\": ", JsonTexts(listing.notes),
                      "}\n");
}

absl::Status RunList(const CommandLine& line) {
  ToolBar bar(line, "list");
  ASSIGN_OR_RETURN(const ToolOptions options, ReadToolOptions(line, bar));
  ASSIGN_OR_RETURN(const std::vector<std::string> paths, PathArguments(line, 1, "RUN"));
  const std::unique_ptr<FileSystem> fs = MakePosixFileSystem();
  const ListDepth depth = line.flags.Switch("verify") ? ListDepth::kContents : ListDepth::kSizes;
  ASSIGN_OR_RETURN(const RunListing listing, ListRun(*fs, paths[0], depth, options));
  line.out << (line.flags.Switch("json") ? Json(listing) : Table(listing));
  return absl::OkStatus();
}

}  // namespace

Command MakeCheckpointListCommand() {
  return {.name = "list",
          .summary = "what checkpoints a run has",
          .description =
              "A line for each checkpoint: its step, when it was saved, size, training time and "
              "target tokens so far, what points at it, and whether it is damaged; below, what is "
              "wrong with those that are. Files are only measured, unless --verify is given. "
              "Damaged checkpoints do not change the exit code: `verify` is for that.",
          .arguments = "RUN",
          .max_arguments = 1,
          .flags = {{.name = "verify",
                     .kind = FlagKind::kSwitch,
                     .help = "Read every byte and compare checksums."},
                    JsonFlag(),
                    MemoryFlag()},
          .run = RunList};
}

}  // namespace deepnet

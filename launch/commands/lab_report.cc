#include "launch/commands/lab_report.h"

#include <ostream>
#include <string>
#include <vector>

#include "launch/commands/lab_files.h"
#include "parallel/base/file_system.h"
#include "parallel/base/status_macros.h"
#include "trainer/probe/findings.h"
#include "trainer/probe/report.h"

namespace deepnet {
namespace {

constexpr int kMostFolders = 64;

absl::Status RunLabReport(const CommandLine& line) {
  const std::vector<std::string>& folders = line.flags.positional();
  if (folders.empty()) {
    return BadFlag("no folder given: one that `lab run` wrote");
  }
  const auto fs = MakePosixFileSystem();
  std::vector<LabResult> results;
  for (const std::string& folder : folders) {
    ASSIGN_OR_RETURN(results.emplace_back(), ReadLabResult(*fs, ResolvePath(line, folder)));
  }
  std::string file = line.flags.Text("html");
  if (file.empty()) file = JoinPath(folders.front(), kLabReportFile);
  RETURN_IF_ERROR(ReplaceFile(*fs, ResolvePath(line, file), MakeReport(results)));
  for (const LabResult& result : results) line.out << FindingsText(result);
  line.out << file << "\n";
  return absl::OkStatus();
}

}  // namespace

Command MakeLabReportCommand() {
  return {.name = "report",
          .summary = "make the page of one or several experiments again",
          .description =
              "Reads result.json of each FOLDER and writes one HTML page that needs nothing else; "
              "several experiments stand one below the other. Prints what they show and the page's "
              "name.",
          .arguments = "FOLDER...",
          .max_arguments = kMostFolders,
          .flags = {{.name = "html",
                     .value = "FILE",
                     .help = "Where the page goes; default: report.html in the first folder."}},
          .run = RunLabReport};
}

}  // namespace deepnet

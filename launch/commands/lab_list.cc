#include "launch/commands/lab_list.h"

#include <ostream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "trainer/probe/experiment.h"

namespace deepnet {
namespace {

std::string NumCells(const std::string& name, LabSize size) {
  const auto experiment = MakeExperiment(name, {.size = size});
  return experiment.ok() ? absl::StrCat(experiment->cells.size()) : "-";
}

absl::Status RunLabList(const CommandLine& line) {
  line.out << absl::StrFormat("%-9s  %-24s  %5s  %5s  %s\n", "name", "answers", "small", "paper",
                              "what it shows");
  for (const std::string& name : ExperimentNames()) {
    const auto experiment = MakeExperiment(name, {});
    line.out << absl::StrFormat("%-9s  %-24s  %5s  %5s  %s\n", name, experiment->answers,
                                NumCells(name, LabSize::kSmall), NumCells(name, LabSize::kPaper),
                                experiment->title);
  }
  line.out << "\nsmall, paper: runs in that size. `deepnet lab run NAME` runs the small one.\n";
  return absl::OkStatus();
}

}  // namespace

Command MakeLabListCommand() {
  return {
      .name = "list",
      .summary = "which experiments there are",
      .description = "A line each: its name, what of the paper it answers, how many runs it has.",
      .run = RunLabList};
}

}  // namespace deepnet

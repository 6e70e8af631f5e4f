#include "launch/commands/lab_list.h"

#include <ostream>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "launch/commands/lab_cells.h"
#include "launch/commands/lab_request.h"
#include "trainer/probe/experiment.h"

namespace deepnet {
namespace {

std::string NumCells(const std::string& name, LabSize size) {
  const auto experiment = MakeExperiment(name, {.size = size});
  return experiment.ok() ? absl::StrCat(experiment->cells.size()) : "-";
}

// What a launcher must start for a run of the size paper: "1", "8", "1 to 128".
std::string Ranks(const std::string& name, const LabSetup& setup) {
  const auto experiment = MakeExperiment(name, {.size = LabSize::kPaper});
  if (!experiment.ok()) return "-";
  std::set<int> ranks;
  for (const CellSpec& cell : experiment->cells) {
    if (!cell.checkpoint.empty()) continue;
    const auto run = ReadCellRun(setup, cell, cell.sets);
    if (!run.ok()) return "?";
    ranks.insert(NumRanks(*run));
  }
  if (ranks.size() == 1) return absl::StrCat(*ranks.begin());
  return absl::StrCat(*ranks.begin(), " to ", *ranks.rbegin());
}

absl::Status RunLabList(const CommandLine& line) {
  const LabSetup setup{.root = RootFolder(line), .recipes = line.flags.Text("recipes")};
  line.out << absl::StrFormat("%-9s  %-24s  %5s  %5s  %5s  %s\n", "name", "answers", "small",
                              "paper", "ranks", "what it shows");
  for (const std::string& name : ExperimentNames()) {
    const auto experiment = MakeExperiment(name, {});
    line.out << absl::StrFormat("%-9s  %-24s  %5s  %5s  %5s  %s\n", name, experiment->answers,
                                NumCells(name, LabSize::kSmall), NumCells(name, LabSize::kPaper),
                                Ranks(name, setup), experiment->title);
  }
  line.out << "\nsmall, paper: runs in that size. `deepnet lab run NAME` runs the small one.\n"
              "ranks: of a run in the size paper, what --launcher has to start; ?: no recipes.\n";
  return absl::OkStatus();
}

}  // namespace

Command MakeLabListCommand() {
  return {.name = "list",
          .summary = "which experiments there are",
          .description =
              "A line each: its name, what of the paper it answers, how many runs it has in "
              "either size, how many ranks a run of the size paper wants.",
          .flags = {RecipesFlag()},
          .run = RunLabList};
}

}  // namespace deepnet

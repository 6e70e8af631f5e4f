#include "launch/commands/lab_request.h"

#include <filesystem>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

#include "parallel/base/status_macros.h"
#include "trainer/probe/methods.h"

namespace deepnet {
namespace {

std::string ThisProgram() {
  std::error_code error;
  const auto path = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? "deepnet" : path.string();
}

LabSetup MakeSetup(const CommandLine& line, const Experiment& experiment) {
  LabSetup setup{.launcher = absl::StrSplit(line.flags.Text("launcher"), ' ', absl::SkipEmpty()),
                 .program = line.flags.Text("program"),
                 .root = RootFolder(line),
                 .recipes = line.flags.Text("recipes"),
                 .out = line.flags.Text("out"),
                 .data = line.flags.Text("data"),
                 .imported = line.flags.Text("m2m100"),
                 .sets = line.flags.List("set")};
  if (setup.program.empty()) setup.program = ThisProgram();
  if (setup.out.empty()) {
    setup.out = absl::StrCat("runs/lab/", experiment.name, "-", LabSizeName(experiment.size));
  }
  return setup;
}

absl::StatusOr<ExperimentOptions> ReadOptions(const CommandLine& line) {
  if (line.flags.Integer("seeds") < 0) {
    return BadFlag("--seeds: must be at least 1, or 0: the experiment's own number");
  }
  const bool paper = line.flags.Text("size") == LabSizeName(LabSize::kPaper);
  ExperimentOptions options{.size = paper ? LabSize::kPaper : LabSize::kSmall,
                            .seeds = static_cast<int>(line.flags.Integer("seeds")),
                            .series = line.flags.List("only")};
  for (const std::string& place : line.flags.List("at")) {
    if (!absl::SimpleAtod(place, &options.xs.emplace_back())) {
      return BadFlag(absl::StrCat("--at: '", place, "' is no number"));
    }
  }
  return options;
}

std::vector<std::string> GivenWords(const CommandLine& line) {
  std::vector<std::string> words;
  for (const char* flag : {"only", "at"}) {
    for (const std::string& value : line.flags.List(flag)) {
      words.insert(words.end(), {absl::StrCat("--", flag), value});
    }
  }
  for (const char* flag : {"root", "recipes", "launcher", "program", "m2m100"}) {
    if (!line.flags.Given(flag)) continue;
    words.insert(words.end(), {absl::StrCat("--", flag), line.flags.Text(flag)});
  }
  return words;
}

std::string OnlyHelp() {
  return absl::StrCat(
      "Only this one; may be given often. Where methods are compared over depth any will do, the "
      "experiment's own or not: ",
      absl::StrJoin(Methods(), ", ",
                    [](std::string* out, const Method& method) { *out += method.key; }),
      ".");
}

}  // namespace

Flag RecipesFlag() {
  return {.name = "recipes",
          .value = "FOLDER",
          .default_value = "launch/recipes",
          .help = "Where the recipes are."};
}

std::vector<Flag> LabRequestFlags() {
  return {{.name = "size",
           .value = "small|paper",
           .default_value = "small",
           .help = "small: on two cores in minutes to an hour and a half. paper: the published "
                   "settings, for a cluster.",
           .allowed = {"small", "paper"}},
          {.name = "data",
           .value = "FOLDER",
           .help = "Prepared corpus; default: the recipe's, for small that of the quick start."},
          {.name = "out",
           .value = "FOLDER",
           .help = "Where results go; default: runs/lab/EXPERIMENT-SIZE."},
          {.name = "seeds",
           .kind = FlagKind::kInteger,
           .value = "N",
           .default_value = "0",
           .help = "Runs that differ in their seed only; 0: the experiment's own number."},
          {.name = "only", .kind = FlagKind::kList, .value = "METHOD", .help = OnlyHelp()},
          {.name = "at",
           .kind = FlagKind::kList,
           .value = "X",
           .help = "Only at this place of the axis, for example 50 layers; may be given often. "
                   "Where the axis is depth, any depth will do."},
          {.name = "set",
           .kind = FlagKind::kList,
           .value = "FIELD=VALUE",
           .help = "Change one field of every run, as for `train`; the report names it."},
          {.name = "launcher",
           .value = "WORDS",
           .help = "What starts every run as several ranks: 'mpirun -n {ranks}', where {ranks} "
                   "is what the run's cluster asks for. `evaluate` is one process: it is started "
                   "with {ranks} as 1, or without a launcher that does not say {ranks}."},
          {.name = "program",
           .value = "FILE",
           .help = "The program that trains and scores; default: this one."},
          {.name = "m2m100",
           .value = "FOLDER",
           .help = "M2M-100's weights for table3 in the size paper, as `deepnet checkpoint import` "
                   "wrote them; default: runs/m2m100_12b."},
          RecipesFlag()};
}

absl::StatusOr<LabRequest> ReadLabRequest(const CommandLine& line) {
  const std::vector<std::string>& names = line.flags.positional();
  if (names.empty()) return BadFlag("no experiment given; `deepnet lab list` names them");
  ASSIGN_OR_RETURN(const ExperimentOptions options, ReadOptions(line));
  auto experiment = MakeExperiment(names[0], options);
  if (!experiment.ok()) return BadFlag(std::string(experiment.status().message()));
  LabRequest request{.experiment = *std::move(experiment)};
  request.setup = MakeSetup(line, request.experiment);
  request.given = GivenWords(line);
  return request;
}

std::string LabCommandText(const LabRequest& request) {
  const LabSetup& setup = request.setup;
  std::vector<std::string> words = {"deepnet", "lab",
                                    "run",     request.experiment.name,
                                    "--size",  LabSizeName(request.experiment.size),
                                    "--seeds", absl::StrCat(NumSeeds(request.experiment)),
                                    "--out",   setup.out};
  if (!setup.data.empty()) words.insert(words.end(), {"--data", setup.data});
  words.insert(words.end(), request.given.begin(), request.given.end());
  for (const std::string& set : setup.sets) words.insert(words.end(), {"--set", set});
  return ShellText(words);
}

}  // namespace deepnet

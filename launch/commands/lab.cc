#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"

#include "launch/commands/commands.h"

namespace deepnet {
namespace {

constexpr int kMaxWords = 64;

// Flags of launch/lab/lab.py, so that a command line as it was typed can be repeated.
constexpr const char* kProgramFlags[] = {"size",   "seeds",   "only", "at",       "set",
                                         "jobs",   "data",    "out",  "launcher", "program",
                                         "m2m100", "recipes", "html"};
constexpr const char* kProgramSwitches[] = {"commands", "plan", "keep-models"};

std::string Quoted(const std::string& word) {
  if (!word.empty() && word.find_first_of(" '\"{}$*?;&|<>()") == std::string::npos) return word;
  return absl::StrCat("'", absl::StrReplaceAll(word, {{"'", "'\\''"}}), "'");
}

// Experiments are run by a program of their own: says how this one is called there.
absl::Status NameProgram(const CommandLine& line) {
  std::vector<std::string> words = {"launch/lab/lab.py", line.command.name};
  for (const std::string& word : line.flags.positional()) words.push_back(Quoted(word));
  for (const char* flag : kProgramFlags) {
    for (const std::string& value : line.flags.List(flag)) {
      words.insert(words.end(), {absl::StrCat("--", flag), Quoted(value)});
    }
  }
  for (const char* flag : kProgramSwitches) {
    if (line.flags.Switch(flag)) words.push_back(absl::StrCat("--", flag));
  }
  if (line.flags.Given("root")) {
    words.insert(words.end(), {"--root", Quoted(line.flags.Text("root"))});
  }
  return BadFlag(
      absl::StrCat("experiments are run by launch/lab/lab.py; here: ", absl::StrJoin(words, " ")));
}

Command MovedCommand(const std::string& name, const std::string& summary) {
  Command command{.name = name,
                  .summary = absl::StrCat(summary, ": launch/lab/lab.py ", name, "."),
                  .description = "Is done by launch/lab/lab.py; this names the command.",
                  .arguments = "WORD...",
                  .max_arguments = kMaxWords,
                  .run = NameProgram};
  for (const char* flag : kProgramFlags) {
    command.flags.push_back(ListFlag(flag, "VALUE", "As in lab.py."));
  }
  for (const char* flag : kProgramSwitches) {
    command.flags.push_back(SwitchFlag(flag, "As in lab.py."));
  }
  return command;
}

}  // namespace

Command MakeLabCommand() {
  return {.name = "lab",
          .summary = "Look into models and corpora: what the experiments of launch/lab need.",
          .description =
              "The figures and tables of the paper as experiments are run by launch/lab/lab.py, "
              "which calls this program. Here is what needs the model or the corpus itself. "
              "docs/lab.md says what each experiment shows.",
          .subcommands = {MakeLabAuditCommand(), MakeLabModelUpdateCommand(),
                          MakeLabAdminProfileCommand(), MakeLabCorpusCommand(),
                          MovedCommand("list", "List the experiments"),
                          MovedCommand("run", "Run an experiment"),
                          MovedCommand("report", "Make the page of experiments again"),
                          MovedCommand("instruments", "Print what the instruments of a run saw")}};
}

}  // namespace deepnet

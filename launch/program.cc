#include "launch/program.h"

#include <algorithm>
#include <exception>
#include <istream>
#include <ostream>
#include <utility>

#include "absl/strings/str_cat.h"

#include "launch/nearest_name.h"
#include "launch/spec_loader.h"
#include "launch/version.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"

namespace deepnet {
namespace {

std::string ProgramHelp(const std::vector<Command>& commands) {
  std::string text =
      "deepnet: trains very deep translation Transformers and translates with them.\n\n"
      "Usage: deepnet COMMAND [FLAGS]\n\nCommands:\n";
  for (const Command& command : commands) {
    std::string name = command.name;
    name.resize(std::max<size_t>(name.size() + 1, 12), ' ');
    absl::StrAppend(&text, "  ", name, command.summary, "\n");
  }
  absl::StrAppend(&text,
                  "\n`deepnet COMMAND --help` says more. `deepnet --version` prints the version.\n"
                  "A run is described by a RunSpec file: proto/run.proto, launch/recipes.\n"
                  "Exit codes: 0 done, 1 internal error, 2 bad flag or RunSpec, 4 data, "
                  "5 checkpoint,\n6 does not fit, 7 diverged, 75 saved, run the same again.\n");
  return text;
}

std::string CommandHelp(const Command& command) {
  const bool needs_config = command.spec == SpecUse::kRequired;
  std::string text =
      absl::StrCat("deepnet ", command.name, ": ", command.summary, ".\n\nUsage: deepnet ",
                   command.name, needs_config ? " --config FILE" : "", " [FLAGS]",
                   command.arguments.empty() ? "" : " ", command.arguments, "\n\n");
  if (!command.description.empty()) {
    absl::StrAppend(&text, WrapText(command.description, 0, 100), "\n\n");
  }
  absl::StrAppend(&text, "Flags:\n", FlagHelp(AllFlags(command)));
  return text;
}

absl::Status BadUsage(const std::string& text) {
  return WithExitCode(absl::InvalidArgumentError(text), ExitCode::kBadConfig);
}

absl::Status RunCommand(const Command& command, const std::vector<std::string>& words,
                        const Streams& streams) {
  // Help wins over everything else, mistakes included.
  const auto asks_help = [](const std::string& word) { return word == "--help" || word == "-h"; };
  if (std::any_of(words.begin(), words.end(), asks_help)) {
    streams.out << CommandHelp(command);
    return absl::OkStatus();
  }
  absl::StatusOr<ParsedFlags> flags = ParseFlags(AllFlags(command), words, command.max_arguments);
  if (!flags.ok()) return BadUsage(std::string(flags.status().message()));
  if (command.spec == SpecUse::kRequired && !flags->Given("config")) {
    return BadUsage("--config: required; complete ones are in launch/recipes");
  }
  const CommandLine line{command, *std::move(flags), streams.in, streams.out, streams.err};
  if (command.spec == SpecUse::kRequired && line.flags.Switch("dump-config")) {
    ASSIGN_OR_RETURN(const RunSpec run, LoadRunSpec(line));
    streams.out << ToTextproto(run);
    return absl::OkStatus();
  }
  return command.run(line);
}

absl::Status Dispatch(const std::vector<Command>& commands, const std::vector<std::string>& words,
                      const Streams& streams) {
  if (words.empty()) return BadUsage("no command given\n" + ProgramHelp(commands));
  if (words[0] == "--help" || words[0] == "-h" || words[0] == "help") {
    streams.out << ProgramHelp(commands);
    return absl::OkStatus();
  }
  if (words[0] == "--version") {
    streams.out << "deepnet " << kVersion << "\n";
    return absl::OkStatus();
  }
  std::vector<std::string> names;
  for (const Command& command : commands) {
    if (command.name == words[0]) {
      return RunCommand(command, {words.begin() + 1, words.end()}, streams);
    }
    names.push_back(command.name);
  }
  return BadUsage(absl::StrCat(words[0], ": unknown command", SuggestName(words[0], names)));
}

// "error: one thing" or, for several lines, "error:" and the lines below it. No message: somebody
// else prints it.
void PrintError(std::ostream& err, const std::string& message) {
  if (message.empty()) return;
  const bool several = message.find('\n') != std::string::npos;
  err << "error:" << (several ? "\n" : " ") << message << std::endl;
}

}  // namespace

int RunProgram(const std::vector<Command>& commands, const std::vector<std::string>& words,
               const Streams& streams) {
  absl::Status status;
  try {
    status = Dispatch(commands, words, streams);
  } catch (const std::exception& exception) {  // LibTorch throws; the outermost frame reports it
    status = absl::InternalError(exception.what());
  }
  streams.out.flush();
  if (!status.ok()) PrintError(streams.err, std::string(status.message()));
  return static_cast<int>(GetExitCode(status));
}

}  // namespace deepnet

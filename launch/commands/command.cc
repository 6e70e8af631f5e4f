#include "launch/commands/command.h"

#include <algorithm>
#include <exception>
#include <filesystem>
#include <istream>
#include <ostream>
#include <set>
#include <streambuf>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "launch/defaults.h"
#include "launch/field_names.h"
#include "launch/spec_printer.h"
#include "launch/version.h"
#include "parallel/base/check.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/fd_stream.h"
#include "parallel/base/status_macros.h"
#include "parallel/base/utf8.h"
#include "trainer/model/describe.h"

namespace deepnet {
namespace {

// Fills in the rows of an embedding on the corpus that `prepare` is going to make, where the model
// leaves them to the corpus and `prepare` says them. Returns what was done; empty: nothing.
std::string FillVocabulary(RunSpec* run) {
  constexpr int64_t kOpus100Languages = 100;
  const PrepareSpec& prepare = run->prepare();
  const bool opus100 = !prepare.opus100_folder().empty();
  const bool all_of_opus100 = opus100 && prepare.languages().empty();
  const bool reads = opus100 || prepare.text_size() > 0 || prepare.table_size() > 0;
  if (run->model().vocabulary_size() != 0) return "";
  if (!reads || !prepare.tokenizer().model_file().empty()) return "";
  std::set<std::string> languages(prepare.languages().begin(), prepare.languages().end());
  for (const TextFiles& text : prepare.text()) {
    languages.insert({text.source_language(), text.target_language()});
    if (!text.tag().empty()) languages.insert(text.tag());
  }
  bool exact = !all_of_opus100;  // every language is known
  for (const LanguageTable& table : prepare.table()) {
    languages.insert(table.pivot_language());
    languages.insert(table.languages().begin(), table.languages().end());
    exact = exact && table.languages_size() > 0;
  }
  const int64_t tags = std::max<int64_t>(languages.size(), all_of_opus100 ? kOpus100Languages : 0);
  const int64_t pieces = prepare.tokenizer().vocab_size();
  run->mutable_model()->set_vocabulary_size(pieces + tags);
  return absl::StrCat("model.vocabulary_size is not set: taking ", pieces + tags,
                      exact ? "" : ", estimated", " from prepare: ", pieces, " pieces and ", tags,
                      " languages\n");
}

std::string CommandList(const std::vector<Command>& commands) {
  std::string text = "Commands:\n";
  for (const Command& command : commands) {
    std::string name = command.name;
    name.resize(std::max<size_t>(name.size() + 1, 12), ' ');
    absl::StrAppend(&text, "  ", name, command.summary, "\n");
  }
  return text;
}

std::string ProgramHelp(const std::vector<Command>& commands) {
  return absl::StrCat(
      "deepnet: trains very deep translation Transformers and translates with them.\n\n"
      "Usage: deepnet COMMAND [FLAGS]\n\n",
      CommandList(commands),
      "\n`deepnet COMMAND --help` says more. `deepnet --version` prints the version.\n"
      "A run is described by a RunSpec file: proto/run.proto, launch/recipes.\n"
      "Exit codes: 0 done, 1 internal error, 2 bad flag or RunSpec, 3 preflight, 4 data, "
      "5 checkpoint,\n6 does not fit, 7 diverged, 8 hang, 9 a peer was lost, "
      "10 replicas disagree,\n75 saved, run the same again.\n");
}

// Returns the head of a command's help. `name` is as typed, here and below: "checkpoint list".
std::string HelpHead(const Command& command, const std::string& name, const std::string& usage) {
  std::string head = absl::StrCat("deepnet ", name, ": ", command.summary, "\n\nUsage: deepnet ",
                                  name, usage, "\n\n");
  if (command.description.empty()) return head;
  return absl::StrCat(head, WrapText(command.description, 0, 100), "\n\n");
}

std::string GroupHelp(const Command& command, const std::string& name) {
  return absl::StrCat(HelpHead(command, name, " COMMAND [FLAGS]"), CommandList(command.subcommands),
                      "\n`deepnet ", name, " COMMAND --help` says more.\n");
}

std::string CommandHelp(const Command& command, const std::string& name) {
  const bool needs_config = command.spec == SpecUse::kRequired;
  std::string usage = absl::StrCat(needs_config ? " --config FILE" : "", " [FLAGS]",
                                   command.arguments.empty() ? "" : " ", command.arguments);
  if (command.load != nullptr) usage = absl::StrCat(" ", command.arguments, " [FLAGS]");
  return absl::StrCat(HelpHead(command, name, usage), "Flags:\n", FlagHelp(AllFlags(command)));
}

// Hands lines on to `out` as ShownLines has them: names out of files may hold anything.
class ShownBuffer final : public std::streambuf {
 public:
  explicit ShownBuffer(std::ostream& out) : out_(out) {}
  ~ShownBuffer() override { sync(); }

  ShownBuffer(const ShownBuffer&) = delete;
  ShownBuffer& operator=(const ShownBuffer&) = delete;

 protected:
  int sync() override {
    HandOn(text_.size());
    return out_.flush() ? 0 : -1;
  }
  int_type overflow(int_type c) override {
    if (c == traits_type::eof()) return traits_type::not_eof(c);
    text_ += traits_type::to_char_type(c);
    if (text_.back() == '\n') HandOn(text_.size());
    return out_ ? c : traits_type::eof();
  }
  std::streamsize xsputn(const char* bytes, std::streamsize count) override {
    text_.append(bytes, static_cast<size_t>(count));
    HandOn(text_.rfind('\n') + 1);  // nothing where there is none
    return out_ ? count : 0;
  }

 private:
  void HandOn(size_t count) {
    out_ << ShownLines(std::string_view(text_).substr(0, count));
    text_.erase(0, count);
  }

  std::ostream& out_;
  std::string text_;  // the line that has not ended
};

bool AsksForHelp(const std::string& word) { return word == "--help" || word == "-h"; }

absl::Status RunCommand(const Command& command, const std::string& name,
                        const std::vector<std::string>& words, const Environment& environment) {
  // Help wins over everything else, mistakes included.
  if (std::any_of(words.begin(), words.end(), AsksForHelp)) {
    environment.out << CommandHelp(command, name);
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(ParsedFlags flags, ParseFlags(AllFlags(command), words, command.max_arguments));
  if (command.spec == SpecUse::kRequired && command.load == nullptr && !flags.Given("config")) {
    return ConfigError("--config: required; complete ones are in launch/recipes");
  }
  ShownBuffer buffer(environment.out);
  std::ostream shown(&buffer);
  const bool json = flags.Has("json") && flags.Switch("json");
  const CommandLine line{
      WithStreams(environment, command.prints_data || json ? environment.out : shown,
                  environment.err),
      command, std::move(flags)};
  if (command.spec == SpecUse::kRequired && line.flags.Switch("dump-config")) {
    ASSIGN_OR_RETURN(const RunSpec run,
                     command.load != nullptr ? command.load(line) : LoadConfig(line));
    environment.out << ToCompleteTextproto(run);
    return absl::OkStatus();
  }
  return command.run(line);
}

// Runs the one of `commands` that words[0] names; `group`, "" or "checkpoint ", stands before it.
absl::Status RunNamed(const std::vector<Command>& commands, const std::string& group,
                      const std::string& help, const std::vector<std::string>& words,
                      const Environment& environment) {
  if (words.empty()) return ConfigError("no command given\n" + help);
  if (AsksForHelp(words[0]) || words[0] == "help") {
    environment.out << help;
    return absl::OkStatus();
  }
  std::vector<std::string> names;
  for (const Command& command : commands) {
    names.push_back(command.name);
    if (command.name != words[0]) continue;
    const std::string name = group + command.name;
    const std::vector<std::string> rest(words.begin() + 1, words.end());
    if (command.subcommands.empty()) return RunCommand(command, name, rest, environment);
    return RunNamed(command.subcommands, name + " ", GroupHelp(command, name), rest, environment);
  }
  return ConfigError(group, words[0], ": unknown command", SuggestName(words[0], names));
}

}  // namespace

SpecSources SourcesOf(const CommandLine& line) {
  return {RootFolder(line), line.flags.List("config"), line.flags.List("set")};
}

absl::StatusOr<RunSpec> LoadConfig(const CommandLine& line, RunSpec base) {
  DEEPNET_CHECK(line.command.spec != SpecUse::kNone) << line.command.name << " takes no --config";
  ASSIGN_OR_RETURN(RunSpec run, ReadRunSpec(SourcesOf(line), std::move(base)));
  run = WithDefaults(std::move(run));
  if (run.compute().device().empty()) run.mutable_compute()->set_device("auto");
  if (line.command.validate == nullptr) return run;
  RunSpec checked = run;
  if (line.command.plans) FillVocabulary(&checked);
  RETURN_IF_ERROR(line.command.validate(checked));
  return run;
}

absl::StatusOr<RunSpec> LoadRunSpec(const CommandLine& line, RunSpec base) {
  ASSIGN_OR_RETURN(RunSpec run, LoadConfig(line, std::move(base)));
  const bool open = run.compute().device() == "auto";
  ResolveDevice(line, run.mutable_compute());
  if (!line.command.plans) return run;
  line.err << FillVocabulary(&run);
  if (open && run.compute().device() == "cpu") {
    line.err << "compute.device is auto, and no GPU is seen: planning for the CPU "
                "(--set compute.device=cuda plans for GPUs)\n";
  }
  return run;
}

void ResolveDevice(const CommandLine& line, ComputeSpec* compute) {
  if (compute->device() != "auto") return;
  const bool wants_cpu = compute->matmul() == NATIVE || compute->isa() != ISA_UNSPECIFIED;
  const bool cuda = !wants_cpu && line.has_cuda != nullptr && line.has_cuda();
  compute->set_device(cuda ? "cuda" : "cpu");
}

Inventory InventoryOf(const CommandLine& line, const RunSpec& run) {
  Inventory inventory = Describe(run.model(), run.data().microbatch());
  if (line.describe_work != nullptr) {
    line.describe_work(run.model(), run.data().microbatch(), run.compute(), inventory);
  }
  return inventory;
}

std::string RootFolder(const CommandLine& line) { return line.flags.Text("root"); }

std::string ResolvePath(const CommandLine& line, const std::string& path) {
  return std::filesystem::path(RootFolder(line)) / path;
}

Environment WithStreams(const Environment& environment, std::ostream& out, std::ostream& err) {
  return {environment.in,           out, err, environment.has_cuda, environment.status_of_exception,
          environment.describe_work};
}

Flag JsonFlag() { return SwitchFlag("json", "Print JSON instead of a table."); }

std::vector<Flag> AllFlags(const Command& command) {
  std::vector<Flag> flags = command.flags;
  if (command.spec != SpecUse::kNone) {
    flags.push_back(
        ListFlag("config", "FILE",
                 "RunSpec as a textproto, or as JSON if the name ends in .json "
                 "(proto/run.proto; complete ones: launch/recipes). A later file wins."));
    flags.push_back(ListFlag("set", "FIELD=VALUE",
                             "Change one field after all files: model.encoder_layers=50, "
                             "model.residual=POST_LN, data.directions=de-en,en-de. "
                             "An empty value means the default."));
  }
  if (command.spec == SpecUse::kRequired) {
    flags.push_back(
        SwitchFlag("dump-config",
                   "Print every field of the RunSpec, defaults filled in, and do nothing else."));
  }
  flags.push_back(TextFlag("root", "FOLDER",
                           "What relative paths, those of the RunSpec included, start from.", "."));
  flags.push_back(SwitchFlag("help", "Print this."));
  return flags;
}

int RunProgram(const std::vector<Command>& commands, const std::vector<std::string>& words,
               const Environment& environment) {
  absl::Status status;
  try {
    if (!words.empty() && words[0] == "--version") {
      environment.out << "deepnet " << kVersion << "\n";
    } else {
      status = RunNamed(commands, "", ProgramHelp(commands), words, environment);
    }
  } catch (const std::exception& exception) {  // LibTorch throws; the outermost frame reports it
    status = environment.status_of_exception != nullptr ? environment.status_of_exception()
                                                        : absl::InternalError(exception.what());
  }
  environment.out.flush();
  if (status.ok()) status = WithPrefix("standard output", StreamError(environment.out));
  // "error: one thing" or, for several lines, "error:" and the lines below it. No message: somebody
  // else prints it.
  const std::string message(status.message());
  if (!message.empty()) {
    environment.err << "error:" << (absl::StrContains(message, '\n') ? "\n" : " ")
                    << ShownLines(message) << std::endl;
  }
  return static_cast<int>(GetExitCode(status));
}

}  // namespace deepnet

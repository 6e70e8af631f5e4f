// The subcommands of `deepnet`, and their frame: it picks one, reads its flags, prints --help, and
// turns the returned Status into "error: ..." on stderr and an exit code
// (parallel/base/exit_code.h).
//
// launch/commands/score.cc is a short one to start from.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "launch/flags.h"
#include "launch/spec_loader.h"
#include "parallel/plan/inventory.h"
#include "proto/run.pb.h"

namespace deepnet {

struct CommandLine;

// Adds to an inventory what its kernels cost on a GPU: DescribeWork of trainer/model/work.h,
// which needs LibTorch.
using WorkDescriber = void(const ModelSpec& model, const MicrobatchSpec& microbatch,
                           const ComputeSpec& compute, Inventory& inventory);

// Says if a subcommand takes --config and --set.
enum class SpecUse {
  kNone,      // neither
  kOptional,  // both; LoadRunSpec(line, base) changes `base`, for example a checkpoint's RunSpec
  kRequired,  // both, --config at least once, and --dump-config
};

struct Command {
  std::string name;               // as typed
  std::string summary;            // one line of `deepnet --help`, a sentence
  std::string description = {};   // paragraphs of `deepnet <name> --help`, wrapped
  std::string arguments = {};     // what --help calls the positional words, for example "[FILE]"
  int max_arguments = 0;          // positional words at most
  SpecUse spec = SpecUse::kNone;  // see there
  bool prints_data = false;       // its results are bytes for other programs, without --json too
  bool plans = false;             // LoadRunSpec fills in model.vocabulary_size, and says for what
  // kRequired: reads the RunSpec in place of LoadConfig, perhaps without --config; `arguments` then
  // stands first in the usage and says what it takes.
  absl::StatusOr<RunSpec> (*load)(const CommandLine& line) = nullptr;
  absl::Status (*validate)(const RunSpec& run) = nullptr;  // what LoadRunSpec applies at the end
  std::vector<Flag> flags = {};  // besides --root, --help and those of `spec`
  absl::Status (*run)(const CommandLine& line) = nullptr;  // required, unless:
  // `deepnet <name> <subcommand>`; then only name, summary and description count beside it.
  std::vector<Command> subcommands = {};
};

// The process around the program. Streams are borrowed: tests hand in string streams.
struct Environment {
  std::istream& in;              // stdin
  std::ostream& out;             // results; where they are for people, a terminal may get them
  std::ostream& err;             // everything for people, as ShownLines (utf8.h) or a Logger has it
  bool (*has_cuda)() = nullptr;  // says if this build sees a CUDA device; null: it sees none
  // Returns the exception that is being handled (trainer/kernels/device_errors.h); null: its text.
  absl::Status (*status_of_exception)() = nullptr;
  WorkDescriber* describe_work = nullptr;  // null: plans for GPUs follow from operations alone
};

// Returns `environment` with other streams for what is said.
Environment WithStreams(const Environment& environment, std::ostream& out, std::ostream& err);

// The arguments of a command, and what is around it.
struct CommandLine : Environment {
  const Command& command;
  ParsedFlags flags;  // the command's own and the common ones
};

// Returns what --config and --set name.
SpecSources SourcesOf(const CommandLine& line);

// Returns the RunSpec of this command line: `base`, then every --config in order, then every --set,
// then defaults (launch/defaults.h), checked by the command's `validate`. compute.device is "auto"
// where nothing says more. Errors carry ExitCode::kBadConfig and list all mistakes, a line each.
// Only where the command's `spec` is not kNone.
absl::StatusOr<RunSpec> LoadConfig(const CommandLine& line, RunSpec base = {});

// The same with compute.device decided, which a command with `plans` also says on stderr, as the
// vocabulary that it takes from `prepare` where the model gives none.
absl::StatusOr<RunSpec> LoadRunSpec(const CommandLine& line, RunSpec base = {});

// Decides compute.device "auto": "cuda" where this build sees a CUDA device and nothing asks for
// kernels of the CPU, else "cpu".
void ResolveDevice(const CommandLine& line, ComputeSpec* compute);

// Returns the model of `run` with all that a planner knows of it.
Inventory InventoryOf(const CommandLine& line, const RunSpec& run);

// Returns the folder of --root, which relative paths in a RunSpec and on the command line start
// from.
std::string RootFolder(const CommandLine& line);

// Returns `path` as it can be opened: absolute as it is, relative below --root.
std::string ResolvePath(const CommandLine& line, const std::string& path);

// Returns the flag --json, for commands whose result a program may read.
Flag JsonFlag();

// Returns all flags of `command`: its own first, then the common ones.
std::vector<Flag> AllFlags(const Command& command);

// Runs the subcommand that `words` (the command line without the program's name) asks for. Returns
// the exit code of the process. Exceptions of libraries end as code 1 with their text, or as
// status_of_exception says.
int RunProgram(const std::vector<Command>& commands, const std::vector<std::string>& words,
               const Environment& environment);

// The subcommands, each in the file of its name. A new one stands here, in the table of
// launch/main.cc and in launch/CMakeLists.txt.
Command MakePrepareCommand();
Command MakeDescribeCommand();
Command MakePlanCommand();
Command MakeRehearseCommand();
Command MakeTrainCommand();
Command MakeTranslateCommand();
Command MakeScoreCommand();
Command MakeEvaluateCommand();
Command MakeDoctorCommand();
Command MakeBenchCommand();
Command MakeCheckpointCommand();
Command MakeLabCommand();
Command MakeLabCorpusCommand();  // a subcommand of `lab`, without LibTorch

}  // namespace deepnet

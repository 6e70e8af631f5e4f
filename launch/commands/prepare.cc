#include "trainer/data/prepare/prepare.h"

#include <filesystem>
#include <istream>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"

#include "launch/commands/command.h"
#include "launch/defaults.h"
#include "launch/job.h"
#include "launch/spec_loader.h"
#include "launch/validate.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/fd_stream.h"
#include "parallel/base/file_system.h"
#include "parallel/base/logging.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/agreement.h"
#include "trainer/data/corpus_manifest.h"
#include "trainer/data/corpus_shard.h"
#include "trainer/data/prepare/file_writer.h"
#include "trainer/data/prepare/parallel_text.h"

namespace deepnet {
namespace {

namespace fs = std::filesystem;

// Returns the RunSpec of --config and --set, with --tsv as the last of its texts.
absl::StatusOr<RunSpec> LoadRunSpecWithTsv(const CommandLine& line) {
  if (!line.flags.Given("tsv")) {
    for (const char* flag : {"from", "to", "score-threshold"}) {
      if (line.flags.Given(flag)) return ConfigError("--", flag, ": only with --tsv");
    }
    if (line.flags.Given("config")) return LoadConfig(line);
    return ConfigError("--config: required, or --tsv; complete ones are in launch/recipes");
  }
  if (!line.flags.Given("from") || !line.flags.Given("to")) {
    return ConfigError("--tsv: needs --from and --to, the languages of its columns");
  }
  ASSIGN_OR_RETURN(RunSpec run, ReadRunSpec(SourcesOf(line), RunSpec()));
  TextFiles* const text = run.mutable_prepare()->add_text();
  text->set_tsv_file(line.flags.Text("tsv"));
  text->set_source_language(line.flags.Text("from"));
  text->set_target_language(line.flags.Text("to"));
  if (line.flags.Given("score-threshold")) {
    text->set_score_threshold(line.flags.Number("score-threshold"));
  }
  run = WithDefaults(std::move(run));
  RETURN_IF_ERROR(ValidateForPrepare(run));
  return run;
}

// Writes what comes from the pipe `what` to `path`, because `prepare` reads its texts twice and
// knows them again by name, size and time. A file there with the same contents stays as it is; one
// with others is replaced only where `may_replace`. Errors leave it and nothing else.
absl::Status KeepBytes(std::istream& in, const std::string& what, const std::string& path,
                       bool may_replace) {
  const fs::path folder = fs::path(path).parent_path();
  const std::string unfinished = UnusedName();
  std::error_code error;
  fs::create_directories(folder, error);  // Create() says what is wrong
  ASSIGN_OR_RETURN(const auto file, FileWriter::Create(folder, unfinished));
  const absl::Cleanup remove = [&] {
    MakePosixFileSystem()->Delete(folder / unfinished).IgnoreError();
  };
  std::string bytes(1 << 20, '\0');
  while ((in.read(bytes.data(), static_cast<std::streamsize>(bytes.size())) || in.gcount() > 0) &&
         file->Append(std::string_view(bytes.data(), static_cast<size_t>(in.gcount())))) {
  }
  ASSIGN_OR_RETURN(const CorpusFile written, file->Finish());
  RETURN_IF_ERROR(WithPrefix(what, StreamError(in)));
  if (written.bytes() == 0) {
    return InvalidArgument("nothing comes from ", what);
  }
  if (fs::exists(path, error)) {
    ASSIGN_OR_RETURN(const uint64_t known, HashFile(path));
    if (known == written.hash()) return absl::OkStatus();
    if (!may_replace) {
      return FailedPrecondition(
          path,
          " has another text: choose another data.folder, or replace it: --extend, "
          "--set prepare.replace=true");
    }
  }
  fs::rename(folder / unfinished, path, error);
  if (!error) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(path, ": ", error.message()));
}

// Reads --tsv if it is a pipe, or "-" for standard input, and names the file that keeps it in
// `run`. Rank 0 reads. Collective.
absl::Status ReadPipe(const CommandLine& line, Communicator& world, Logger& log, RunSpec* run) {
  const std::string& given = line.flags.Text("tsv");
  std::error_code error;
  const bool is_pipe = given == "-" || fs::is_fifo(ResolvePath(line, given), error);
  ASSIGN_OR_RETURN(const std::string taken, BroadcastText(world, is_pipe ? "taken" : "", 0));
  if (taken.empty()) return absl::OkStatus();
  std::string folder = run->data().folder();
  while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
  const std::string name = folder + ".tsv";
  run->mutable_prepare()->mutable_text()->rbegin()->set_tsv_file(name);
  absl::Status kept;
  if (world.rank() == 0) {
    const std::string what = given == "-" ? "standard input" : given;
    log.Info(absl::StrCat(what, " is kept as ", name));
    const std::string root = RootFolder(line);
    const bool may_replace =
        !line.flags.Switch("dry-run") && (line.flags.Switch("extend") || run->prepare().replace());
    const std::string path = Rooted(root, name);
    if (given == "-") {
      kept = KeepBytes(line.in, what, path, may_replace);
    } else if (const auto pipe = FdStream::Open(ResolvePath(line, given)); pipe.ok()) {
      kept = KeepBytes(**pipe, what, path, may_replace);
    } else {
      kept = pipe.status();
    }
    kept = WithExitCode(WithPrefix(absl::StrCat("--tsv ", given), kept), ExitCode::kData);
  }
  return AgreeOnStatus(world, kept);
}

absl::Status PrepareOnAllRanks(const CommandLine& line, Communicator& world) {
  ASSIGN_OR_RETURN(RunSpec run, AgreeOn(world, LoadRunSpecWithTsv(line)));
  Logger log({.stream = &line.err});
  if (line.flags.Given("tsv")) RETURN_IF_ERROR(ReadPipe(line, world, log, &run));
  ASSIGN_OR_RETURN(const CorpusReport report,
                   Prepare(run.prepare(), run.data().folder(), RootFolder(line),
                           [&log](std::string_view message) { log.Info(message); },
                           {.world = &world,
                            .extend = line.flags.Switch("extend"),
                            .dry_run = line.flags.Switch("dry-run"),
                            .verify = line.flags.Switch("verify")}));
  if (line.flags.Switch("dry-run") || world.rank() != 0) return absl::OkStatus();
  if (report.reused()) log.Info("already prepared from the same files: nothing to do");
  line.out << (line.flags.Switch("json") ? ReportJson(report) : ReportTable(report));
  return absl::OkStatus();
}

}  // namespace

Command MakePrepareCommand() {
  return {.name = "prepare",
          .summary = "Clean raw text, learn a tokenizer, write the corpus that train reads.",
          .description =
              "Reads what `prepare` in the RunSpec names: a folder in OPUS-100's layout, pairs of "
              "Moses files, TSV files; plain, .gz or .zst. Drops unusable pairs and counts why, "
              "drops training pairs that occur in dev or test, learns one joint SentencePiece "
              "model (or takes one), and writes shards, tokenizer and report to data.folder.\n"
              "Run again with the same input, it finds its work done. Interrupted, it leaves "
              "nothing that looks complete, and the same command goes on with what was finished.\n"
              "`mpirun -n R deepnet prepare ...` shares the work between R ranks, on one host or "
              "on many that see one file system: the corpus is the same to the byte.",
          .arguments = "--config FILE | --tsv FILE",
          .spec = SpecUse::kRequired,
          .load = LoadRunSpecWithTsv,
          .validate = ValidateForPrepare,
          .flags = {JsonFlag(),
                    TextFlag("tsv", "FILE",
                             "A further training text, or the only one: lines of source, target "
                             "and perhaps a score, separated by tabs. - is standard input. Of it "
                             "or a pipe a copy is kept by data.folder. From Parquet, JSON lines "
                             "and Hugging Face's datasets: launch/corpora/to_tsv.py."),
                    TextFlag("from", "LANGUAGE", "Language of the first column of --tsv."),
                    TextFlag("to", "LANGUAGE", "Language of its second column."),
                    NumberFlag("score-threshold", "S",
                               "Pairs of --tsv with a score below S are dropped."),
                    SwitchFlag("dry-run",
                               "Only print the size and time of what is ahead, tables apart, on "
                               "these ranks and on 1, 16 and 64."),
                    SwitchFlag("verify",
                               "Where the work is done already, compare every byte with its "
                               "checksum, however long the corpus is (without: up to 1 GiB)."),
                    SwitchFlag("extend",
                               "Replace another corpus in data.folder, for example one with fewer "
                               "languages: its tokenizer is kept, and only what is new or changed "
                               "is cut into pieces.")},
          .run = [](const CommandLine& line) { return RunOnRanks(line, PrepareOnAllRanks); }};
}

}  // namespace deepnet

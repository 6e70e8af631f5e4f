#include "trainer/data/prepare.h"

#include <memory>
#include <ostream>
#include <string_view>

#include "launch/commands/commands.h"
#include "launch/job.h"
#include "launch/validate.h"
#include "parallel/base/logging.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/agreement.h"
#include "trainer/data/corpus_manifest.h"

namespace deepnet {
namespace {

absl::Status PrepareOnAllRanks(const CommandLine& line, Communicator& world) {
  const absl::StatusOr<RunSpec> run = LoadRunSpec(line);
  RETURN_IF_ERROR(AgreeOnStatus(world, run.status()));
  Logger log({.stream = &line.err});
  ASSIGN_OR_RETURN(const CorpusReport report,
                   Prepare(run->prepare(), run->data().folder(), RootFolder(line),
                           [&log](std::string_view message) { log.Info(message); },
                           {.world = &world,
                            .extend = line.flags.Switch("extend"),
                            .dry_run = line.flags.Switch("dry-run")}));
  if (line.flags.Switch("dry-run")) return absl::OkStatus();
  if (world.rank() != 0) return absl::OkStatus();
  if (report.reused()) log.Info("already prepared from the same files: nothing to do");
  line.out << (line.flags.Switch("json") ? ReportJson(report) : ReportTable(report));
  return absl::OkStatus();
}

absl::Status RunPrepare(const CommandLine& line) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Job> job, JoinJob());
  return LeaveJob(job->world(), PrepareOnAllRanks(line, job->world()));
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
          .spec = SpecUse::kRequired,
          .validate = ValidateForPrepare,
          .flags = {JsonFlag(),
                    SwitchFlag("dry-run",
                               "Only print the size and time of what is ahead, tables apart, on "
                               "these ranks and on 1, 16 and 64."),
                    SwitchFlag("extend",
                               "Replace another corpus in data.folder, for example one with fewer "
                               "languages: its tokenizer is kept, and only what is new or changed "
                               "is cut into pieces.")},
          .run = RunPrepare};
}

}  // namespace deepnet

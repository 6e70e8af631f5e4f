#include "trainer/data/prepare.h"

#include <ostream>
#include <string_view>

#include "launch/commands/commands.h"
#include "launch/validate.h"
#include "parallel/base/logging.h"
#include "parallel/base/status_macros.h"
#include "trainer/data/corpus_manifest.h"

namespace deepnet {
namespace {

absl::Status RunPrepare(const CommandLine& line) {
  ASSIGN_OR_RETURN(const RunSpec run, LoadRunSpec(line));
  Logger log({.stream = &line.err});
  ASSIGN_OR_RETURN(const CorpusReport report,
                   Prepare(run.prepare(), run.data().folder(), RootFolder(line),
                           [&log](std::string_view message) { log.Info(message); }));
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
              "nothing that looks complete.",
          .spec = SpecUse::kRequired,
          .validate = ValidateForPrepare,
          .flags = {JsonFlag()},
          .run = RunPrepare};
}

}  // namespace deepnet

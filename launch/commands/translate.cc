#include <utility>

#include "launch/commands/command.h"
#include "launch/commands/decoding.h"
#include "launch/commands/load_model.h"
#include "launch/job.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/agreement.h"
#include "trainer/model/architecture.h"

namespace deepnet {
namespace {

absl::Status CheckFlags(const ParsedFlags& flags) {
  RETURN_IF_ERROR(CheckSearchFlags(flags));
  if (flags.Integer("chunk-lines") < 1 || flags.Integer("chunk-lines") > 1000000) {
    return ConfigError("--chunk-lines: must be 1 to 1000000");
  }
  return absl::OkStatus();
}

absl::Status TranslateOnAllRanks(const CommandLine& line, Communicator& world) {
  RETURN_IF_ERROR(AgreeOnStatus(world, CheckFlags(line.flags)));
  ASSIGN_OR_RETURN(const DecodingModel model,
                   LoadDecodingModel(line, world, [](const RunSpec& run) {
                     return CheckTranslates(run.model(), "translate");
                   }));
  ASSIGN_OR_RETURN(const BatchLimits limits, AgreeOnLimits(model, world));
  return TranslateLines({line, model.run, *model.loaded->vocabulary, world}, limits,
                        *model.loaded->scorer);
}

std::vector<Flag> TranslateFlags() {
  std::vector<Flag> flags = ModelFlags();
  for (Flag& flag : SearchFlags()) flags.push_back(std::move(flag));
  flags.push_back(TextFlag(
      "prefixes", "FILE",
      "Beginnings of the translations, line by line: a translation begins with its prefix and is "
      "searched from there; an empty line forces nothing. Scores include the prefix."));
  flags.push_back(SwitchFlag("scores", "Print the score and a tab before each translation."));
  flags.push_back(IntegerFlag("chunk-lines",
                              "Lines read before any is translated, on R ranks R times as many: "
                              "more are faster, 1 answers line by line.",
                              "1000"));
  return flags;
}

}  // namespace

Command MakeTranslateCommand() {
  return {
      .name = "translate",
      .summary = "Translate standard input, a sentence a line.",
      .description =
          "Reads UTF-8 lines from standard input and writes their translations to standard output "
          "in the same order; an empty line stays empty. Columns, separated by tabs: the number of "
          "the line (only with --nbest above 1), the score (only with --scores), the text.\n"
          "A translation does not depend on the lines beside it. How sentences are searched: "
          "docs/design/decoding.md; --set decode.max_tokens=100 and the like change the rest.\n"
          "`mpirun -n R deepnet translate ...` shares the lines between R ranks, each with the "
          "whole model; rank 0 reads and writes, and the output is the same to the byte.",
      .spec = SpecUse::kOptional,
      .prints_data = true,
      .flags = TranslateFlags(),
      .run = [](const CommandLine& line) { return RunOnRanks(line, TranslateOnAllRanks); }};
}

}  // namespace deepnet

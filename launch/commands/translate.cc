#include <memory>
#include <utility>

#include "launch/commands/commands.h"
#include "launch/commands/decoding.h"
#include "parallel/base/status_macros.h"
#include "trainer/model/architecture.h"
#include "trainer/model_loader.h"

namespace deepnet {
namespace {

absl::Status RunTranslate(const CommandLine& line) {
  RETURN_IF_ERROR(CheckModelFlags(line.flags));
  RETURN_IF_ERROR(CheckSearchFlags(line.flags));
  if (line.flags.Integer("chunk-lines") < 1 || line.flags.Integer("chunk-lines") > 1000000) {
    return BadFlag("--chunk-lines: must be 1 to 1000000");
  }
  ASSIGN_OR_RETURN(const ComputeSpec compute, ComputeOverrides(line));
  ASSIGN_OR_RETURN(const std::unique_ptr<LoadedModel> model,
                   LoadModel(ResolvePath(line, line.flags.Text("checkpoint")), compute));
  RETURN_IF_ERROR(CheckTranslates(model->run.model(), "translate"));
  ASSIGN_OR_RETURN(const RunSpec run, DecodingRunSpec(line, model->run));
  return TranslateLines(line, run, *model->vocabulary, *model->scorer);
}

std::vector<Flag> TranslateFlags() {
  std::vector<Flag> flags = ModelFlags();
  for (Flag& flag : SearchFlags()) flags.push_back(std::move(flag));
  flags.push_back(SwitchFlag("scores", "Print the score and a tab before each translation."));
  flags.push_back(IntegerFlag("chunk-lines",
                              "Lines read before any is translated: more are faster, 1 answers "
                              "line by line.",
                              "1000"));
  return flags;
}

}  // namespace

Command MakeTranslateCommand() {
  return {.name = "translate",
          .summary = "Translate standard input, a sentence a line.",
          .description =
              "Reads UTF-8 lines from standard input and writes their translations to standard "
              "output in the same order; an empty line stays empty. Columns, separated by tabs: "
              "the number of the line (only with --nbest above 1), the score (only with "
              "--scores), the text.\n"
              "A translation does not depend on the lines beside it. How sentences are searched: "
              "docs/design/decoding.md; --set decode.max_tokens=100 and the like change the rest.",
          .spec = SpecUse::kOptional,
          .flags = TranslateFlags(),
          .run = RunTranslate};
}

}  // namespace deepnet

#include <memory>

#include "launch/commands/commands.h"
#include "launch/commands/decoding.h"
#include "parallel/base/status_macros.h"
#include "trainer/model/architecture.h"
#include "trainer/model_loader.h"

namespace deepnet {
namespace {

absl::Status RunScore(const CommandLine& line) {
  RETURN_IF_ERROR(CheckModelFlags(line.flags));
  ASSIGN_OR_RETURN(const ComputeSpec compute, ComputeOverrides(line));
  ASSIGN_OR_RETURN(const std::unique_ptr<LoadedModel> model,
                   LoadModel(ResolvePath(line, line.flags.Text("checkpoint")), compute));
  RETURN_IF_ERROR(CheckTranslates(model->run.model(), "score"));
  ASSIGN_OR_RETURN(const RunSpec run, DecodingRunSpec(line, model->run));
  return ScoreLines(line, run, *model->vocabulary, *model->pair_scorer);
}

}  // namespace

Command MakeScoreCommand() {
  return {.name = "score",
          .summary = "Print the log-probability of given translations.",
          .description =
              "Reads pairs, source TAB target, from standard input, or line n of two files, and "
              "writes a line for each: the natural logarithm of p(target | source), a tab, and "
              "the number of target tokens it is a sum over, </s> (and an M2M target tag) "
              "included. A pair that is too long for the model has the log-probability nan. "
              "Standard error gets the totals.",
          .arguments = "[SOURCE_FILE TARGET_FILE]",
          .max_arguments = 2,
          .spec = SpecUse::kOptional,
          .flags = ModelFlags(),
          .run = RunScore};
}

}  // namespace deepnet

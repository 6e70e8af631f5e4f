
#include "launch/commands/command.h"
#include "launch/commands/decoding.h"
#include "launch/commands/load_model.h"
#include "launch/job.h"
#include "parallel/base/status_macros.h"
#include "trainer/model/architecture.h"

namespace deepnet {
namespace {

absl::Status ScoreOnAllRanks(const CommandLine& line, Communicator& world) {
  ASSIGN_OR_RETURN(const DecodingModel model,
                   LoadDecodingModel(line, world, [](const RunSpec& run) {
                     return CheckTranslates(run.model(), "score");
                   }));
  return ScoreLines({line, model.run, *model.loaded->vocabulary, world},
                    *model.loaded->pair_scorer);
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
              "Standard error gets the totals.\n"
              "`mpirun -n R deepnet score ...` shares the pairs between R ranks, each with the "
              "whole model; rank 0 reads and writes, and the output is the same to the byte.",
          .arguments = "[SOURCE_FILE TARGET_FILE]",
          .max_arguments = 2,
          .spec = SpecUse::kOptional,
          .prints_data = true,
          .flags = ModelFlags(),
          .run = [](const CommandLine& line) { return RunOnRanks(line, ScoreOnAllRanks); }};
}

}  // namespace deepnet

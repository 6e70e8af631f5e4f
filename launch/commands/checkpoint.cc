#include "launch/commands/checkpoint.h"

#include "launch/commands/checkpoint_tools.h"

namespace deepnet {

Command MakeCheckpointCommand() {
  return {.name = "checkpoint",
          .summary = "list, inspect, verify, compare, convert and delete checkpoints",
          .description =
              "Where a CHECKPOINT is asked for, a checkpoint folder, a pointer file such as "
              "runs/a/best-bleu, or a run folder will do; of a run folder, its newest checkpoint. "
              "Memory is bounded by --memory, however large the checkpoint is.",
          .subcommands = {MakeCheckpointListCommand(), MakeCheckpointInspectCommand(),
                          MakeCheckpointVerifyCommand(), MakeCheckpointDiffCommand(),
                          MakeCheckpointReshardCommand(), MakeCheckpointAverageCommand(),
                          MakeCheckpointExportCommand(), MakeCheckpointImportCommand(),
                          MakeCheckpointPruneCommand()}};
}

}  // namespace deepnet

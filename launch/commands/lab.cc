#include "launch/commands/commands.h"
#include "launch/commands/lab_admin_profile.h"
#include "launch/commands/lab_audit.h"
#include "launch/commands/lab_instruments.h"
#include "launch/commands/lab_list.h"
#include "launch/commands/lab_model_update.h"
#include "launch/commands/lab_report.h"
#include "launch/commands/lab_run.h"

namespace deepnet {

Command MakeLabCommand() {
  return {.name = "lab",
          .summary = "the experiments of the DeepNet paper: run them, and report on them",
          .description =
              "Each figure and table of the paper as runs of `train` and `evaluate`, in two sizes: "
              "small takes minutes on two cores, paper has the published settings and wants a "
              "cluster. audit and model-update look into models without a run, instruments into a "
              "run. docs/lab.md says what each experiment shows.",
          .subcommands = {MakeLabListCommand(), MakeLabRunCommand(), MakeLabReportCommand(),
                          MakeLabAuditCommand(), MakeLabModelUpdateCommand(),
                          MakeLabAdminProfileCommand(), MakeLabInstrumentsCommand()}};
}

}  // namespace deepnet

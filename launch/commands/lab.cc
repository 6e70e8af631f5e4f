#include "launch/commands/commands.h"

namespace deepnet {

Command MakeLabCommand() {
  return {.name = "lab",
          .summary = "Look into models and corpora: what the experiments of launch/lab need.",
          .description =
              "The figures and tables of the paper as experiments are run by launch/lab/lab.py, "
              "which calls this program. Here is what needs the model or the corpus itself. "
              "docs/lab.md says what each experiment shows.",
          .subcommands = {MakeLabAuditCommand(), MakeLabModelUpdateCommand(),
                          MakeLabAdminProfileCommand(), MakeLabCorpusCommand()}};
}

}  // namespace deepnet

// The subcommands of `deepnet lab`: they look into models and corpora for launch/lab/lab.py.
#pragma once

#include "launch/commands/command.h"

namespace deepnet {

Command MakeLabAuditCommand();         // spread of initial weights beside theory (lab_models.cc)
Command MakeLabAdminProfileCommand();  // what branches add to their streams (lab_models.cc)
Command MakeLabModelUpdateCommand();   // how far a few updates move models (lab_models.cc)
Command MakeLabCorpusCommand();        // size of a corpus, its word frequencies (lab_corpus.cc)

}  // namespace deepnet

// The subcommands of `deepnet`: one function each, in the file of its name. A new one stands here,
// in the table of launch/main.cc and in launch/CMakeLists.txt.
#pragma once

#include "launch/commands/command.h"

namespace deepnet {

Command MakePrepareCommand();     // clean text, learn a tokenizer, write the corpus
Command MakeDescribeCommand();    // layers, parameters and costs of a model
Command MakePlanCommand();        // how a run is split over ranks
Command MakeRehearseCommand();    // time steps without computing them
Command MakeTrainCommand();       // train, or continue a run
Command MakeTranslateCommand();   // translate standard input
Command MakeScoreCommand();       // log-probabilities of given translations
Command MakeEvaluateCommand();    // BLEU, chrF and log-likelihood of a test set
Command MakeDoctorCommand();      // examine hosts, devices and links
Command MakeBenchCommand();       // the standing measurements
Command MakeCheckpointCommand();  // tools on checkpoints that need neither GPU nor MPI
Command MakeLabCommand();         // experiments on models

Command MakeLabCorpusCommand();  // a subcommand of `lab`, without LibTorch

}  // namespace deepnet

// `deepnet evaluate`: BLEU and chrF of a trained model.
#pragma once

#include "launch/commands/command.h"

namespace deepnet {

Command MakeEvaluateCommand();

}  // namespace deepnet

// `deepnet train`: train a run, or go on with it.
#pragma once

#include "launch/commands/command.h"

namespace deepnet {

Command MakeTrainCommand();

}  // namespace deepnet

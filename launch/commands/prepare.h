#pragma once

#include "launch/commands/command.h"

namespace deepnet {

// `deepnet prepare`: raw text -> the corpus folder that `train` reads.
Command MakePrepareCommand();

}  // namespace deepnet

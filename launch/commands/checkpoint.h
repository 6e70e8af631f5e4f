// `deepnet checkpoint`: tools on checkpoints that need neither GPU nor MPI.
#pragma once

#include "launch/commands/command.h"

namespace deepnet {

Command MakeCheckpointCommand();

}  // namespace deepnet

// `deepnet score`.
#pragma once

#include "launch/commands/command.h"

namespace deepnet {

Command MakeScoreCommand();

}  // namespace deepnet

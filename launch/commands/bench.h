// `deepnet bench`: the standing measurements.
#pragma once

#include "launch/commands/command.h"

namespace deepnet {

Command MakeBenchCommand();

}  // namespace deepnet

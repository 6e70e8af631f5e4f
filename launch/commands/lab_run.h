// deepnet lab run: the runs of one experiment, side by side, and its report.
#pragma once

#include "launch/commands/command.h"

namespace deepnet {

Command MakeLabRunCommand();

}  // namespace deepnet

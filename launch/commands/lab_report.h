// deepnet lab report: the page of one or several experiments, made again.
#pragma once

#include "launch/commands/command.h"

namespace deepnet {

Command MakeLabReportCommand();

}  // namespace deepnet

// deepnet describe: what a model is made of, before anything is allocated.
#pragma once

#include "launch/commands/command.h"

namespace deepnet {

Command MakeDescribeCommand();

}  // namespace deepnet

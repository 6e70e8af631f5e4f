// deepnet plan: who would compute what, with how many bytes.
#pragma once

#include "launch/commands/command.h"

namespace deepnet {

Command MakePlanCommand();

}  // namespace deepnet

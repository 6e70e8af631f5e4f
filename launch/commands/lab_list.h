// deepnet lab list: which experiments there are.
#pragma once

#include "launch/commands/command.h"

namespace deepnet {

Command MakeLabListCommand();

}  // namespace deepnet

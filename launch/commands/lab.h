// deepnet lab: experiments of the paper, run and reported.
#pragma once

#include "launch/commands/command.h"

namespace deepnet {

Command MakeLabCommand();

}  // namespace deepnet

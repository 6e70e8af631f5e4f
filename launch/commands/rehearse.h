// deepnet rehearse: steps of a run, timed without computing them.
#pragma once

#include "launch/commands/command.h"

namespace deepnet {

Command MakeRehearseCommand();

}  // namespace deepnet

// deepnet rehearse: a step of the pipeline, timed without computing it.
#pragma once

#include "launch/commands/command.h"

namespace deepnet {

Command MakeRehearseCommand();

}  // namespace deepnet

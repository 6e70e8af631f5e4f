// deepnet lab model-update: how far a few updates move models of several depths and schemes.
#pragma once

#include "launch/commands/command.h"

namespace deepnet {

Command MakeLabModelUpdateCommand();

}  // namespace deepnet

// `deepnet translate`.
#pragma once

#include "launch/commands/command.h"

namespace deepnet {

Command MakeTranslateCommand();

}  // namespace deepnet

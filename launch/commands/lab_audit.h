// deepnet lab audit: do the weights that a run would start with have the spread that theory wants?
#pragma once

#include "launch/commands/command.h"

namespace deepnet {

Command MakeLabAuditCommand();

}  // namespace deepnet

// deepnet lab admin-profile: Admin's profiling pass, whose numbers a run of residual ADMIN starts
// with.
#pragma once

#include "launch/commands/command.h"

namespace deepnet {

Command MakeLabAdminProfileCommand();

}  // namespace deepnet

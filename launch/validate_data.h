// How a RunSpec fills its steps: capacities, temperatures, directions, masks.
#pragma once

#include "launch/mistakes.h"
#include "proto/run.pb.h"

namespace deepnet {

// Adds the mistakes of `run.data()`, and of what must fit it, to the list. Not data.folder: only
// some commands need one.
void CheckData(const RunSpec& run, Mistakes* mistakes);

}  // namespace deepnet

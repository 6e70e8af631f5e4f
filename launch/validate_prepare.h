// What `deepnet prepare` is told: texts, cleaning, tokenizer, where it all goes.
#pragma once

#include "launch/mistakes.h"
#include "proto/run.pb.h"

namespace deepnet {

// Adds the mistakes of `run.prepare()` to the list.
void CheckPrepare(const RunSpec& run, Mistakes* mistakes);

}  // namespace deepnet

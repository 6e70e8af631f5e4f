// Fills in the defaults of unset fields.
#pragma once

#include "proto/run.pb.h"

namespace deepnet {

// Returns `run` with the defaults that proto/*.proto documents filled in. Left as they are: fields
// without a default, and what is decided later: `compute.device` (LoadRunSpec), other `compute.*`
// (measured), `parallel.*`, `cluster.*` and `optim.virtual_replicas` (planner), `deepnorm.*`,
// `model.vocabulary_size` and `max_source_tokens` (the corpus), `optim.fp16_*`,
// `decode.batch_tokens`. Applying it twice changes nothing.
RunSpec WithDefaults(RunSpec run);

}  // namespace deepnet

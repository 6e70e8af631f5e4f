// The values of unset fields. Only this place knows them: everything behind it reads what it finds.
#pragma once

#include "proto/run.pb.h"

namespace deepnet {

// Returns `run` with every default that proto/*.proto documents filled in. Left as they are: fields
// without a default, and what is decided later: `compute.device` (by the build and its devices:
// LoadRunSpec of launch/commands/command.h), `compute.{dtype,matmul,isa,threads_per_rank}`
// (measured), `parallel.*` and `cluster.device_memory_gib` (planner), `deepnorm.*` (formulas of the
// depths), `model.vocabulary_size` (the corpus), `optim.virtual_replicas` (the earlier run's, else
// the planner's). Applying it twice changes nothing.
RunSpec WithDefaults(RunSpec run);

}  // namespace deepnet

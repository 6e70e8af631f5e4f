// Every schedule on one pipeline, side by side.
#pragma once

#include <string>

#include "absl/status/statusor.h"

#include "parallel/plan/inventory.h"
#include "proto/data.pb.h"
#include "proto/instruments.pb.h"
#include "proto/optim.pb.h"
#include "proto/plan.pb.h"

namespace deepnet {

// A table with a row for each schedule on parallel.pipeline_parallel_size stages, chunks cut by
// cost, and first of all for 1F1B with half of the ranks for the encoder and half for the decoder,
// both cut by number of layers, which is what other programs do. Parameters and errors as
// MakePlan's; memory limits nothing, and ranks recompute what parallel.recompute says, by default
// nothing.
absl::StatusOr<std::string> CompareText(const Inventory& inventory, const DataSpec& data,
                                        const OptimSpec& optim, const ComputeSpec& compute,
                                        const ClusterSpec& cluster, const ParallelSpec& parallel,
                                        const InstrumentsSpec& instruments = {});

}  // namespace deepnet

// Who has what when a pipeline decodes: a value made of the plan, the same on every rank but for
// `rank` and `chunks`.
#pragma once

#include <span>
#include <vector>

#include "parallel/plan/inventory.h"
#include "parallel/plan/partition.h"

namespace deepnet {

// Ranks count within the pipeline.
struct PipelineRoute {
  int rank = 0;                    // whose route this is
  std::vector<int> chunks;         // its chunks, by their numbers along the chain
  std::vector<int> rank_of_chunk;  // of the whole chain
  int driver = 0;                  // has the output layer
  int encoder_end = 0;             // has the last encoder layer: makes the memory, if there is one
  std::vector<int> memory_to;      // the others that have decoder layers, which read it
  std::vector<int> steppers;       // all with layers behind the encoder, but the driver
  std::vector<int> followers;      // all but the driver

  friend bool operator==(const PipelineRoute&, const PipelineRoute&) = default;
};

// `whole` describes the model; chunk c ends before layer chunk_ends[c] and is where `placement`
// says. Lists ascend.
PipelineRoute MakePipelineRoute(const Inventory& whole, std::span<const int> chunk_ends,
                                const Placement& placement, int rank);

}  // namespace deepnet

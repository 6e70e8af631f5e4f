// Plans as tables for people.
#pragma once

#include <string>

#include "parallel/plan/inventory.h"
#include "proto/plan.pb.h"

namespace deepnet {

// Microbatches of a replica: "16", or where they cannot be shared evenly "17 or 16".
std::string MicrobatchesText(int microbatches, int replicas);

// Degrees, schedule, seconds, and one row a rank of the first replica.
std::string PlanText(const Plan& plan, const Inventory& inventory);
// One row a chunk in the order of the model: layers, seconds, bytes.
std::string LayoutText(const Plan& plan, const Inventory& inventory);
// One row a rank of the first replica: GiB by category.
std::string MemoryText(const Plan& plan);

// "encoder.layers.3 .. decoder.layers.7", several chunks with commas, many with "...".
std::string LayersText(const Plan& plan, const Inventory& inventory, int rank);
// "NONE" or, where ranks differ, "NONE to GEMM".
std::string RecomputeText(const Plan& plan);

}  // namespace deepnet

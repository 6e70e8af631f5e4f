// Plans as tables, and simulated schedules as pictures, for people.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

#include "parallel/plan/inventory.h"
#include "parallel/plan/plan_accessors.h"
#include "parallel/plan/simulator.h"
#include "proto/plan.pb.h"

namespace deepnet {

// Microbatches of a replica: "16", or where they cannot be shared evenly "17 or 16".
std::string MicrobatchesText(int microbatches, int replicas);

// Degrees, schedule, seconds, and one row a rank of the first replica.
std::string PlanText(const Plan& plan, const Inventory& inventory);
// One row a chunk in the order of the model: layers, seconds, bytes.
std::string ChunksText(const Plan& plan, const Inventory& inventory);
// One row a rank of the first replica: GiB by category; for GPUs a second table of what is beside.
std::string MemoryText(const Plan& plan);
// The second table's row of one rank, in words.
std::string GpuMemoryText(const MemoryEstimate& memory);

// "layers.3 .. layers.7", several chunks with commas, many with "...".
std::string LayersText(const Plan& plan, const Inventory& inventory, int rank);
// "NONE" or, where ranks differ, "NONE to SELECTIVE_GEMM".
std::string RecomputeText(const Plan& plan);

// Returns a table with a row for each schedule on parallel.pipeline_parallel_size stages, chunks
// cut by cost. Its first row is 1F1B with half of the ranks for the layers before the first side
// input and half for the others, both cut by number of layers, which is what other programs do.
// Parameters and errors as MakePlan's; memory limits nothing.
absl::StatusOr<std::string> CompareText(const Inventory& inventory, const PlanSettings& settings);

// For a terminal: a line a rank, `columns` (> 0) characters of time, each showing what the rank
// does in the middle of its span: F, B, I or W, '.' for idle; lower case for a rank's second,
// fourth, ... chunk. Every line ends in '\n'.
//
//   rank 0 |FFF...BBFBBFBBF...
//   rank 1 |.FFF.BB
std::string DrawGrid(const Simulation& simulation, int columns);

// A self-contained SVG of about 1,000 pixels width: one box per action with its microbatch's number
// where that fits, colour by operation (F blue, B and I green, W orange), dark for a rank's first
// chunk and lighter for each later one, grey for idle; below it a legend, makespan and bubble.
std::string DrawSvg(const Simulation& simulation, std::string_view title);

}  // namespace deepnet

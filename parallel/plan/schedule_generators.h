// Schedules by name: which there are, and what each makes of a shape. All are compute-only
// (with_transfers.h adds communication) and deterministic.
//
// | name        | placement | chunks/rank | backward | bubble with equal chunks and free links    |
// | trivial     | -         | 1, one rank | B        | 0                                          |
// | gpipe       | looped    | 1           | B        | (p - 1) (F + B) per step                   |
// | 1f1b        | looped    | 1           | B        | (p - 1) (F + B)                            |
// | interleaved | looped    | >= 1        | B        | (p - 1) (F + B) / v                        |
// | zb-h1       | looped    | 1           | I, W     | (p - 1) (F + I - W) if F = I = W           |
// | zb-v        | V         | 2           | I, W     | 0 if F = I = W and m >= 2 p - 1, and p - 1 |
// |             |           |             |          | idle slots of warm-up                      |
#pragma once

#include <span>
#include <string_view>

#include "absl/status/statusor.h"

#include "parallel/plan/placement.h"
#include "parallel/plan/schedule.h"
#include "parallel/plan/simulator.h"

namespace deepnet {

// One row of the table above.
struct ScheduleKind {
  std::string_view name;
  bool v_shaped = false;         // placed by MakeV, else by MakeLooped
  bool splits_backward = false;  // I and W instead of B
  int min_chunks_per_rank = 1, max_chunks_per_rank = 1;
};

// All there are, in the order of the table.
std::span<const ScheduleKind> ScheduleKinds();

// nullptr if there is none of that name.
const ScheduleKind* FindScheduleKind(std::string_view name);

// InvalidArgument naming parallel.schedule and those known if `name` is unknown, or what it does
// not take of `shape`.
absl::StatusOr<Placement> MakeNamedPlacement(std::string_view name, const PipelineShape& shape);

// `costs`, one per chunk of MakeNamedPlacement, guide schedules that fit themselves to costs
// (zb-h1, zb-v); empty: all equal, F = I = W. Others ignore them. Errors as above.
absl::StatusOr<Schedule> MakeNamedSchedule(std::string_view name, const PipelineShape& shape,
                                           std::span<const ChunkCost> costs = {});

// What CheckSchedule may hold the named schedule to: the most microbatch-chunks alive on `rank`.
int ClaimedAlive(std::string_view name, const PipelineShape& shape, int rank);

}  // namespace deepnet

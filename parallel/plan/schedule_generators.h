// Schedules by name: which there are, and what each makes of a shape. All are compute-only
// (with_transfers.h adds communication) and deterministic: same arguments, same schedule.
//
// p ranks, v chunks a rank, m microbatches; F, I, W: seconds of a rank (all its chunks) for one
// microbatch; idle: seconds of a rank in a step with equal chunks, free links and m a multiple of p
// (zb-*: and F = I = W; zb-v: and m >= 2p - 1); alive: chunks' microbatches from F to B or W on
// rank r (PeakAlive), never more than v m.
//
// | name           | placement | v        | backward | idle           | alive at most         |
// | trivial        | -         | 1, p = 1 | B        | 0              | 1                     |
// | gpipe          | looped    | 1        | B        | (p-1)(F+I+W)   | m                     |
// | 1f1b           | looped    | 1        | B        | (p-1)(F+I+W)   | p - r                 |
// | interleaved    | looped    | any      | B        | (p-1)(F+I+W)/v | 2(p-r-1) + (v-1)p + 1 |
// | zb-h1          | looped    | 1        | I, W     | (p-1)(F+I-W)   | p                     |
// | zb-interleaved | looped    | any      | I, W     | (p-1)(F+I-W)/v | (v+1)p - 1            |
// | zb-v           | V         | 2        | I, W     | (p-1)F/2       | 2p                    |
//
// ("interleaved" with v = 1 is 1f1b, "zb-interleaved" zb-h1, alive included.) Every name takes
// every m >= 1: with few microbatches ranks idle more; where the order is made for another number
// (multiples of p, at least 2p - 1), surplus microbatches are left out of it.
#pragma once

#include <span>
#include <string_view>
#include <vector>

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

// InvalidArgument naming the field of ParallelSpec: `name` is unknown (those known are listed), or
// it does not take this shape.
absl::StatusOr<Placement> MakeNamedPlacement(std::string_view name, const PipelineShape& shape);

// `costs`, one per chunk of MakeNamedPlacement, let zb-* fit themselves to chunks that differ:
// their fixed order or a greedy one (greedy_schedule.h), whichever takes least time with free
// links. Empty: the fixed order. Others ignore them. Errors as above.
absl::StatusOr<Schedule> MakeNamedSchedule(std::string_view name, const PipelineShape& shape,
                                           std::span<const ChunkCost> costs = {});

// What CheckSchedule may hold the schedule to, per rank: the last column. `name` must be known.
std::vector<int> ClaimedAlive(std::string_view name, const PipelineShape& shape);

}  // namespace deepnet

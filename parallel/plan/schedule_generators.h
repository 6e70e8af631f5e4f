// Schedules by name: which there are, and what each makes of a shape (docs/design/pipeline.md says
// how long ranks idle). All are compute-only (WithTransfers of check_schedule.h adds
// communication), take any number of microbatches, and are deterministic: same arguments, same
// schedule.
//
// "gpipe": Huang et al., 2019; "1f1b": Narayanan et al., 2019, section 3.2; "interleaved":
// Narayanan et al., 2021, section 2.2; "zb-h1": Qi et al., 2023, section 2.1; "zb-v": Qi et al.,
// 2024, "Pipeline Parallelism with Controllable Memory", section 4, in the order of PyTorch's
// ScheduleZBVZeroBubble. With one chunk a rank "interleaved" is 1f1b, "zb-interleaved" zb-h1.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "parallel/plan/partition.h"
#include "parallel/plan/schedule.h"
#include "parallel/plan/simulator.h"

namespace deepnet {

struct ScheduleKind {
  std::string_view name;
  bool v_shaped = false;         // placed by MakeV, else by MakeLooped
  bool splits_backward = false;  // I and W instead of B
  int min_virtual_pipeline_size = 1, max_virtual_pipeline_size = 1;
};

std::span<const ScheduleKind> ScheduleKinds();

// nullptr if there is none of that name.
const ScheduleKind* FindScheduleKind(std::string_view name);

// The message for a name that is unknown; it lists those that are known.
std::string UnknownSchedule(std::string_view name);

// InvalidArgument (ExitCode::kBadConfig) naming the field of ParallelSpec: `name` is unknown, or
// does not take this shape.
absl::StatusOr<Placement> MakeNamedPlacement(std::string_view name, const PipelineShape& shape);

// `costs`, one per chunk of MakeNamedPlacement, let zb-* fit themselves to chunks that differ:
// their fixed order or a greedy one (MakeGreedy), whichever takes least time with free links.
// Empty: the fixed order. Others ignore them. Errors as above.
absl::StatusOr<Schedule> MakeNamedSchedule(std::string_view name, const PipelineShape& shape,
                                           std::span<const ChunkCost> costs = {});

// Returns the most that PeakAlive may be of the schedule, per rank. `name` must be known.
std::vector<int> ClaimedAlive(std::string_view name, const PipelineShape& shape);

struct GreedyOptions {
  int num_microbatches = 1;
  int max_alive = 1;  // chunks' microbatches between F and W on a rank; >= chunks of that rank
  // A rank waits for a gradient that is on its way rather than begin a W of which less than this
  // part (0..1) would be done when it comes. 0: never waits.
  double patience = 0;
};

// The rule is that of zero-bubble schedules (Qi et al., 2023, section 3.1): gradients of inputs
// first, since other ranks wait for them; then forwards, of the chunk nearest to the loss first, as
// far as memory goes; weight gradients when there is nothing else to do, or when memory is full.
Schedule MakeGreedy(const Placement& placement, std::span<const ChunkCost> costs,
                    const GreedyOptions& options);

}  // namespace deepnet

// ZB-V: no bubble but that of the first microbatch's way forward, at the memory of 1F1B.
#pragma once

#include "parallel/plan/schedule.h"

namespace deepnet {

// Two chunks per rank placed by MakeV, backward split into I and W (Qi et al., 2024, "Pipeline
// Parallelism with Controllable Memory", section 4; the order is that of PyTorch's
// ScheduleZBVZeroBubble). Every rank holds 2 * num_ranks chunks' microbatches at most, whatever its
// place. It wants 2 * num_ranks - 1 microbatches; with fewer it is the schedule of that many with
// the surplus left out. shape.chunks_per_rank must be 2.
Schedule MakeZeroBubbleV(const PipelineShape& shape);

}  // namespace deepnet

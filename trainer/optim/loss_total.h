// The loss of a step whose microbatches were computed by many ranks.
#pragma once

#include <span>

#include "absl/status/statusor.h"

#include "trainer/kernels/ops.h"
#include "trainer/optim/groups.h"

namespace deepnet {

// `of_microbatches`: one element per microbatch of the whole step, in order; zero where another
// rank has it (only the stage with the output layer has any). The sums are a left fold over
// microbatches on every rank, so the bits are those of one rank. Collective over groups.world.
absl::StatusOr<LossSums> TotalLoss(std::span<const LossSums> of_microbatches, const Groups& groups);

}  // namespace deepnet

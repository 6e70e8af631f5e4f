// Interprets a Schedule: the loop at the heart of a training step.
//
// Example, one rank and four microbatches:
//   RETURN_IF_ERROR(RunSchedule(MakeTrivial(4), stage, comm));
#pragma once

#include "absl/status/status.h"

#include "parallel/comm/communicator.h"
#include "parallel/exec/stage.h"
#include "parallel/plan/schedule.h"

namespace deepnet {

// Takes the actions of rank comm.rank() in order. Collective over `comm`. `schedule` must have
// passed CheckSchedule.
//
// Fails with the stage's own Status (code and payload kept), its message preceded by rank and
// action, at the first action that fails. InvalidArgument if the schedule is for another number of
// ranks, or needs what a Stage does not offer: tensors across a cut, split backward passes.
absl::Status RunSchedule(const Schedule& schedule, Stage& stage, Communicator& comm);

}  // namespace deepnet

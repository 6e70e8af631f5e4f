#include "parallel/exec/pipeline_executor.h"

#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

#include "parallel/base/status_macros.h"
#include "parallel/plan/schedule_text.h"

namespace deepnet {
namespace {

// `status` with where it happened in front; code and payloads (exit codes) stay.
absl::Status At(const absl::Status& status, int rank, const Action& action) {
  if (status.ok()) return status;
  absl::Status placed(status.code(), absl::StrCat("rank ", rank, ", action ", ToText(action), ": ",
                                                  status.message()));
  status.ForEachPayload(
      [&](absl::string_view url, const absl::Cord& payload) { placed.SetPayload(url, payload); });
  return placed;
}

absl::Status Take(const Action& action, Stage& stage) {
  switch (action.op) {
    case Op::kForward:
      return stage.Forward(action.chunk, action.microbatch);
    case Op::kBackward:
      return stage.Backward(action.chunk, action.microbatch);
    case Op::kBackwardInput:
      return stage.BackwardInput(action.chunk, action.microbatch);
    case Op::kBackwardWeight:
      return stage.BackwardWeight(action.chunk, action.microbatch);
    default:
      return absl::InvalidArgumentError("no transfers between ranks here");
  }
}

}  // namespace

absl::Status RunSchedule(const Schedule& schedule, Stage& stage, Communicator& comm) {
  if (static_cast<int>(schedule.actions.size()) != comm.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("schedule for ", schedule.actions.size(), " ranks, run by ", comm.size()));
  }
  for (const Action& action : schedule.actions[comm.rank()]) {
    RETURN_IF_ERROR(At(Take(action, stage), comm.rank(), action));
  }
  return absl::OkStatus();
}

}  // namespace deepnet

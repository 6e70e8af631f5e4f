// The messages of one rank during one step: started, waited for, and named when one gets stuck.
// The executor's half that talks to a Communicator.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "parallel/comm/communicator.h"
#include "parallel/exec/pipeline_executor.h"
#include "parallel/exec/stage.h"
#include "parallel/plan/partition.h"
#include "parallel/plan/schedule.h"

namespace deepnet {

// What may cross one cut in one direction for one microbatch.
inline constexpr int kMaxTensors = 4;

// The tag of tensor `tensor` (its place in Stage::Buffers) over the cut before chunk `cut` >= 1:
//   ((cut - 1) * 2 + (backward ? 1 : 0)) * kMaxTensors + tensor
// It names no microbatch: both sides of a cut go through them in the same order, and messages with
// one tag stay in order. 4,095 cuts fit below Communicator::kNumTags. The pipeline's communicator
// carries nothing else while a schedule runs.
int MessageTag(int cut, bool backward, int tensor);

// Where a transfer leads: which cut, which rank, which of the stage's buffers.
struct Route {
  int cut = 0;
  int peer = 0;
  bool backward = false;
  bool send = false;
  Boundary boundary = Boundary::kInput;

  friend bool operator==(const Route&, const Route&) = default;
};

// InvalidArgument if `transfer` is not between two ranks.
absl::StatusOr<Route> RouteOf(const Action& transfer, const Placement& placement);

// All arguments must outlive it; `schedule` is for the text of errors. Errors are as RunSchedule
// says, without rank and action in front.
class MessageBox {
 public:
  MessageBox(const Schedule& schedule, const Placement& placement, Stage& stage, Communicator& comm,
             const ExecutorOptions& options);

  // Starts a send or a receive. Does not wait.
  absl::Status Start(const Action& transfer);

  // Waits for `receive` if its chunk gets this from another rank; `reason` needs its data.
  absl::Status AwaitReceived(const Action& receive, const Action& reason);

  // Gives the stage back what is gone. Does not wait.
  absl::Status ReleaseSent();

  // Waits for everything that is still to be sent.
  absl::Status AwaitSent();

 private:
  struct Message {
    Action action;
    Route route;
    int64_t bytes = 0;
    double start = 0.0;                            // seconds of SecondsNow()
    std::vector<std::unique_ptr<Transfer>> parts;  // one per tensor

    bool Done() const;
  };

  // Whether `receive` crosses between ranks.
  bool Crosses(const Action& receive) const;
  absl::Status StartParts(Message& message);
  absl::Status Await(Message& message, const Action& reason);
  absl::Status AwaitAndRelease(size_t index, const Action& reason);  // of sends_
  absl::Status Explain(const absl::Status& status, const Message& message,
                       const Action& reason) const;
  void Record(const Message& message);

  const Schedule& schedule_;
  const Placement& placement_;
  Stage& stage_;
  Communicator& comm_;
  const ExecutorOptions& options_;
  std::vector<Message> receives_;  // started, not yet used; in order
  std::vector<Message> sends_;     // under way; in order
};

// Two lines, where rank `rank` and its peer stand in the schedule: some actions around `reason`,
// which is marked [like this], and around the peer's side of `transfer`, marked <like this>.
std::string PositionText(const Schedule& schedule, int rank, const Action& reason, int peer,
                         const Action& transfer);

}  // namespace deepnet

// How far a step has come, and what an action still waits for: the one statement of what depends on
// what, used by everything that walks a schedule by hand.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "parallel/plan/placement.h"
#include "parallel/plan/schedule.h"

namespace deepnet {

class ScheduleProgress {
 public:
  ScheduleProgress(int num_chunks, int num_microbatches)
      : num_chunks_(num_chunks),
        num_microbatches_(num_microbatches),
        done_(static_cast<size_t>(num_chunks) * num_microbatches, 0) {}

  // Chunk and microbatch of every action must be in range.
  bool Done(Op op, int chunk, int microbatch) const {
    return (done_[Cell(chunk, microbatch)] >> static_cast<int>(op) & 1) != 0;
  }
  bool Done(const Action& action) const { return Done(action.op, action.chunk, action.microbatch); }
  bool GradientDone(int chunk, int microbatch) const {
    return Done(Op::kBackward, chunk, microbatch) || Done(Op::kBackwardInput, chunk, microbatch);
  }
  void Mark(const Action& action) {
    done_[Cell(action.chunk, action.microbatch)] |= 1U << static_cast<int>(action.op);
  }

  // The first action that must be done before `action` and is not; nothing if it can be taken. With
  // `transfers`, data that cross a cut between ranks of that placement count once they are
  // received. For a receive: the send, which becomes due together with it.
  std::optional<Action> WaitsFor(const Action& action, const Placement* transfers) const;

 private:
  size_t Cell(int chunk, int microbatch) const {
    return static_cast<size_t>(chunk) * num_microbatches_ + microbatch;
  }

  int num_chunks_, num_microbatches_;
  std::vector<uint8_t> done_;  // [chunk][microbatch], a bit per Op
};

// The other end of a transfer: 3SF12 <-> 4RF12, 4SB12 <-> 3RB12.
Action OtherEnd(const Action& transfer);

}  // namespace deepnet

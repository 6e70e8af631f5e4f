// The order of work of a pipeline, as data.
//
// A schedule says, for every rank, which action it takes after which. It knows nothing of tensors,
// devices or time: a simulator gives it costs, the executor gives it effects, the planner compares
// several. Everything here is a value: comparable, printable, safe to copy between threads.
//
// As text that a person can read, write and compare it has one line a rank, in order:
//
//   rank 0: 0F0 0F1 0B0 0B1
//   rank 1: 1F0 1B0 1F1 1B1
//
// An action is <chunk><op><microbatch>, op one of F B I W SF RF SB RB (Op). Empty lines and what
// follows a '#' are ignored.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "parallel/plan/partition.h"

namespace deepnet {

// The action of a rank on one microbatch in one chunk of the model: it computes, or transfers the
// tensors of the cut to the neighbouring chunk. Cuts between two chunks of one rank need no
// transfer.
enum class Op {
  kForward,          // F: activations in, activations out
  kBackward,         // B: gradients of inputs and weights
  kBackwardInput,    // I: gradients of inputs only; kBackwardWeight must follow
  kBackwardWeight,   // W: gradients of weights, from what I left behind
  kSendForward,      // 3SF12: what 3F12 made goes to the rank of chunk 4
  kReceiveForward,   // 4RF12: the same transfer seen by the rank of chunk 4: inputs of 4F12
  kSendBackward,     // 4SB12: gradients of chunk 4's inputs go to the rank of chunk 3
  kReceiveBackward,  // 3RB12: the same transfer seen by the rank of chunk 3: for 3B12 or 3I12
};

inline bool IsTransfer(Op op) { return op >= Op::kSendForward; }
inline bool IsSend(Op op) { return op == Op::kSendForward || op == Op::kSendBackward; }
inline bool IsReceive(Op op) { return IsTransfer(op) && !IsSend(op); }
inline bool IsInputPass(Op op) { return op == Op::kBackward || op == Op::kBackwardInput; }
inline bool IsWeightPass(Op op) { return op == Op::kBackward || op == Op::kBackwardWeight; }

// One step of one rank. Printed as <chunk><op><microbatch>, for example "3B12".
struct Action {
  Op op = Op::kForward;
  int chunk = 0;       // position in the model, 0 = first; a rank may own several
  int microbatch = 0;  // 0 <= microbatch < num_microbatches

  friend bool operator==(const Action&, const Action&) = default;
};

struct PipelineShape {
  int num_ranks = 1;         // > 0
  int num_microbatches = 1;  // > 0, per optimizer step and replica
  int virtual_pipeline_size =
      1;  // > 0; the model is cut into num_ranks * virtual_pipeline_size chunks
};

// actions[r] is what rank r does, in order. Ranks run freely otherwise: an action waits for the
// actions it needs (see CheckSchedule), never for a clock.
struct Schedule {
  std::vector<std::vector<Action>> actions;

  friend bool operator==(const Schedule&, const Schedule&) = default;
};

int NumMicrobatches(const Schedule& schedule);  // one past the highest

// Most microbatches of one chunk, summed over the rank's chunks, whose forward is done and whose
// backward (weights included) is not, at any moment of rank `rank`.
int PeakAlive(const Schedule& schedule, int rank);

// Returns true if `schedule` states its transfers; otherwise they are implied.
bool HasTransfers(const Schedule& schedule);

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

std::string ToText(const Action& action);
std::string ToText(const Schedule& schedule);  // every line ends in '\n'

// Inverse of ToText: ParseSchedule(ToText(s)) == s. Fails with InvalidArgument that names the line
// and the word. Says nothing of whether the schedule can run: CheckSchedule does.
absl::StatusOr<Schedule> ParseSchedule(std::string_view text);

}  // namespace deepnet

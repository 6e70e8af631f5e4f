// The order of work of a pipeline, as data.
//
// A schedule says, for every rank, which action it takes after which. It knows nothing of tensors,
// devices or time: a simulator gives it costs, the executor gives it effects.
//
// As text that a person can read, write and compare it has one line a rank, in order:
//
//   rank 0: 0F0 0F1 0B0 0B1
//   rank 1: 1F0 1B0 1F1 1B1
//
// An action is <chunk><op><microbatch>, op one of F B I W SF RF SB RB (Op). Empty lines and what
// follows a '#' are ignored.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"

#include "parallel/plan/partition.h"

namespace deepnet {

// Computes, or transfers the tensors of a cut between two ranks.
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
inline bool IsForward(Op op) {
  return op == Op::kForward || op == Op::kSendForward || op == Op::kReceiveForward;
}
inline bool IsInputPass(Op op) { return op == Op::kBackward || op == Op::kBackwardInput; }
inline bool IsWeightPass(Op op) { return op == Op::kBackward || op == Op::kBackwardWeight; }

struct Action {
  Op op = Op::kForward;
  int chunk = 0;       // position in the model, 0 = first; a rank may own several
  int microbatch = 0;  // 0 <= microbatch < num_microbatches

  friend bool operator==(const Action&, const Action&) = default;
  template <typename H>
  friend H AbslHashValue(H hash, const Action& action) {
    return H::combine(std::move(hash), action.op, action.chunk, action.microbatch);
  }
};

struct PipelineShape {
  int num_ranks = 1;              // > 0
  int num_microbatches = 1;       // > 0, per optimizer step and replica
  int virtual_pipeline_size = 1;  // > 0; chunks of the model that each rank has
};

struct Schedule {
  std::vector<std::vector<Action>> actions;  // [rank] what it does, in order

  friend bool operator==(const Schedule&, const Schedule&) = default;
};

int NumMicrobatches(const Schedule& schedule);  // one past the highest

// Returns the most microbatches, of all chunks of `rank`, that are between F and the end of B or W.
int PeakAlive(const Schedule& schedule, int rank);

// Returns true if `schedule` states its transfers; otherwise they are implied.
bool HasTransfers(const Schedule& schedule);

// Knows which actions of a schedule, for so many chunks, are done.
struct ScheduleProgress {
  int num_chunks = 1;
  const Placement* transfers = nullptr;  // data that cross its cuts count once they are received
  absl::flat_hash_set<Action> done = {};

  // Returns the first action that must be done before `action` and is not; nullopt if it can be
  // taken. For a receive: the send, which becomes due together with it.
  std::optional<Action> WaitsFor(const Action& action) const;
};

// Returns the other end of a transfer: 3SF12 <-> 4RF12, 4SB12 <-> 3RB12.
Action OtherEnd(const Action& transfer);

std::string ToText(const Action& action);
std::string ToText(const Schedule& schedule);  // every line ends in '\n'

// Parses what ToText makes. Fails with InvalidArgument that names the line and the word. Whether
// the schedule can run, CheckSchedule says.
absl::StatusOr<Schedule> ParseSchedule(std::string_view text);

}  // namespace deepnet

// The order of work of a pipeline, as data.
//
// A schedule says, for every rank, which action it takes after which. It knows nothing of tensors,
// devices or time: a simulator gives it costs, the executor gives it effects, the planner compares
// several. Everything here is a value: comparable, printable (schedule_text.h), safe to copy
// between threads.
//
// Example:
//   ToText(MakeTrivial(3));   // rank 0: 0F0 0B0 0F1 0B1 0F2 0B2
#pragma once

#include <vector>

namespace deepnet {

// What a rank does to one microbatch in one chunk of the model: computes, or transfers what crosses
// the cut to the neighbouring chunk. Cuts between two chunks of one rank need no transfer.
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
  int chunks_per_rank = 1;   // > 0; the model is cut into num_ranks * chunks_per_rank chunks

  friend bool operator==(const PipelineShape&, const PipelineShape&) = default;
};

// actions[r] is what rank r does, in order. Ranks run freely otherwise: an action waits for the
// actions it needs (see CheckSchedule), never for a clock.
struct Schedule {
  std::vector<std::vector<Action>> actions;

  friend bool operator==(const Schedule&, const Schedule&) = default;
};

// One rank, one chunk: every microbatch forward, then backward. At most one is alive.
Schedule MakeTrivial(int num_microbatches);

// Every forward, then every backward (Huang et al., 2019). Rank r owns chunk r; all microbatches
// are alive at once; the bubble is that of 1F1B. shape.chunks_per_rank must be 1.
Schedule MakeGPipe(const PipelineShape& shape);

// One forward, one backward (Narayanan et al., 2019, section 3.2). Rank r owns chunk r, starts with
// num_ranks - r forwards, then alternates, then drains. At most num_ranks - r microbatches are
// alive on rank r; the bubble is (num_ranks - 1) slots of forward plus backward. With one rank it
// is MakeTrivial. shape.chunks_per_rank must be 1.
Schedule MakeOneForwardOneBackward(const PipelineShape& shape);

// Most microbatches of one chunk, summed over the rank's chunks, whose forward is done and whose
// backward (weights included) is not, at any moment of rank `rank`.
int PeakAlive(const Schedule& schedule, int rank);

}  // namespace deepnet

// Counts the bytes that a rank holds at and between its cuts while a step goes as simulated:
// streams that run through its chunks, and messages on their way.
//
// One buffer goes a long way. It is offered to a message kLookAhead computing actions before the
// one that needs it, or sooner if a later message of the same sender is needed sooner
// (message_order.h); the action that needs it works in it and leaves its own result there; the next
// chunk takes it over, or it is sent and comes free when the peer, which offers memory by the same
// rule, has it and whatever was sent to that peer before it. A rank that runs ahead of its peer is
// never held up, so it may have many such buffers: as many as are counted here.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "parallel/plan/inventory.h"
#include "parallel/plan/partition.h"
#include "parallel/plan/schedule.h"
#include "parallel/plan/simulator.h"
#include "parallel/plan/stage_messages.h"

namespace deepnet {

// Computing actions for which a rank offers memory to messages before it gets there.
inline constexpr int kLookAhead = 3;

// Bytes of each rank, [rank]: buffers of one shape and type are lent from a pool, and each pool is
// as large as its fullest moment. A side input is in use on ranks that read it until the
// microbatch's last backward pass. Not counted: the gradient that the loss leaves, which is kept
// with activations.
//
// chunk_ends, placement, messages: as for MakeStageMessages, and what it made; operand_bytes: of an
// element of a side input. `simulation` is of them and of `schedule`, whose transfers may be
// implied; `network` tells how long a message takes, one after the other from one rank to another.
std::vector<int64_t> BoundaryBufferBytes(const Inventory& inventory,
                                         std::span<const int> chunk_ends,
                                         const Placement& placement, const Schedule& schedule,
                                         std::span<const StageMessages> messages,
                                         int64_t operand_bytes, const Simulation& simulation,
                                         const Network& network);

}  // namespace deepnet

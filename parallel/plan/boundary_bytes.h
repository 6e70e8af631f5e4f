// Counts the bytes that a rank holds at and between its cuts while a step goes as simulated:
// streams that run through its chunks, and messages on their way.
//
// A buffer has several uses in turn. It is offered to a message (message_order.h); the action that
// needs it leaves its own result there; the next chunk takes it over, or it is sent and comes free
// when the peer has it and whatever was sent to that peer before it. A rank that runs ahead of its
// peer is never held up, so it may have many such buffers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "parallel/plan/inventory.h"
#include "parallel/plan/partition.h"
#include "parallel/plan/schedule.h"
#include "parallel/plan/simulator.h"

namespace deepnet {

struct CutModel {
  const Inventory& inventory;
  std::span<const int> chunk_ends;  // as for MakeStageMessages, which made `messages` of them
  const Placement& placement;
  std::span<const StageMessages> messages;
  int64_t operand_bytes = 4;  // of an element of a side input
};

struct SimulatedStep {
  const Schedule& schedule;  // whose transfers may be implied
  const Simulation& simulation;
  const Network& network;
};

// Returns the bytes of each rank, [rank]: buffers of one shape and type are lent from a pool, and
// each pool is as large as its fullest moment. A side input is in use on ranks that read it until
// the microbatch's last backward pass. The gradient that the loss leaves counts as an activation.
std::vector<int64_t> CountBoundaryBytes(const CutModel& model, const SimulatedStep& step);

}  // namespace deepnet

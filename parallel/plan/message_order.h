// The order of messages from one rank to another, which both of them follow.
//
// A lane is the ordered stream of messages from one rank to another. Some transports know nothing
// of a message but its place in that order (NCCL between two GPUs). So a sender starts its sends in
// the order of its list, and the receiver, which knows that list, posts its receives in the same
// order, whatever it needs first. Lanes are independent of each other.
#pragma once

#include <optional>
#include <vector>

#include "parallel/plan/partition.h"
#include "parallel/plan/schedule.h"

namespace deepnet {

// Computing actions for which a rank offers memory to messages before it gets there.
inline constexpr int kLookAhead = 3;

// One message. Computing actions are numbered from 0 along the list of their rank.
struct LaneMessage {
  Action send;
  int from = 0;           // the rank that sends
  int sent_behind = 0;    // computing actions of the sender that stand before the send
  int needed_by = 0;      // number of the receiver's action that needs the data
  int posted_behind = 0;  // computing actions of the receiver that are done when it is posted

  friend bool operator==(const LaneMessage&, const LaneMessage&) = default;
};

// Returns what other ranks send to `rank`: lane after lane, by sender, each in the sender's order.
//
// A receive is posted as soon as its rank is within `look_ahead` (>= 0) computing actions of one
// that needs this message or a later one of the lane, but behind all messages before it in the
// lane, and behind the last action that the rank takes on the same microbatch before it needs the
// message: earlier the data cannot have been made.
//
// `schedule` has its sends (check_schedule.h, or WithSends) and is of `placement`. If its
// dependencies can be met, posted_behind <= needed_by. A message that no action needs is never
// posted.
std::vector<LaneMessage> MessagesTo(int rank, const Schedule& schedule, const Placement& placement,
                                    int look_ahead);

// Moves each of `messages`, which MessagesTo made for `rank`, behind the last action of this rank
// on which its data depend, by way of other ranks' lists too. Then a posted receive never waits for
// what its own rank is still to do: on a GPU it may occupy the device, and hold up that very action
// if that needs an idle one. No message comes later for it.
//
// Takes time proportional to the actions of all ranks: a planner counts the posts of MessagesTo.
void PostBehindOwnWork(int rank, const Schedule& schedule, const Placement& placement,
                       std::vector<LaneMessage>& messages);

// The send that follows `action`, which computes, if what it made goes to another rank.
std::optional<Action> SendBehind(const Action& action, const Placement& placement);

// The receive that brings what `action`, which computes, needs, if another rank makes that.
std::optional<Action> ReceiveBefore(const Action& action, const Placement& placement);

// Returns `schedule` with every send behind the action that makes its data; as it is if it states
// its transfers.
Schedule WithSends(const Schedule& schedule, const Placement& placement);

}  // namespace deepnet

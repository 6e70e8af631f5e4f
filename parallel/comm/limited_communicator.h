// A communicator in front of another one, on which nobody waits for ever.
//
// A wait that states no limit gets one. What takes longer, or is lost, ends the job: an error that
// names the rank and what it was doing is printed, then Abort is called with its exit code.
//
// Example:
//   LimitedCommunicator world(comm, {.longest = absl::Seconds(300), .rank = comm.rank()});
//   world.Begin("gather of the scores");
//   ASSIGN_OR_RETURN(const auto all, AllGatherText(world, mine));
#pragma once

#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "parallel/comm/forwarding_communicator.h"

namespace deepnet {

struct WaitLimit {
  absl::Duration longest = absl::InfiniteDuration();
  int rank = 0;  // of the whole job: who is named
};

// Waits without a limit, those inside Barrier, sums and the functions of collectives.h and
// agreement.h included, fail after limit.longest with DeadlineExceeded and ExitCode::kHang; any
// wait whose peer is gone fails with Unavailable and ExitCode::kPeerLost. Both end the job. Waits
// that state a limit keep it, and what it means. Split has none: a watchdog is for that
// (parallel/exec/watchdog.h). Groups that Split made are plain ones.
class LimitedCommunicator final : public ForwardingCommunicator {
 public:
  LimitedCommunicator(Communicator& inner, const WaitLimit& limit);  // `inner` outlives this
  LimitedCommunicator(std::unique_ptr<Communicator> owned, const WaitLimit& limit);

  // What later calls are for, as an error says it: "gather of the scores".
  void Begin(std::string action) { action_ = std::move(action); }

  TransferOr Send(Buffer buffer, int peer, int tag) override;
  TransferOr Receive(Buffer buffer, int peer, int tag) override;
  TransferOr AllToAll(std::span<const Buffer> send, std::span<const Buffer> receive) override;
  TransferOr AllGather(Buffer mine, std::span<const Buffer> all) override;

 private:
  class LimitedTransfer;

  TransferOr Limit(TransferOr transfer);
  absl::Status Checked(const absl::Status& status, const std::string& action);

  const WaitLimit limit_;
  std::string action_;
};

}  // namespace deepnet

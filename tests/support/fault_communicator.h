// A communicator with faults at chosen calls of the thread that made it.
//
// Example, a rank whose third call is its last:
//   FaultCommunicator comm(world, {{.kind = Fault::Kind::kDie, .at_call = 2}});
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/time/time.h"

#include "parallel/comm/communicator.h"
#include "tests/support/forwarding_communicator.h"

namespace deepnet {

struct Fault {
  enum class Kind {
    kDelay,  // the rank stands still for `delay` before the call
    kDrop,   // the first Send from this call on is lost: it ends well here, and never arrives
    kDie,    // `die` is called; if it returns, this call and all that follow fail with Unavailable
             // and nothing more is sent
  };

  Kind kind = Kind::kDie;
  int64_t at_call = 0;  // calls of the communicator count from 0, all but Abort together
  absl::Duration delay;
};

class FaultCommunicator final : public ForwardingCommunicator {
 public:
  // `inner` outlives this. Groups made by Split count on, with the same faults. Only calls of the
  // thread that makes this are counted and disturbed. `die` may end the process, for ranks that are
  // processes.
  FaultCommunicator(
      Communicator& inner, std::vector<Fault> faults, std::function<void()> die = [] {});

  TransferOr StartMessages(Direction direction, std::span<const Buffer> buffers, int peer,
                           int tag) override;
  absl::Status Connect(const Connections& connections, absl::Duration limit) override;
  TransferOr AllToAll(std::span<const Buffer> send, std::span<const Buffer> receive) override;
  TransferOr AllGather(Buffer mine, std::span<const Buffer> all) override;
  TransferOr ReduceScatter(Buffer blocks) override;
  absl::StatusOr<std::unique_ptr<Communicator>> Split(int color, int key) override;

  int64_t num_calls() const;  // so far

 private:
  struct State;

  FaultCommunicator(std::unique_ptr<Communicator> owned, std::shared_ptr<State> state);

  const std::shared_ptr<State> state_;
};

}  // namespace deepnet

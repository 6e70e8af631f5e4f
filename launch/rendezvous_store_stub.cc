// Replaces rendezvous_store.cc in builds without LibTorch.

#include "launch/rendezvous_store.h"
#include "parallel/base/exit_code.h"

namespace deepnet {

absl::StatusOr<std::unique_ptr<RendezvousStore>> OpenRendezvousStore(const Launch& launch,
                                                                     absl::Duration,
                                                                     const SayWaiting&) {
  return PreflightError(launch.said_by,
                        ": several ranks need LibTorch, which this build is without");
}

}  // namespace deepnet

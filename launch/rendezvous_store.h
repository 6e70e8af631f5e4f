// The stores in which a job's processes find each other: those of LibTorch (c10d), which torchrun
// uses too. A build without LibTorch links a stub.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "launch/launcher.h"
#include "parallel/comm/rendezvous.h"

namespace deepnet {

// Opens the store that `launch` names: for a host and a port TCPStore, which lives in the process
// of rank 0 or, where torchrun says so, in torchrun's agent; for a file FileStore.
// FailedPrecondition (ExitCode::kPreflight) where the port is in use, where nobody answers within
// `limit`, or where the file cannot be written. Tells `say` where it waits for rank 0's store.
absl::StatusOr<std::unique_ptr<RendezvousStore>> OpenRendezvousStore(const Launch& launch,
                                                                     absl::Duration limit,
                                                                     const SayWaiting& say);

}  // namespace deepnet

// Ranks that are processes, on one host or many, joined by TCP connections: for launchers that know
// nothing of MPI.
//
// Every two ranks have one connection. A thread of the process reads them all, and sleeps while
// nothing comes. A message of up to 64 KiB is sent at once; a longer one, of any size, when the
// peer has asked for it, into the memory where it belongs, in pieces between which others pass.
// Host memory only.
#pragma once

#include <memory>

#include "absl/status/statusor.h"

#include "parallel/comm/communicator.h"
#include "parallel/comm/rendezvous.h"

namespace deepnet {

// Collective over `size` processes; returns all ranks of the job. FailedPrecondition
// (ExitCode::kPreflight), naming the rank and its host: as Meet (rendezvous.h), or where two ranks
// cannot connect or have unlike secrets.
//
// Its end is collective too: it returns when every rank has come there, or is lost. The
// communicators that Split made are gone by then. If a transfer was given up, it ends the job as
// Abort(kInternal) does. A peer whose process ends without having come there is lost: Unavailable,
// at once (ExitCode::kPeerLost). After Abort by any rank every process ends with its exit code.
absl::StatusOr<std::unique_ptr<Communicator>> MakeTcpCommunicator(const TcpOptions& options);

}  // namespace deepnet

// Ways to join ranks: threads of one process, processes by TCP or MPI, and GPUs by NCCL on top of
// one of these. All but NCCL move host memory only; waiting threads sleep.
//
// The end of a communicator of all processes is collective: it returns when every rank has come
// there, or is lost, and the communicators that Split made are gone. If a transfer was given up, it
// ends the job as Abort(kInternal) does.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "parallel/comm/communicator.h"

namespace deepnet {

struct TcpOptions;

// Makes the world of `num_ranks` (>= 1) threads; element r belongs to rank r and may be given to
// any thread. A message is copied once, straight from the sender's memory to the receiver's, by
// whichever of the two comes last, inside its call. A rank that stops early (an error, an
// exception) must call Abort, or its peers wait for ever.
std::vector<std::unique_ptr<Communicator>> MakeThreadCommunicators(int num_ranks);

// Collective over `size` processes, of whatever launcher; returns all ranks of the job.
// FailedPrecondition (ExitCode::kPreflight), naming the rank and its host: as Meet (rendezvous.h),
// or where two ranks cannot connect or have unlike secrets. A peer whose process ends without
// having come to the end is lost: Unavailable, at once (ExitCode::kPeerLost). After Abort by any
// rank every process ends with its exit code.
absl::StatusOr<std::unique_ptr<Communicator>> MakeTcpCommunicator(const TcpOptions& options);

// Starts MPI, once in a process's life, and returns all ranks that mpirun or srun started; without
// a launcher this is one. Any MPI 3.1 library will do, whatever threads it allows.
// FailedPrecondition (ExitCode::kPreflight) where the program was built without MPI or MPI does not
// start. A lost peer ends the job through mpirun, or is Unavailable where the library reports it;
// one that hangs is for limits and Abort.
absl::StatusOr<std::unique_ptr<Communicator>> MakeMpiCommunicator();

// Returns the name and version of the library, "Open MPI v4.1.4"; empty where the program was built
// without MPI. Any thread may call it, before, during and after a job.
std::string MpiVersion();

// Moves device memory between GPUs by NCCL. Collective over `bootstrap`, which outlives the result
// and moves NCCL's ids and host memory: as many ranks, in its order. `device`: this rank's GPU.
// Fails on all ranks with FailedPrecondition (ExitCode::kPreflight) where one has no such GPU, or
// the program was built without NCCL or with a newer one than is loaded.
//
// Beyond the contract of communicator.h:
//   - Messages of device memory from one rank to another arrive in the order in which they were
//     sent, whatever their tags: NCCL knows none. The receiver posts them in that order.
//   - Byte counts of device memory are not checked against the peer's.
//   - Work is ordered after what stands in the buffer's stream (Device::stream) when the call is
//     made; after Wait() any stream may use the buffer. Buffers of one collective lie on one kind
//     of device.
//   - A call launches its work at once and, after Connect, blocks for nobody. That it has ended, or
//     failed, is seen inside of Wait() and Done(); work of other lanes is then Cancelled.
absl::StatusOr<std::unique_ptr<Communicator>> MakeNcclCommunicator(Communicator& bootstrap,
                                                                   int device);

// Returns the version of the library, "2.27.3"; empty where the program was built without NCCL.
std::string NcclVersion();

}  // namespace deepnet

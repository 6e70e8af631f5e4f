// The accelerator of a rank, and the group in which ranks exchange what lies there.
#pragma once

#include <memory>

#include "absl/status/statusor.h"

#include "parallel/comm/communicator.h"
#include "proto/plan.pb.h"

namespace deepnet {

// Sets the environment of CUDA that a run needs, where the user has not. Must be called before
// CUDA's first call, so before MPI begins: an MPI that knows CUDA makes it.
void SetCudaDefaults();

// Returns true where this build sees a CUDA device.
bool HasCuda();

// Makes the calling thread's device the k-th GPU that this process sees for the k-th rank of its
// host, or the only one where launchers show each rank its own, and returns its index. Collective
// over `world`; every rank gets the same error: FailedPrecondition (ExitCode::kPreflight) where a
// rank has no GPU of its own, or none that this build has kernels for.
absl::StatusOr<int> SetDevice(Communicator& world);

// With compute.device "cuda": SetDevice; the result, with more than one rank, moves device memory
// by NCCL and everything else over `world`, which outlives it. Null where `world` will do.
// Collective over `world`; fails as SetDevice does, and where NCCL is missing.
absl::StatusOr<std::unique_ptr<Communicator>> JoinDevices(const ComputeSpec& compute,
                                                          Communicator& world);

}  // namespace deepnet

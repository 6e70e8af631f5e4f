// Device memory between GPUs by NCCL; host memory by another communicator.
//
// Beyond the contract of communicator.h:
//   - Messages of device memory from one rank to another arrive in the order in which they were
//     sent, whatever their tags: NCCL knows none. The receiver posts them in that order.
//   - Byte counts of device memory are not checked against the peer's.
//   - Work is ordered after what stands in the buffer's stream (Device::stream) when the call is
//     made; after Wait() any stream may use the buffer. Buffers of one collective lie on one kind
//     of device.
//   - A call launches its work at once. That it has ended, or failed, is seen inside of any call of
//     this rank's communicator, Wait() first of all.
//
// Each pair and direction has an NCCL communicator and a stream of its own (a lane), so that a
// receive that was posted early holds nothing up; collectives have one more. Connect makes them and
// moves a few bytes over each, because the first message between two ranks takes memory and waits
// for the device and for the peer. After it a call blocks for nobody, and the tensors of a message
// are one launch. An error of one lane, or a transfer that is dropped, ends all lanes of the group
// on this rank (ncclCommAbort). Lanes want hardware queues of their own:
// CUDA_DEVICE_MAX_CONNECTIONS, which SetCudaDefaults (launch/device_group.h) sets.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"

#include "parallel/comm/communicator.h"

namespace deepnet {

// Collective over `bootstrap`, which outlives the result and moves NCCL's ids and host memory: as
// many ranks, in its order. `device`: this rank's GPU. Fails on all ranks with FailedPrecondition
// (ExitCode::kPreflight) where one has no such GPU, or the program was built without NCCL or with a
// newer one than is loaded.
absl::StatusOr<std::unique_ptr<Communicator>> MakeNcclCommunicator(Communicator& bootstrap,
                                                                   int device);

// Returns the version of the library, "2.27.3"; empty where the program was built without NCCL.
std::string NcclVersion();

}  // namespace deepnet

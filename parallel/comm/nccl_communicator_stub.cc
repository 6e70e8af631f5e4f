// Replaces nccl_communicator.cc in a build without CUDA, or where CMake found no NCCL.
#include "parallel/base/exit_code.h"
#include "parallel/comm/backends.h"

namespace deepnet {

absl::StatusOr<std::unique_ptr<Communicator>> MakeNcclCommunicator(Communicator&, int) {
  return PreflightError("built without NCCL: build the preset `cuda` where nccl.h is");
}

std::string NcclVersion() { return ""; }

}  // namespace deepnet

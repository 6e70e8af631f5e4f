// Replaces mpi_communicator.cc where CMake found no MPI.
#include "parallel/base/exit_code.h"
#include "parallel/comm/backends.h"

namespace deepnet {

absl::StatusOr<std::unique_ptr<Communicator>> MakeMpiCommunicator() {
  return PreflightError(
      "built without MPI: install an MPI library's headers, or name "
      "its prefix by DEEPNET_MPI_ROOT, and build again");
}

std::string MpiVersion() { return ""; }

}  // namespace deepnet

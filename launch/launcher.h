// Reads from the variables that launchers set who started this process, as one of how many.
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"

namespace deepnet {

// Looks a variable of the environment up; null: not set. std::getenv, or a test's.
using GetEnvFn = std::function<const char*(const char* variable)>;

struct Launch {
  enum class By {
    kNobody,     // this process is alone
    kMpi,        // mpirun, or srun with PMIx: MPI knows the rest
    kVariables,  // what follows is set
  } by = By::kNobody;
  std::string said_by;  // "torchrun's variables", for the log

  int rank = 0;
  int size = 1;
  std::string host;  // where the ranks meet; empty: in `file`
  int port = 0;
  std::string file;
  std::string interface;     // of the network, empty: any
  bool agent_store = false;  // torchrun has a store at host and port already
  std::string prefix;        // of keys in the store: the number of torchrun's restarts

  // "h1:29500 (MASTER_ADDR, MASTER_PORT)", for the log and for errors.
  std::string Place() const;
};

// Returns the first of these that is there:
//   1. MPI, where a launcher of MPI started this process and the program has MPI (`has_mpi`);
//   2. RANK and WORLD_SIZE, as torchrun and Kubernetes' training operator set them, with
//      MASTER_ADDR and MASTER_PORT (29500), or INIT_METHOD as in torch.distributed:
//      tcp://HOST:PORT or file:///PATH;
//   3. a step of Slurm with several tasks: SLURM_PROCID, SLURM_STEP_NUM_TASKS, the first host of
//      SLURM_STEP_NODELIST and a port from the number of the job, unless MASTER_ADDR, MASTER_PORT
//      or INIT_METHOD say otherwise;
//   4. nobody.
// GLOO_SOCKET_IFNAME names the network interface, as for torch.distributed.
// FailedPrecondition (ExitCode::kPreflight) names the variable that is missing or wrong, also where
// mpirun started several processes of a program without MPI.
absl::StatusOr<Launch> FindLaunch(const GetEnvFn& environment, bool has_mpi);

// Returns the first host of a list as Slurm writes it: "n[07-09,12],m3" is "n07".
std::string FirstHost(const std::string& list);

// Returns the secret by which the processes of a job that talk by TCP know each other:
// DEEPNET_JOB_SECRET or, where it is not set, what is in deepnet/job_secret of XDG_CONFIG_HOME
// (~/.config): a file that only its owner can read, which the first job makes of random digits.
// Fails with FailedPrecondition (ExitCode::kPreflight), naming the variable or the file, if it has
// fewer than 16 bytes, or if others own or can read the file, or it cannot be made.
absl::StatusOr<std::string> FindJobSecret(const GetEnvFn& environment);

}  // namespace deepnet

#include "launch/launcher.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include <sys/random.h>
#include <sys/stat.h>

#include "parallel/base/exit_code.h"
#include "parallel/base/fd_stream.h"
#include "parallel/base/file_system.h"
#include "parallel/base/status_macros.h"

namespace deepnet {
namespace {

constexpr int kDefaultPort = 29500;

// The text of a variable; empty where it is not set.
std::string TextOf(const GetEnvFn& environment, const char* name) {
  const char* const text = environment(name);
  return text != nullptr ? text : "";
}

// The whole number of a variable, from `least` to `most`; `otherwise` where it is not set.
absl::StatusOr<int> NumberOf(const GetEnvFn& environment, const char* name, int least, int most,
                             int otherwise) {
  const std::string text = TextOf(environment, name);
  if (text.empty()) return otherwise;
  int number = 0;
  if (absl::SimpleAtoi(text, &number) && number >= least && number <= most) return number;
  return PreflightError(name, " is \"", text, "\": must be a number from ", least, " to ", most);
}

// "tcp://h1:29500" or "file:///shared/run.rendezvous".
absl::Status ReadInitMethod(const std::string& text, Launch* launch) {
  absl::string_view rest = text;
  if (absl::ConsumePrefix(&rest, "file://") && !rest.empty()) {
    launch->file = std::string(rest);
    return absl::OkStatus();
  }
  const bool tcp = absl::ConsumePrefix(&rest, "tcp://");
  const size_t colon = std::min(rest.rfind(':'), rest.size());
  launch->host = std::string(rest.substr(0, colon));
  if (tcp && !launch->host.empty() && colon < rest.size() &&
      absl::SimpleAtoi(rest.substr(colon + 1), &launch->port) && launch->port > 0 &&
      launch->port <= 65535) {
    return absl::OkStatus();
  }
  return PreflightError("INIT_METHOD is \"", text,
                        "\": must be tcp://HOST:PORT, file:///PATH or env://");
}

// Where the ranks meet: what the user says, or `host` and `port`.
absl::Status ReadPlace(const GetEnvFn& environment, const std::string& host, int port,
                       Launch* launch) {
  const std::string method = TextOf(environment, "INIT_METHOD");
  if (!method.empty() && method != "env://") return ReadInitMethod(method, launch);
  launch->host = TextOf(environment, "MASTER_ADDR");
  if (launch->host.empty()) launch->host = host;
  if (launch->host.empty()) {
    return PreflightError(
        "RANK and WORLD_SIZE are set, but not MASTER_ADDR, the host of rank 0 (nor INIT_METHOD)");
  }
  ASSIGN_OR_RETURN(launch->port, NumberOf(environment, "MASTER_PORT", 1, 65535, port));
  return absl::OkStatus();
}

absl::Status ReadTorchrun(const GetEnvFn& environment, int size, Launch* launch) {
  launch->by = Launch::By::kVariables;
  launch->said_by = "torchrun's variables";
  launch->size = size;
  ASSIGN_OR_RETURN(launch->rank, NumberOf(environment, "RANK", 0, size - 1, -1));
  if (launch->rank < 0) {
    return PreflightError("WORLD_SIZE is ", size, ", but RANK is not set");
  }
  launch->agent_store = TextOf(environment, "TORCHELASTIC_USE_AGENT_STORE") == "True";
  launch->prefix = TextOf(environment, "TORCHELASTIC_RESTART_COUNT");
  return ReadPlace(environment, "", kDefaultPort, launch);
}

absl::Status ReadSlurm(const GetEnvFn& environment, int size, Launch* launch) {
  launch->by = Launch::By::kVariables;
  launch->said_by = "Slurm's variables";
  launch->size = size;
  ASSIGN_OR_RETURN(launch->rank, NumberOf(environment, "SLURM_PROCID", 0, size - 1, 0));
  // Steps and jobs that run beside each other on a host meet at different ports.
  uint64_t job = 0, step = 0;
  static_cast<void>(absl::SimpleAtoi(TextOf(environment, "SLURM_JOB_ID"), &job));
  static_cast<void>(absl::SimpleAtoi(TextOf(environment, "SLURM_STEP_ID"), &step));
  const int port = static_cast<int>(15000 + (job + 97 * step) % 15000);
  const std::string hosts = TextOf(environment, "SLURM_STEP_NODELIST");
  return ReadPlace(environment, FirstHost(hosts), port, launch);
}

constexpr char kSecretVariable[] = "DEEPNET_JOB_SECRET";
constexpr size_t kLeastSecretBytes = 16;

absl::Status SecretError(const std::string& what, const std::string& why) {
  return PreflightError(what, ": ", why, " (ranks prove by a secret that they are of one job: set ",
                        kSecretVariable, ", or let ~/.config/deepnet/job_secret be made)");
}

Descriptor OpenSecret(const std::string& path, int flags) {
  return Descriptor(open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR));
}

// Makes the file unless another process has, whole before it has its name.
absl::Status MakeSecret(const std::string& path) {
  std::array<char, 32> random;
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::filesystem::create_directories(folder, error);
  const std::string unfinished = JoinPath(folder.string(), UnusedName());
  const Descriptor file = OpenSecret(unfinished, O_WRONLY | O_CREAT | O_EXCL);
  if (!file.ok()) return SecretError(path, std::strerror(errno));
  bool made = getrandom(random.data(), random.size(), 0) == static_cast<ssize_t>(random.size());
  const std::string text =
      absl::StrCat(absl::BytesToHexString({random.data(), random.size()}), "\n");
  made = made && write(file.fd(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
         fsync(file.fd()) == 0 && (link(unfinished.c_str(), path.c_str()) == 0 || errno == EEXIST);
  const std::string why = std::strerror(errno);
  unlink(unfinished.c_str());
  return made ? absl::OkStatus() : SecretError(path, why);
}

absl::StatusOr<std::string> ReadSecret(const std::string& path) {
  // A pipe is refused, not waited for.
  const Descriptor file = OpenSecret(path, O_RDONLY | O_NONBLOCK);
  if (!file.ok()) return SecretError(path, std::strerror(errno));
  struct stat about = {};
  fstat(file.fd(), &about);
  if (!S_ISREG(about.st_mode) || about.st_uid != geteuid() || (about.st_mode & 077) != 0) {
    return SecretError(path, "must be your own file that nobody else can read (chmod 600)");
  }
  std::array<char, 4096> text;
  const ssize_t got = read(file.fd(), text.data(), text.size());
  if (got < 0) return SecretError(path, std::strerror(errno));
  const absl::string_view secret =
      absl::StripTrailingAsciiWhitespace({text.data(), static_cast<size_t>(got)});
  if (secret.size() < kLeastSecretBytes) return SecretError(path, "has under 16 bytes");
  return std::string(secret);  // as $(cat FILE) gives it to the variable
}

}  // namespace

std::string Launch::Place() const {
  if (!file.empty()) return absl::StrCat("file ", file, " (INIT_METHOD)");
  return absl::StrCat(host, ":", port, " (MASTER_ADDR, MASTER_PORT)");
}

absl::StatusOr<Launch> FindLaunch(const GetEnvFn& environment, bool has_mpi) {
  constexpr int kMany = 1 << 20;
  Launch launch{.interface = TextOf(environment, "GLOO_SOCKET_IFNAME")};
  // Open MPI, MPICH and its descendants, and PMIx under srun.
  const auto of_mpi = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"};
  if (has_mpi && std::ranges::any_of(of_mpi, environment)) {
    launch.by = Launch::By::kMpi;
    launch.said_by = "MPI's launcher";
    return launch;
  }
  ASSIGN_OR_RETURN(const int world_size, NumberOf(environment, "WORLD_SIZE", 1, kMany, 1));
  ASSIGN_OR_RETURN(const int tasks, NumberOf(environment, "SLURM_STEP_NUM_TASKS", 1, kMany, 1));
  ASSIGN_OR_RETURN(int mpi_ranks, NumberOf(environment, "OMPI_COMM_WORLD_SIZE", 1, kMany, 1));
  ASSIGN_OR_RETURN(mpi_ranks, NumberOf(environment, "PMI_SIZE", 1, kMany, mpi_ranks));
  if (world_size > 1) {
    RETURN_IF_ERROR(ReadTorchrun(environment, world_size, &launch));
  } else if (!TextOf(environment, "SLURM_STEP_ID").empty() && tasks > 1) {
    RETURN_IF_ERROR(ReadSlurm(environment, tasks, &launch));
  } else if (mpi_ranks > 1) {
    return PreflightError("mpirun started ", mpi_ranks,
                          " ranks of a program that was built without MPI: build it with "
                          "MPI, or set RANK, WORLD_SIZE and MASTER_ADDR");
  }
  return launch;
}

std::string FirstHost(const std::string& list) {
  std::string host;
  bool inside = false, skip = false;  // of brackets; after their first number
  for (const char c : list) {
    if (c == '[') {
      inside = true;
    } else if (c == ']') {
      inside = skip = false;
    } else if (inside && (c == '-' || c == ',')) {
      skip = true;
    } else if (c == ',') {
      break;
    } else if (!skip) {
      host += c;
    }
  }
  return host;
}

absl::StatusOr<std::string> FindJobSecret(const GetEnvFn& environment) {
  if (const std::string given = TextOf(environment, kSecretVariable); !given.empty()) {
    if (given.size() < kLeastSecretBytes) return SecretError(kSecretVariable, "is under 16 bytes");
    return absl::StrCat(given);
  }
  std::string folder = TextOf(environment, "XDG_CONFIG_HOME");
  if (folder.empty()) {
    const std::string home = TextOf(environment, "HOME");
    if (home.empty()) return SecretError(kSecretVariable, "is not set, nor is HOME");
    folder = JoinPath(home, ".config");
  }
  const std::string path = JoinPath(folder, "deepnet/job_secret");
  if (access(path.c_str(), F_OK) != 0) RETURN_IF_ERROR(MakeSecret(path));
  return ReadSecret(path);
}

}  // namespace deepnet

#include "launch/job_secret.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include <sys/random.h>
#include <sys/stat.h>

#include "parallel/base/descriptor.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/file_system.h"
#include "parallel/base/status_macros.h"

namespace deepnet {
namespace {

constexpr char kVariable[] = "DEEPNET_JOB_SECRET";
constexpr size_t kLeastBytes = 16;

absl::Status Preflight(const std::string& what, const std::string& why) {
  return PreflightError(absl::StrCat(what, ": ", why,
                                     " (ranks prove by a secret that they are of one job: set ",
                                     kVariable, ", or let ~/.config/deepnet/job_secret be made)"));
}

Descriptor Open(const std::string& path, int flags) {
  return Descriptor(open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR));
}

// Makes the file unless another process has, whole before it has its name.
absl::Status Make(const std::string& path) {
  std::array<char, 32> random;
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::filesystem::create_directories(folder, error);
  const std::string unfinished = JoinPath(folder.string(), UnusedName());
  const Descriptor file = Open(unfinished, O_WRONLY | O_CREAT | O_EXCL);
  if (!file.ok()) return Preflight(path, std::strerror(errno));
  bool made = getrandom(random.data(), random.size(), 0) == static_cast<ssize_t>(random.size());
  const std::string text =
      absl::StrCat(absl::BytesToHexString({random.data(), random.size()}), "\n");
  made = made && write(file.fd(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
         fsync(file.fd()) == 0 && (link(unfinished.c_str(), path.c_str()) == 0 || errno == EEXIST);
  const std::string why = std::strerror(errno);
  unlink(unfinished.c_str());
  return made ? absl::OkStatus() : Preflight(path, why);
}

absl::StatusOr<std::string> Read(const std::string& path) {
  const Descriptor file = Open(path, O_RDONLY | O_NONBLOCK);  // a pipe is refused, not waited for
  if (!file.ok()) return Preflight(path, std::strerror(errno));
  struct stat about = {};
  fstat(file.fd(), &about);
  if (!S_ISREG(about.st_mode) || about.st_uid != geteuid() || (about.st_mode & 077) != 0) {
    return Preflight(path, "must be your own file that nobody else can read (chmod 600)");
  }
  std::array<char, 4096> text;
  const ssize_t got = read(file.fd(), text.data(), text.size());
  if (got < 0) return Preflight(path, std::strerror(errno));
  const absl::string_view secret =
      absl::StripTrailingAsciiWhitespace({text.data(), static_cast<size_t>(got)});
  if (secret.size() < kLeastBytes) return Preflight(path, "has under 16 bytes");
  return std::string(secret);  // as $(cat FILE) gives it to the variable
}

}  // namespace

absl::StatusOr<std::string> FindJobSecret(const GetEnvFn& environment) {
  const auto text = [&](const char* name) -> std::string {
    const char* const value = environment(name);
    return value != nullptr ? value : "";
  };
  if (const std::string given = text(kVariable); !given.empty()) {
    if (given.size() < kLeastBytes) return Preflight(kVariable, "is under 16 bytes");
    return absl::StrCat(given);
  }
  std::string folder = text("XDG_CONFIG_HOME");
  if (folder.empty()) {
    if (text("HOME").empty()) return Preflight(kVariable, "is not set, nor is HOME");
    folder = JoinPath(text("HOME"), ".config");
  }
  const std::string path = JoinPath(folder, "deepnet/job_secret");
  if (access(path.c_str(), F_OK) != 0) RETURN_IF_ERROR(Make(path));
  return Read(path);
}

}  // namespace deepnet

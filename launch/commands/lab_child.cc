#include "launch/commands/lab_child.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

namespace deepnet {
namespace {

constexpr int kCannotStart = 127;  // as shells have it
constexpr int kBySignal = 128;

// In the child, between fork and exec: only calls that are safe there.
[[noreturn]] void Become(char* const* argv, pid_t parent, int log, int output) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(kBySignal + SIGTERM);  // it died before that was said
  // A handler of the parent's is gone after exec, but ignored signals would stay ignored.
  signal(SIGINT, SIG_DFL);
  dup2(output, STDOUT_FILENO);
  dup2(log, STDERR_FILENO);
  execvp(argv[0], argv);
  _exit(kCannotStart);
}

absl::StatusOr<int> OpenFile(const std::string& path, int flags) {
  const int file = open(path.c_str(), flags | O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  if (file >= 0) return file;
  return absl::FailedPreconditionError(absl::StrCat("'", path, "': ", strerror(errno)));
}

}  // namespace

absl::StatusOr<ChildProgram> ChildProgram::Start(const std::vector<std::string>& words,
                                                 const std::string& log_file,
                                                 const std::string& output_file) {
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  const absl::StatusOr<int> log = OpenFile(log_file, O_APPEND);
  if (!log.ok()) return log.status();
  const absl::StatusOr<int> output =
      output_file.empty() ? absl::StatusOr<int>(*log) : OpenFile(output_file, O_TRUNC);
  if (!output.ok()) {
    close(*log);
    return output.status();
  }
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) Become(argv.data(), parent, *log, *output);
  if (*output != *log) close(*output);
  close(*log);
  if (pid < 0) {
    return absl::FailedPreconditionError(absl::StrCat(words[0], ": ", strerror(errno)));
  }
  return ChildProgram(pid, static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
}

ChildProgram::ChildProgram(ChildProgram&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      ended_(other.ended_),
      exit_code_(other.exit_code_) {}

ChildProgram::~ChildProgram() {
  if (pid_ > 0 && !ended_) {
    Stop();
    int status = 0;
    waitpid(pid_, &status, 0);
  }
  if (descriptor_ >= 0) close(descriptor_);
}

void ChildProgram::Stop() {
  if (pid_ > 0 && !ended_) kill(pid_, SIGTERM);
}

bool ChildProgram::HasEnded() {
  int status = 0;
  if (ended_ || waitpid(pid_, &status, WNOHANG) != pid_) return ended_;
  ended_ = true;
  exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : kBySignal + WTERMSIG(status);
  return true;
}

void WaitForChildren(std::span<ChildProgram* const> children, std::chrono::milliseconds timeout) {
  std::vector<pollfd> polled;
  for (const ChildProgram* child : children) {
    polled.push_back({.fd = child->descriptor_, .events = POLLIN, .revents = 0});
  }
  poll(polled.data(), polled.size(), static_cast<int>(timeout.count()));
}

}  // namespace deepnet
